"""The objective of given starts, and starts that make the span of an order least."""

from collections.abc import Sequence
from time import monotonic

from bubbleproof.schedules.ops import Row
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Starts
from bubbleproof.schedules.simulate import earliest_starts

_PASSES = 20


def objective_of(problem: Problem, rows: Sequence[Row], starts: Starts) -> int:
    """Return the makespan or the span that starts give an order, in ticks."""
    if problem.objective is Objective.SPAN:
        return _span(problem, rows, starts)
    return max(_ends(problem, rows, starts), default=0)


def least_span_starts(
    problem: Problem, rows: Sequence[Row], *, bound: int, deadline: float
) -> Starts:
    """Return starts for an order with a span that is as small as was found.

    Earliest starts have the least makespan, but for the span some devices may better start
    later: one that ends at e may as well start at e minus the span aimed for. That is repeated
    until it settles, for spans between the bound and that of the earliest starts.

    Parameters
    ----------
    problem, rows
        An order that can run.
    bound
        No span is smaller, in ticks.
    deadline
        ``time.monotonic()`` at which to return the best so far.
    """
    earliest = starts = earliest_starts(problem, rows)
    best = _span(problem, rows, starts)
    least = bound - 1
    while best > least + 1 and monotonic() < deadline:
        aim = (least + best) // 2
        settled = _within(problem, rows, earliest, aim)
        if settled is None:
            least = aim
        else:
            starts, best = settled, _span(problem, rows, settled)
    return starts


def _within(problem: Problem, rows: Sequence[Row], earliest: Starts, span: int) -> Starts | None:
    """Return starts with at most this span; None if they do not settle."""
    starts = earliest
    for _ in range(_PASSES):
        release = [
            max(begins[0], end - span) if begins else 0
            for begins, end in zip(starts, _ends(problem, rows, starts), strict=True)
        ]
        if all(not begins or begins[0] == at for begins, at in zip(starts, release, strict=True)):
            return starts
        starts = earliest_starts(problem, rows, release=release)
    return None


def _ends(problem: Problem, rows: Sequence[Row], starts: Starts) -> list[int]:
    return [
        begins[-1] + problem.duration(row[-1]) if row else 0
        for row, begins in zip(rows, starts, strict=True)
    ]


def _span(problem: Problem, rows: Sequence[Row], starts: Starts) -> int:
    ends = _ends(problem, rows, starts)
    return max(
        (end - begins[0] for end, begins in zip(ends, starts, strict=True) if begins), default=0
    )
