"""Rule certificate: what a schedule claims of itself is recomputed, or marked as unproven."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bubbleproof.schedules.problem import Objective
from bubbleproof.schedules.schedule import Bound, Schedule, Status
from bubbleproof.verify.arguments import ALONE, FLUID, NAMES, OWN, Arguments, Terms
from bubbleproof.verify.naming import plural
from bubbleproof.verify.reading import read
from bubbleproof.verify.report import Violation
from bubbleproof.verify.running import run

RULE = "certificate"
SEARCHED = ("cp-sat", "states")
"""The names of bounds that searches report; nothing here can confirm them."""


class Standing(StrEnum):
    """What the claims of a schedule are worth."""

    CONFIRMED = "confirmed"
    WORD = "rests on the solver's word"
    REFUSED = "refused"
    NOTHING = "nothing is claimed"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The judgement on a schedule's objective, bound, status and proof.

    Parameters
    ----------
    standing
        Confirmed where every claim follows from the problem and the rows; on the solver's word
        where only the bound, or a part of the proof that it needs, does not.
    reason
        What is confirmed, or why it is not, in one sentence.
    violations
        The claims that are wrong.
    objective, bound
        The objective and the largest confirmed bound, in ticks, as recomputed; None where the
        order cannot run, or where nothing is claimed.
    """

    standing: Standing
    reason: str
    violations: tuple[Violation, ...] = ()
    objective: int | None = None
    bound: int | None = None


def certify(schedule: Schedule) -> Certificate:
    """Judge what a schedule claims of itself, from its problem, rows and starts alone.

    Whether the rows are valid is what ``verify`` judges; an objective of rows that break a rule
    proves nothing.
    """
    if _claims_nothing(schedule):
        return Certificate(Standing.NOTHING, "no objective, bound, status or proof is given")
    arguments = Arguments(schedule.problem)
    objective = _objective(schedule)
    judged = [_judge(arguments, schedule, bound) for bound in schedule.proof]
    largest = max((bound.ticks for bound in judged if isinstance(bound, Bound)), default=0)
    if schedule.bound is not None and schedule.bound > largest:
        largest = max(largest, arguments.strongest())
    violations = (
        *_objective_faults(schedule, objective),
        *(fault for faults in judged if isinstance(faults, list) for fault in faults),
        *_refuted(schedule, objective),
        *_unsupported(schedule, largest),
        *_status_faults(schedule),
    )
    if violations:
        wrong = plural(len(violations), "claim")
        reason = f"{wrong} about the objective, the bound or the proof is wrong"
        return Certificate(Standing.REFUSED, reason, violations, objective, largest)
    if schedule.bound is None or schedule.bound <= largest:
        return Certificate(
            Standing.CONFIRMED, _confirmed(schedule, objective), (), objective, largest
        )
    reason = (
        f"a search reports that none has a {_name(schedule)} below "
        f"{_time(schedule, schedule.bound)}; recomputed is {_time(schedule, largest)}"
    )
    return Certificate(Standing.WORD, reason, (), objective, largest)


def _claims_nothing(schedule: Schedule) -> bool:
    return (
        schedule.objective is None
        and schedule.bound is None
        and schedule.status is None
        and not schedule.proof
    )


def _objective(schedule: Schedule) -> int | None:
    """Return the objective in ticks: of the starts, else of the earliest ones; None if stuck."""
    reading = read(schedule, schedule.problem)
    outcome = run(reading)
    if outcome.starved or outcome.heads != list(reading.offsets[1:]):
        return None
    starts, ends = outcome.starts, outcome.ends
    if reading.starts is not None:
        starts = reading.starts
        ends = [start + ticks for start, ticks in zip(starts, reading.ticks, strict=True)]
    if schedule.problem.objective is Objective.MAKESPAN:
        return max(ends, default=0) - min(starts, default=0)
    limits = zip(reading.offsets[:-1], reading.offsets[1:], strict=True)
    return max((max(ends[a:b]) - min(starts[a:b]) for a, b in limits if a < b), default=0)


def _objective_faults(schedule: Schedule, objective: int | None) -> Iterator[Violation]:
    """The objective is the one that the starts, or the earliest starts, give."""
    if objective is None:
        yield Violation(RULE, "the order cannot run, so it has no objective and proves no bound")
    elif schedule.objective is not None and schedule.objective != objective:
        of = "the starts" if schedule.starts is not None else "the earliest starts"
        yield Violation(
            RULE,
            f"the objective is given as {_time(schedule, schedule.objective)}, but {of} have a "
            f"{_name(schedule)} of {_time(schedule, objective)}",
        )


