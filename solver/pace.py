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

    def unrolled(self, repetitions: int) -> Schedule:
        """Return the schedule with its starts for a number of repetitions not below the first."""
        schedule = repeated(self.periodic, repetitions)
        more = repetitions - self.repetitions
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


def pace_of(periodic: Periodic, deadline: float) -> Pace | None:
    """Return the pace of a periodic schedule; None where its copies never settle.

    Where only every second, third or fourth copy repeats the times, so many become one kernel.

    Parameters
    ----------
    periodic
        A schedule that runs and keeps its limits with any number of repetitions.
    deadline
        ``time.monotonic()`` at which better starts for the span are no longer looked for.
    """
    reach = _reach(periodic) + 1
    repetitions = reach + 2
    while repetitions <= max(_MOST_REPETITIONS, 4 * reach):
        schedule = repeated(periodic, repetitions)
        problem = schedule.problem
        starts = earliest_starts(problem, schedule.rows)
        attempts = [starts]
        if problem.objective is Objective.SPAN:
            attempts.insert(
                0, least_span_starts(problem, schedule.rows, bound=0, deadline=deadline)
            )
        for attempt in attempts:
            for fold in range(1, min(_MOST_FOLDS, repetitions - 1) + 1):
                settled = _settled(periodic, attempt, repetitions, reach, fold)
                if settled is not None:
                    first, period = settled
                    times, rest = divmod(repetitions, fold)
                    if fold > 1 and rest:
                        continue
                    return Pace(
                        periodic=folded(periodic, fold),
                        repetitions=times,
                        starts=attempt,
                        first=first // fold,
                        period=period,
                        objective=objective_of(problem, schedule.rows, attempt),
                    )
        repetitions *= 2
    return None


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


def _settled(
    periodic: Periodic, starts: Starts, repetitions: int, reach: int, fold: int
) -> tuple[int, int] | None:
    """Return from which copy on copies repeat the times of those a fold before, and the ticks.

    None if there are too few such copies.
    """
    periods: set[int] = set()
    first = 0
    for device, begins in enumerate(starts):
        length = len(periodic.kernel[device])
        base = len(periodic.prologue[device])
        copies = [
            begins[base + copy * length : base + (copy + 1) * length] for copy in range(repetitions)
        ]
        if not length:
            continue
        period = copies[-1][0] - copies[-1 - fold][0]
        periods.add(period)
        copy = repetitions - 1
        while copy >= fold and all(
            later - earlier == period
            for later, earlier in zip(copies[copy], copies[copy - fold], strict=True)
        ):
            copy -= 1
        first = max(first, copy - fold + 1)
    first = -(-first // fold) * fold
    if len(periods) != 1 or repetitions - first < max(2 * fold, reach + fold):
        return None
    return first, periods.pop()
