"""The best periodic schedule of a problem: found in what is solved, or cyclic from the start.

What a schedule of few microbatches repeats in its middle is a kernel with ramps as good as the
search among all schedules makes them. A cyclic schedule has the better pace where memory decides,
and may come with a proof that no kernel is faster.
"""

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from math import ceil
from time import monotonic

from bubbleproof.schedules.ops import Block, Op
from bubbleproof.schedules.periodic_search import periodic_of
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.simulate import DeadlockError
from bubbleproof.solver.cyclic import find_kernel
from bubbleproof.solver.limits import alone
from bubbleproof.solver.lines import Line
from bubbleproof.solver.pace import Pace, pace_of

MANY = 100
"""Rounds beyond the first ones for which a schedule is to be good where no number is asked for."""

_STEPS = (1, 2)
"""Microbatches of each chain in a cyclic schedule's period."""

_MOST_STEP = 4
"""Microbatches of each chain in a kernel that is found in a schedule."""


def short_problem(problem: Problem, *, rounds: int | None = None) -> Problem:
    """Return the problem with just as many rounds as a kernel needs to show.

    Parameters
    ----------
    problem
        Its chains keep what one has more than another.
    rounds
        The number of rounds that repetitions are to reach; then whole steps of 1 to 4 lead from
        the short problem to it, unless it is no longer than that anyway. None: any.
    """
    fewest = min(problem.microbatches)
    short = 4 * problem.devices + 4
    if rounds is not None:
        short = min(rounds, short + (rounds - short) % 12)
    return replace(
        problem, microbatches=tuple(number - fewest + short for number in problem.microbatches)
    )


class Kernels:
    """The best pace so far.

    Parameters
    ----------
    problem
        A short problem: see ``short_problem``.
    more
        For how many more rounds a schedule is to be good.
    line
        The bound for every number of rounds; what reaches it ends the search.
    """

    def __init__(self, problem: Problem, *, more: int, line: Line) -> None:
        self._problem, self._more, self._line = problem, more, line
        self.best: Pace | None = None
        self.none_below: dict[int, int] = {}
        """For a number of microbatches a period the ticks that no kernel of as many goes below."""

    @property
    def pace(self) -> Pace:
        """The best, once schedules were tried."""
        if self.best is None:
            raise AssertionError("one microbatch at a time has no kernel")
        return self.best

    @property
    def closed(self) -> bool:
        """Whether the best is as fast as the bound for every number of rounds."""
        return self.best is not None and (
            self.best.per_round == self._line.per_round
            and self.best.constant == self._line.constant
        )

    def try_schedules(self, schedules: Iterable[Schedule], deadline: float) -> None:
        """Look for what schedules of the short problem repeat, until a time.

        One microbatch at a time goes first: that repeats whatever the problem is.
        """
        for schedule in (_round_by_round(self._problem), *schedules):
            if self.closed or (self.best is not None and monotonic() > deadline):
                return
            self._try(schedule, deadline)

    def try_cyclic(self, deadline: float, *, workers: int, seed: int) -> None:
        """Look for cyclic schedules with a shorter period, and prove that there are none."""
        problem = self._problem
        for step in _STEPS:
            left = deadline - monotonic()
            if self.closed or left <= 0:
                return
            outcome = find_kernel(
                replace(problem, microbatches=(step,) * len(problem.microbatches)),
                most=None if self.best is None else ceil(self.best.per_round * step) - 1,
                time_limit_s=left if step == _STEPS[-1] else left / 2,
                workers=workers,
                seed=seed,
            )
            self.none_below[step] = outcome.least
            if outcome.kernel is not None:
                self._try(outcome.kernel.schedule(problem), deadline)

    def _try(self, schedule: Schedule, deadline: float) -> None:
        try:
            periodic = periodic_of(schedule, most_step=_MOST_STEP, deadline=deadline)
        except DeadlockError:
            return
        if periodic is None:
            return
        pace = pace_of(periodic, deadline)
        if pace is not None and (self.best is None or self._cost(pace) < self._cost(self.best)):
            self.best = pace

    def _cost(self, pace: Pace) -> Fraction:
        rounds = min(self._problem.microbatches) + self._more
        return pace.constant + pace.per_round * rounds


def _round_by_round(problem: Problem) -> Schedule:
    """Run one microbatch after the other, the chains in turn."""
    rows: list[list[Block]] = [[] for _ in range(problem.devices)]
    orders = [
        [alone(problem, device, chain) for device in range(problem.devices)]
        for chain in range(len(problem.microbatches))
    ]
    for index in range(max(problem.microbatches)):
        for chain, of_chain in enumerate(orders):
            if index < problem.microbatches[chain]:
                microbatch = problem.first_microbatch[chain] + index
                for row, order in zip(rows, of_chain, strict=True):
                    row.extend(Op(stage, kind, microbatch) for stage, kind in order)
    return Schedule(problem, tuple(map(tuple, rows)), source="one microbatch at a time")
