"""Schedules for every n on the command line: what is found, and what is decided of it."""

from dataclasses import replace
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from bubbleproof import answers, report
from bubbleproof.answers import Json
from bubbleproof.schedules.files import read_source
from bubbleproof.schedules.io import load_schedule_or_program
from bubbleproof.schedules.markup import parse_json
from bubbleproof.schedules.periodic import Periodic
from bubbleproof.schedules.periodic_cut import periodic_programs_of
from bubbleproof.schedules.periodic_program import PeriodicProgram
from bubbleproof.schedules.periodic_search import periodic_of
from bubbleproof.schedules.periodic_words import (
    PERIODIC_FORMAT,
    PERIODIC_PROGRAM_FORMAT,
    periodic_of_words,
    periodic_program_of_words,
)
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Program
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.words import is_object
from bubbleproof.solver.every_n import EveryN as Solved
from bubbleproof.solver.line_bound import Line, in_words
from bubbleproof.solver.pace import Pace
from bubbleproof.verify.every_n import EveryN
from bubbleproof.verify.every_n_program import verify_program_every_n


def load(path: Path, problem: Problem | None) -> Periodic | PeriodicProgram | Schedule | Program:
    """Read a periodic schedule or program, or a schedule or program in which one may be found.

    What comes through a pipe can be read once only, and is taken for a schedule.

    Raises
    ------
    ValueError
        If the file cannot be used, or is periodic and so has a problem of its own number of
        microbatches beside the one that is given.
    """
    if not path.is_file():
        return load_schedule_or_program(path, problem)
    source = read_source(path)
    words = parse_json(source) if source.text.lstrip().startswith("{") else None
    form = words.get("format") if is_object(words) else None
    if form not in (PERIODIC_FORMAT, PERIODIC_PROGRAM_FORMAT):
        return load_schedule_or_program(path, problem)
    if problem is not None:
        raise source.of("a periodic schedule is judged on its own problem; leave --problem out")
    try:
        if form == PERIODIC_FORMAT:
            return periodic_of_words(words)
        return periodic_program_of_words(words)
    except ValueError as error:
        raise source.of(error) from None


def found(schedule: Schedule) -> Periodic | None:
    """Return the repeating middle of a valid schedule, if it has one; as its order runs."""
    return periodic_of(replace(schedule, starts=None))


def proven(program: Program) -> tuple[PeriodicProgram, EveryN] | None:
    """Return what repeats in a valid program, messages included, if that serves every n."""
    for periodic in periodic_programs_of(program):
        verdict = verify_program_every_n(periodic)
        if verdict.valid:
            return periodic, verdict
    return None


def numbers(verdict: EveryN) -> str:
    """Return for which n a verdict is: ``n >= 4``, or ``n = 4, 6, 8, ...``."""
    if verdict.period == 1:
        return f"n >= {verdict.first}"
    first = [verdict.first + turn * verdict.period for turn in range(3)]
    return f"n = {', '.join(map(str, first))}, ..."


def summary(verdict: EveryN, periodic: Periodic | PeriodicProgram) -> RenderableType:
    """Return the verdict with the kernel that it rests on, or where a rule is broken first."""
    if not verdict.valid:
        lines: list[RenderableType] = [
            Text(f"not valid for every {numbers(verdict)}: broken at n = {verdict.failing}", "bold")
        ]
        if verdict.cycle:
            lines.append(Text(f"these wait for each other in turn: {', '.join(verdict.cycle)}"))
        return Group(*lines, report.verdict(verdict.report, verdict.judged))
    arriving = ", under every transport" if isinstance(periodic, PeriodicProgram) else ""
    lines = [Text(f"valid for every {numbers(verdict)}{arriving}", "bold")]
    lines.append(
        Text(
            f"by induction: {verdict.unrolled} unrollings judged, n = {verdict.first} to "
            f"{verdict.first + (verdict.unrolled - 1) * verdict.period}, and no longer one can "
            "differ"
        )
    )
    lines.append(Text(f"kernel, {', '.join(map(str, periodic.step))} a repetition in each chain:"))
    for device, row in enumerate(periodic.kernel):
        lines.append(Text(f"  {device}  {' '.join(map(str, row))}", no_wrap=True, overflow="fold"))
    return Group(*lines)


def answer_of(verdict: EveryN) -> Json:
    """Return the object that ``--json`` prints."""
    return {
        "valid": verdict.valid,
        "first": verdict.first,
        "period": verdict.period,
        "unrolled": verdict.unrolled,
        "cycle": list(verdict.cycle),
        "failing": verdict.failing,
        "report": answers.of_report(verdict.report),
    }


def solved_summary(solved: Solved, verdict: EveryN) -> RenderableType:
    """Return what a search for every n has found and proven, with the verdict on it."""
    problem = solved.periodic.problem
    chains = len(problem.placement.chains)
    extra = problem.total_microbatches - chains * min(problem.microbatches)
    n = "n" if chains == 1 else f"(n - {extra}) / {chains}" if extra else f"n / {chains}"
    unit = f" {problem.time_unit}" if problem.time_unit else ""
    what = problem.objective.value
    first = solved.rounds * chains + extra
    lines = [
        Text(f"{solved.status.value}: from n = {first} on, {what} at most", "bold"),
        Text(f"  {_line(problem, solved.pace)}{unit}, with {n} rounds"),
        Text(f"and no schedule takes less than\n  {_line(problem, solved.bound)}{unit}"),
        Text(f"  {solved.bound.text}"),
        Text(f"gap for very many microbatches: {solved.gap:.2%}"),
    ]
    for step, ticks in solved.too_short:
        each = f"{step} microbatch{'es' if step > 1 else ''} of each chain"
        lines.append(
            Text(f"every kernel with {each} takes more than {problem.time(ticks)}{unit} to repeat")
        )
    return Group(*lines, "", summary(verdict, solved.periodic))


def solved_answer(solved: Solved, verdict: EveryN) -> Json:
    """Return the object that ``solve --all-n --json`` prints, in the problem's unit."""
    periodic = solved.periodic
    problem = periodic.problem
    return {
        "status": solved.status.value,
        "minimized": problem.objective.value,
        "first": periodic.first,
        "period": periodic.period,
        "rounds_from": solved.rounds,
        "objective": _line_answer(problem, solved.pace),
        "bound": {
            **_line_answer(problem, solved.bound),
            "name": solved.bound.name,
            "device": solved.bound.device,
            "text": solved.bound.text,
        },
        "gap": solved.gap,
        "kernel": [list(map(str, row)) for row in periodic.kernel],
        "kernel_longer_than": {str(step): problem.time(ticks) for step, ticks in solved.too_short},
        "seconds": round(solved.seconds, 3),
        "source": periodic.source,
        "valid": verdict.valid,
        "unrolled": verdict.unrolled,
    }


def _line(problem: Problem, line: Line | Pace) -> str:
    unit = problem.cost.ticks_per_unit
    constant = line.constant / unit
    sign = "-" if constant < 0 else "+"
    return f"{in_words(line.per_round / unit)} x rounds {sign} {in_words(abs(constant))}"


def _line_answer(problem: Problem, line: Line | Pace) -> dict[str, Json]:
    unit = problem.cost.ticks_per_unit
    return {"per_round": float(line.per_round / unit), "constant": float(line.constant / unit)}
