"""How fast a periodic schedule is for every number of repetitions, and its starts for any.

Take starts with some repetitions in which the last copies of the kernel, more of them than any
wait reaches back or ahead, follow each other on all devices after the same period. Then one more
copy can be put in behind the first of those, one period later, all that follows being one period
later, too: each wait is between ops that are as far apart as two ops were before, or farther. So
each repetition from there on adds one period to the objective, at most.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from bubbleproof.schedules.dependencies import inputs, output
from bubbleproof.schedules.ops import Op, Row, ops_of
from bubbleproof.schedules.periodic import Periodic, moved, repeated
from bubbleproof.schedules.problem import Objective
from bubbleproof.schedules.schedule import Schedule, Starts
from bubbleproof.schedules.simulate import earliest_starts
from bubbleproof.solver.retime import least_span_starts, objective_of

_MOST_FOLDS = 4
_MOST_REPETITIONS = 128


@dataclass(frozen=True, slots=True)
class Pace:
    """A periodic schedule with its times.

    Parameters
    ----------
    periodic
        The schedule.
    repetitions
        From how many on the times are known.
    starts
        Starts with so many repetitions, in ticks.
    first
        From which copy of the kernel on the copies follow each other after one period.
    period
        Ticks that each further repetition adds.
    objective
        The objective with so many repetitions, in ticks.
    """

    periodic: Periodic
    repetitions: int
    starts: Starts
    first: int
    period: int
    objective: int

    @property
    def rounds(self) -> int:
        """The least number of rounds, one microbatch of each chain, with known times."""
        return min(self.periodic.microbatches(self.repetitions))

    @property
    def per_round(self) -> Fraction:
        """Ticks that each further round adds."""
        return Fraction(self.period, self.periodic.step[0])

    @property
    def constant(self) -> Fraction:
        """Ticks beside those for each round."""
        return self.objective - self.rounds * self.per_round

    def unrolled(self, rounds: int) -> Schedule:
        """Return the schedule with its starts for a number of rounds.

        It has to be that of ``rounds``, or whole steps more.
        """
        more = (rounds - self.rounds) // self.periodic.step[0]
        schedule = repeated(self.periodic, self.repetitions + more)
        starts = tuple(
            tuple(_longer(self.periodic, device, begins, self.first, more, self.period))
            for device, begins in enumerate(self.starts)
        )
        return replace(schedule, starts=starts)


def _longer(
    periodic: Periodic, device: int, begins: Sequence[int], first: int, more: int, period: int
) -> Iterator[int]:
    """Yield a device's starts with more copies put in behind one."""
    length = len(periodic.kernel[device])
    end = len(periodic.prologue[device]) + (first + 1) * length
    yield from begins[:end]
    for copy in range(1, more + 1):
        yield from (begin + copy * period for begin in begins[end - length : end])
    yield from (begin + more * period for begin in begins[end:])


def pace_of(periodic: Periodic) -> Pace | None:
    """Return the pace of a periodic schedule, all ops as early as can be.

    None where its copies never settle. Where only every second, third or fourth copy repeats the
    times, so many become one kernel.

    Parameters
    ----------
    periodic
        A schedule that runs with any number of repetitions.
    """
    repetitions = _reach(periodic) + 3
    while repetitions <= max(_MOST_REPETITIONS, 4 * _reach(periodic)):
        schedule = repeated(periodic, repetitions)
        starts = earliest_starts(schedule.problem, schedule.rows)
        for fold in range(1, _MOST_FOLDS + 1):
            if repetitions % fold == 0:
                pace = _paced(folded(periodic, fold), repetitions // fold, starts)
                if pace is not None:
                    return pace
        # A multiple of 12 from here on, so that every fold divides it.
        repetitions = -(-2 * repetitions // 12) * 12
    return None


def retimed(pace: Pace, *, bound: int, deadline: float) -> Pace:
    """Return the pace with starts that make the span least, if they settle as well.

    Parameters
    ----------
    pace
        With all ops as early as can be.
    bound
        No objective with as many repetitions is smaller, in ticks.
    deadline
        ``time.monotonic()`` at which better starts are no longer looked for.
    """
    schedule = repeated(pace.periodic, pace.repetitions)
    if schedule.problem.objective is not Objective.SPAN or pace.objective <= bound:
        return pace
    starts = least_span_starts(schedule.problem, schedule.rows, bound=bound, deadline=deadline)
    better = _paced(pace.periodic, pace.repetitions, starts)
    return pace if better is None or better.period > pace.period else better


def _paced(periodic: Periodic, repetitions: int, starts: Starts) -> Pace | None:
    """Return the pace that starts show, None where they do not settle."""
    settled = _settled(periodic, starts, repetitions)
    if settled is None:
        return None
    first, period = settled
    problem = replace(periodic.problem, microbatches=periodic.microbatches(repetitions))
    objective = objective_of(problem, repeated(periodic, repetitions).rows, starts)
    return Pace(periodic, repetitions, starts, first, period, objective)


def folded(periodic: Periodic, copies: int) -> Periodic:
    """Return the schedule whose kernel is some copies of the given one."""
    if copies == 1:
        return periodic
    placement = periodic.problem.placement

    def again(row: Row, copy: int) -> Row:
        by = [copy * step for step in periodic.step]
        return tuple(moved(block, placement, by) for block in row)

    return replace(
        periodic,
        step=tuple(copies * step for step in periodic.step),
        kernel=tuple(
            tuple(block for copy in range(copies) for block in again(row, copy))
            for row in periodic.kernel
        ),
    )


def _reach(periodic: Periodic) -> int:
    """Return over how many copies a wait in the kernel reaches at most."""
    problem = periodic.problem
    # Within a chain microbatches count from 0, so those of chain 0 stand for all.
    copy_of: dict[Op, int] = {}
    for row in periodic.kernel:
        for op in (op for block in row for op in ops_of(block)):
            step = periodic.step[problem.placement.chain_of_stage[op.stage]]
            made = output(op)
            copy_of[replace(made, microbatch=op.microbatch % step)] = op.microbatch // step
    farthest = 1
    for row in periodic.kernel:
        for op in (op for block in row for op in ops_of(block)):
            step = periodic.step[problem.placement.chain_of_stage[op.stage]]
            for source, _ in inputs(problem, op):
                made = copy_of[replace(output(source), microbatch=op.microbatch % step)]
                farthest = max(farthest, abs(op.microbatch // step - made))
    return farthest


def _settled(periodic: Periodic, starts: Starts, repetitions: int) -> tuple[int, int] | None:
    """Return from which copy on all follow each other after one period, and the period.

    None if there are too few such copies.
    """
    periods: set[int] = set()
    first = 0
    for device, begins in enumerate(starts):
        length, base = len(periodic.kernel[device]), len(periodic.prologue[device])
        if not length:
            continue
        copies = [
            begins[base + copy * length : base + (copy + 1) * length] for copy in range(repetitions)
        ]
        steps = [
            {later - earlier for earlier, later in zip(*pair, strict=True)}
            for pair in pairwise(copies)
        ]
        if not steps:
            return None
        periods |= steps[-1]
        copy = repetitions - 1
        while copy and steps[copy - 1] == steps[-1]:
            copy -= 1
        first = max(first, copy)
    if len(periods) != 1 or repetitions - first <= _reach(periodic) + 1:
        return None
    return first, periods.pop()