def _judge(arguments: Arguments, schedule: Schedule, bound: Bound) -> Bound | list[Violation]:
    """Return a bound that is confirmed; else what is wrong with it, which may be nothing.

    A bound's terms add up to it, and its theorem gives at least these terms.
    """
    total = sum(bound.terms.values())
    where = f"bound {bound.name!a}" + ("" if bound.device is None else f" of device {bound.device}")
    device = bound.device if _is_device(schedule, bound.device) else None

    def wrong(message: str) -> list[Violation]:
        return [Violation(RULE, f"{where}: {message}", device)]

    if (bound.terms or bound.name not in SEARCHED) and total != bound.ticks:
        given, added = _time(schedule, bound.ticks), _time(schedule, total)
        return wrong(f"its terms add up to {added}, not to {given}")
    if bound.name in SEARCHED:
        return []
    if bound.name not in (*NAMES, ALONE, FLUID):
        accepted = ", ".join((*NAMES, ALONE, FLUID, *SEARCHED))
        return wrong(f"there is no such bound; accepted are {accepted}")
    if device is None:
        last = schedule.problem.devices - 1
        return wrong(f"it holds for one device; accepted are 0..{last}")
    try:
        alternatives = _alternatives(arguments, bound, device)
    except ValueError as error:
        return wrong(str(error))
    if alternatives is None:
        return []
    if not alternatives:
        return wrong("no such bound holds for this device")
    best = max(sum(terms.values()) for terms in alternatives)
    if bound.ticks > best:
        given, recomputed = _time(schedule, bound.ticks), _time(schedule, best)
        return wrong(f"it is given as {given}, but recomputed it is {recomputed}")
    if not any(_within(bound.terms, terms) for terms in alternatives):
        return wrong(_odd_term(schedule, bound, alternatives))
    return bound


def _alternatives(arguments: Arguments, bound: Bound, device: int) -> list[Terms] | None:
    """Return what a bound's theorem gives for a device; None where that is not known.

    Raises
    ------
    ValueError
        If what the bound is to be recomputed from proves nothing.
    """
    if bound.name == ALONE:
        return arguments.alone(device, bound.terms.get(OWN, bound.ticks))
    if bound.name == FLUID:
        return None if bound.flow is None else arguments.fluid(device, bound.flow)
    return arguments.of(bound.name, device)


def _is_device(schedule: Schedule, device: int | None) -> bool:
    return device is not None and 0 <= device < schedule.problem.devices


def _within(claimed: Terms, recomputed: Terms) -> bool:
    return all(ticks <= recomputed.get(name, 0) for name, ticks in claimed.items())


def _odd_term(schedule: Schedule, bound: Bound, alternatives: Sequence[Terms]) -> str:
    """Name a term that is too large, in the argument that comes nearest to the claim."""

    def excess(terms: Terms) -> int:
        return sum(max(0, ticks - terms.get(name, 0)) for name, ticks in bound.terms.items())

    nearest = min(alternatives, key=excess)
    name = max(bound.terms, key=lambda name: bound.terms[name] - nearest.get(name, 0))
    if name not in nearest:
        return f"it has no term {name!a}; accepted are {', '.join(nearest)}"
    return (
        f"its term {name!a} is given as {_time(schedule, bound.terms[name])}, but recomputed it "
        f"is {_time(schedule, nearest[name])}"
    )


def _refuted(schedule: Schedule, objective: int | None) -> Iterator[Violation]:
    """No bound is above what this very schedule reaches."""
    bounds = [*(bound.ticks for bound in schedule.proof), schedule.bound or 0]
    if objective is not None and max(bounds) > objective:
        yield Violation(
            RULE,
            f"no {_name(schedule)} is said to be below {_time(schedule, max(bounds))}, but this "
            f"schedule has {_time(schedule, objective)}",
        )


def _unsupported(schedule: Schedule, largest: int) -> Iterator[Violation]:
    """The bound follows from the proof, from a search's word, or from a theorem."""
    if schedule.bound is None:
        return
    given = [bound.ticks for bound in schedule.proof]
    if schedule.bound > max(given, default=0) and schedule.bound > largest:
        yield Violation(
            RULE,
            f"the bound is given as {_time(schedule, schedule.bound)}, but the proof goes no "
            f"further than {_time(schedule, max(given, default=0))}, and recomputed it is "
            f"{_time(schedule, largest)}",
        )


def _status_faults(schedule: Schedule) -> Iterator[Violation]:
    """Optimal means that the bound is the objective; infeasible, that there is no schedule."""
    match schedule.status:
        case Status.OPTIMAL:
            if schedule.objective is None or schedule.bound != schedule.objective:
                objective, bound = (
                    "missing" if ticks is None else _time(schedule, ticks)
                    for ticks in (schedule.objective, schedule.bound)
                )
                yield Violation(
                    RULE,
                    f"the status is optimal, but the objective is {objective} and the bound is "
                    f"{bound}; feasible is right where they differ",
                )
        case Status.INFEASIBLE:
            yield Violation(RULE, "the status is infeasible, but here is a schedule")
        case Status.FEASIBLE | Status.UNKNOWN | None:
            pass


def _confirmed(schedule: Schedule, objective: int | None) -> str:
    if schedule.bound is None:
        return "the claims agree with the rows; no bound is given"
    bound = f"no {_name(schedule)} is below {_time(schedule, schedule.bound)}, recomputed"
    return f"{bound}: this schedule is optimal" if objective == schedule.bound else bound


def _name(schedule: Schedule) -> str:
    return schedule.problem.objective.value


def _time(schedule: Schedule, ticks: int) -> str:
    return f"{schedule.problem.time(ticks)} {schedule.problem.time_unit}".rstrip()
