"""Solve a problem for every number of microbatches at once.

Time and bound are lines: so much for each round, one microbatch of each chain, and a constant. A
schedule is *optimal* where they are the same line; then none is faster for any number.
"""

import os
from dataclasses import dataclass
from time import monotonic

from bubbleproof.schedules.periodic import Periodic
from bubbleproof.schedules.problem import Problem, require_problem
from bubbleproof.schedules.schedule import Schedule, Status
from bubbleproof.solver.kernels import Kernels, short_problem
from bubbleproof.solver.line_bound import Line, least_line
from bubbleproof.solver.pace import Pace
from bubbleproof.solver.portfolio import MOST_WORKERS, solve

_SOLVING_SHARE = 0.4
_LOOKING_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class EveryN:
    """A schedule for every number of microbatches and what is proven of all of them.

    Parameters
    ----------
    pace
        The schedule and its times.
    bound
        What no schedule for as many microbatches stays below.
    too_short
        For a number of microbatches of each chain in a kernel: no kernel of as many repeats in this
        time or less, in ticks, as CP-SAT has found.
    seconds
        Wall time of the search.
    interrupted
        Whether Ctrl-C ended the search.
    cut
        As that of a ``Result``.
    """

    pace: Pace
    bound: Line
    too_short: tuple[tuple[int, int], ...]
    seconds: float
    interrupted: bool = False
    cut: bool | None = None

    @property
    def periodic(self) -> Periodic:
        """The schedule."""
        return self.pace.periodic

    @property
    def rounds(self) -> int:
        """The least number of rounds from which on both time and bound hold."""
        step = self.periodic.step[0]
        short = max(0, self.bound.first - self.pace.rounds)
        return self.pace.rounds + -(-short // step) * step

    @property
    def gap(self) -> float:
        """(time - bound) / time of a further round, which is that of very many."""
        each = self.pace.per_round
        return float(1 - self.bound.per_round / each) if each else 0.0

    @property
    def status(self) -> Status:
        """``optimal`` only where time and bound are the same for every number."""
        time = self.pace.per_round, self.pace.constant
        same = time == (self.bound.per_round, self.bound.constant)
        return Status.OPTIMAL if same else Status.FEASIBLE


def solve_every_n(
    problem: Problem,
    *,
    time_limit_s: float = 60.0,
    workers: int | None = None,
    seed: int = 0,
    deterministic: bool = False,
) -> EveryN:
    """Find a prologue, a kernel and an epilogue that serve every number of microbatches.

    Parameters
    ----------
    problem
        The problem; of its microbatches only what one chain has more than another matters.
    time_limit_s
        Wall time in seconds.
    workers, seed, deterministic
        As for ``solve``.

    Raises
    ------
    NoScheduleError
        If no schedule keeps the memory limits.
    ValueError
        If the time limit or the number of workers makes no sense.
    """
    require_problem(problem)
    began = monotonic()
    deadline = began + time_limit_s
    short = short_problem(problem)
    solved: list[Schedule] = []
    answer = solve(
        short,
        time_limit_s=_SOLVING_SHARE * time_limit_s,
        workers=workers,
        seed=seed,
        deterministic=deterministic,
        on_progress=lambda progress: solved.append(progress.schedule),
    )
    line = least_line(short)
    kernels = Kernels(short, rounds=None, line=line)
    finished = kernels.search(
        solved,
        deadline,
        interrupted=answer.interrupted,
        looking_share=_LOOKING_SHARE,
        workers=workers or min(MOST_WORKERS, os.cpu_count() or 1),
        seed=seed,
        deterministic=deterministic,
    )
    return EveryN(
        pace=kernels.pace,
        bound=line,
        too_short=tuple(sorted(kernels.too_short.items())),
        seconds=monotonic() - began,
        interrupted=not finished,
        cut=answer.cut,
    )
