"""Judge a schedule by every rule of SPEC.md."""

from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.quantity import Number, in_unit
from bubbleproof.schedules.schedule import Schedule, require_schedule
from bubbleproof.verify.causal import causal
from bubbleproof.verify.complete import complete
from bubbleproof.verify.memory import held, memory
from bubbleproof.verify.pair import pair
from bubbleproof.verify.placement import placement
from bubbleproof.verify.reading import Reading, read
from bubbleproof.verify.report import Report
from bubbleproof.verify.running import Run, run
from bubbleproof.verify.timing import exclusive, timing


def verify(schedule: Schedule, problem: Problem | None = None) -> Report:
    """Return the verdict on a schedule; whatever its rows and starts are, nothing is raised.

    Parameters
    ----------
    schedule
        The schedule. Its objective, bound, status and proof are not looked at.
    problem
        What the schedule is judged against; its own problem where None. The schedule's starts are
        ticks of its own problem and are brought to the other's unit.

    Returns
    -------
    Report
        All violations, rule by rule, and the numbers of the schedule: from its starts where they
        fit the rows, else from the earliest starts that the order allows.

    Raises
    ------
    TypeError
        If it is no schedule, with what was meant.
    """
    require_schedule(schedule)
    return judged(read(schedule, schedule.problem if problem is None else problem))


def judged(reading: Reading) -> Report:
    """Return the verdict on what a schedule or program computes."""
    outcome = run(reading)
    amounts = held(reading)
    makespan, span = _lengths(reading, outcome)
    grains_per_unit = reading.problem.memory.grains_per_unit
    return Report(
        violations=(
            *complete(reading),
            *placement(reading),
            *causal(reading, outcome),
            *timing(reading),
            *exclusive(reading),
            *memory(reading, amounts),
            *pair(reading),
        ),
        makespan=makespan,
        span=span,
        peak_memory=tuple(in_unit(each.peak, grains_per_unit) for each in amounts),
    )


def _lengths(reading: Reading, outcome: Run) -> tuple[Number | None, Number | None]:
    """Return makespan and span; None where an op waits for ever."""
    if outcome.starved or outcome.heads != list(reading.offsets[1:]):
        return None, None
    starts, ends = outcome.starts, outcome.ends
    if reading.starts is not None:
        starts = reading.starts
        ends = [start + ticks for start, ticks in zip(starts, reading.ticks, strict=True)]
    if not starts:
        return 0, 0
    bounds = zip(reading.offsets[:-1], reading.offsets[1:], strict=True)
    spans = [max(ends[a:b]) - min(starts[a:b]) for a, b in bounds if a < b]
    return reading.time(max(ends) - min(starts)), reading.time(max(spans))
