"""The best periodic schedule of a problem: found in what is solved, or cyclic from the start.

What a schedule of few microbatches repeats in its middle is a kernel with ramps as good as the
search among all schedules makes them. A cyclic schedule has the better pace where memory decides,
and may come with a proof that no kernel is faster.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import ceil, inf
from time import monotonic

from bubbleproof.schedules.ops import Op, Row
from bubbleproof.schedules.periodic import Periodic
from bubbleproof.schedules.periodic_search import periodic_of
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.simulate import DeadlockError
from bubbleproof.solver.background import run_together
from bubbleproof.solver.cyclic import find_kernel, greedy_kernel
from bubbleproof.solver.limits import alone
from bubbleproof.solver.line_bound import Line
from bubbleproof.solver.pace import Pace, pace_of, retimed

_MANY = 100
"""Rounds beyond the first ones for which a schedule is to be good where no number is asked for."""

_STEPS = (1, 2)
"""Microbatches of each chain in a cyclic schedule's period."""

_GREEDY_S = 1.0
"""Seconds that a greedy kernel may take in any case; mostly it takes a hundredth."""

_COUNTED = 3
"""Schedules that are looked at where time does not count."""

_LOOKING_S = 1e-4
"""Seconds for each op of a schedule that looking for what it repeats may take in any case."""

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
    rounds
        The number of rounds that a schedule is for; None: any.
    line
        The bound for every number of rounds; what reaches it ends the search.
    """

    def __init__(self, problem: Problem, *, rounds: int | None, line: Line) -> None:
        self._problem, self._rounds, self._line = problem, rounds, line
        self.best: Pace | None = None
        self.too_short: dict[int, int] = {}
        """For a number of microbatches a period the ticks that no kernel of as many repeats in."""

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

    def search(
        self,
        solved: Sequence[Schedule],
        deadline: float,
        *,
        interrupted: bool,
        looking_share: float,
        workers: int,
        seed: int,
        deterministic: bool,
    ) -> bool:
        """Look for kernels in what was solved, then cyclic ones; False where Ctrl-C has ended it.

        Parameters
        ----------
        solved
            Schedules of the short problem, the best last.
        deadline
            ``time.monotonic()`` at which to end, unless deterministic.
        interrupted
            Whether Ctrl-C came before; then only what has to be done is done.
        looking_share
            The share of the time that is for looking at what was solved.
        workers, seed
            For CP-SAT.
        deterministic
            Whether work is counted in place of time; there is no search for cyclic ones then.
        """
        try:
            if deterministic:
                self._try_all(solved)
                return not interrupted
            now = monotonic()
            looking_s = 0.0 if interrupted else looking_share * (deadline - now)
            self.try_schedules(reversed(solved), now + looking_s)
            if not interrupted:
                self._try_cyclic(deadline, workers=workers, seed=seed)
        except KeyboardInterrupt:
            return False
        return not interrupted

    def try_schedules(self, schedules: Iterable[Schedule], deadline: float) -> None:
        """Look for what schedules of the short problem repeat, until a time.

        One microbatch at a time goes first: that repeats whatever the problem is. The first of the
        schedules is looked at even if that takes a little longer.
        """
        self._try_greedy(deadline)
        for index, schedule in enumerate(schedules):
            now = monotonic()
            if self.closed or (index and now > deadline):
                return
            rows_s = _LOOKING_S * sum(map(len, schedule.rows))
            self._try(schedule, deadline if index else max(deadline, now + rows_s))

    def _try_all(self, schedules: Sequence[Schedule]) -> None:
        """Look for what the best few schedules, the last ones, repeat, however long it takes."""
        self._try_greedy(inf)
        for schedule in reversed(schedules[-_COUNTED:]):
            if not self.closed:
                self._try(schedule, inf)

    def _try_cyclic(self, deadline: float, *, workers: int, seed: int) -> None:
        """Look for cyclic schedules with a shorter period, and prove that there are none.

        In a thread of its own, so that Ctrl-C is heard.
        """
        run_together([partial(self._search_cyclic, deadline, workers=workers, seed=seed)])

    def _search_cyclic(self, deadline: float, *, workers: int, seed: int) -> None:
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
            if outcome.too_short > 0:
                self.too_short[step] = outcome.too_short
            if outcome.kernel is not None:
                self._take(outcome.kernel.periodic(problem), deadline)

    def _try_greedy(self, deadline: float) -> None:
        """Take what needs no search: one microbatch at a time, and greedy kernels."""
        self._take(_round_by_round(self._problem), deadline)
        for step in _STEPS:
            one_period = replace(
                self._problem, microbatches=(step,) * len(self._problem.microbatches)
            )
            greedy = greedy_kernel(one_period, deadline=max(deadline, monotonic() + _GREEDY_S))
            if greedy is not None:
                self._take(greedy.periodic(self._problem), deadline)

    def _try(self, schedule: Schedule, deadline: float) -> None:
        try:
            periodic = periodic_of(schedule, most_step=_MOST_STEP, deadline=deadline)
        except DeadlockError:
            return
        if periodic is not None:
            self._take(periodic, deadline)

    def _take(self, periodic: Periodic, deadline: float) -> None:
        pace = pace_of(periodic)
        if pace is None or not self._leads_to_rounds(pace):
            return
        if self.best is None or pace.per_round <= self.best.per_round:
            least = self._line.per_round * pace.rounds + self._line.constant
            pace = retimed(pace, bound=ceil(least), deadline=deadline)
        if self.best is None or self._cost(pace) < self._cost(self.best):
            self.best = pace

    def _leads_to_rounds(self, pace: Pace) -> bool:
        """Whether whole repetitions lead to the number of rounds that is asked for."""
        if self._rounds is None:
            return True
        more = self._rounds - pace.rounds
        return more >= 0 and more % pace.periodic.step[0] == 0

    def _cost(self, pace: Pace) -> Fraction:
        rounds = min(self._problem.microbatches) + _MANY if self._rounds is None else self._rounds
        return pace.constant + pace.per_round * rounds


def _round_by_round(problem: Problem) -> Periodic:
    """Run one microbatch after the other, the chains in turn; what one has more goes first."""
    fewest = min(problem.microbatches)
    base = replace(
        problem, microbatches=tuple(1 + number - fewest for number in problem.microbatches)
    )

    def row(device: int, numbers: Sequence[Sequence[int]]) -> Row:
        return tuple(
            Op(stage, kind, microbatch)
            for chain, of_chain in enumerate(numbers)
            for microbatch in of_chain
            for stage, kind in alone(problem, device, chain)
        )

    first = [range(number) for number in base.microbatches]
    following = [[number] for number in base.microbatches]
    devices = range(problem.devices)
    return Periodic(
        problem=base,
        step=(1,) * len(base.microbatches),
        prologue=tuple(row(device, first) for device in devices),
        kernel=tuple(row(device, following) for device in devices),
        epilogue=((),) * problem.devices,
        source="one microbatch at a time",
    )
