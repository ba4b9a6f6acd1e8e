"""Solve a problem: the list of all ways to a schedule and a bound, in one time limit."""

import os
from collections.abc import Callable
from dataclasses import replace
from time import monotonic

from bubbleproof.schedules.problem import Problem, require_problem
from bubbleproof.schedules.schedule import Bound, Schedule
from bubbleproof.solver.bounding import start_bounds, start_states
from bubbleproof.solver.bounds import bounds
from bubbleproof.solver.exact import (
    try_exact,
    try_mirrored,
    try_more_windows,
    try_small,
    try_windows,
)
from bubbleproof.solver.first import try_families, try_forms, try_lists, try_pairing
from bubbleproof.solver.incumbent import Incumbent
from bubbleproof.solver.limits import shortages, within_limits
from bubbleproof.solver.long import WRITING_S, is_long, solve_long
from bubbleproof.solver.orders import try_paired, try_tuned
from bubbleproof.solver.reproducible import solve_reproducibly
from bubbleproof.solver.result import NoScheduleError, Progress, Result
from bubbleproof.solver.search import Search

MOST_OPS = 4_000_000
"""Larger problems are refused: one look at all their ops would outlast most time limits."""

MOST_WORKERS = 8
"""Threads used where none are asked for: one per core, at most this many."""


def solve(
    problem: Problem,
    *,
    time_limit_s: float = 60.0,
    workers: int | None = None,
    seed: int = 0,
    start: Schedule | None = None,
    enough: int | None = None,
    deterministic: bool = False,
    asymmetric: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Find the best schedule for a problem and prove how far it can be from the best of all.

    There is always a schedule in the result, and it is never worse than a published family that
    fits the problem's limits (beyond 20,000 ops: that could be built in time). Ctrl-C ends the
    search early with the best so far.

    Parameters
    ----------
    problem
        The problem.
    time_limit_s
        Wall time in seconds; kept within 10 % + 2 s.
    workers
        Search threads; None: one per core, at most 8.
    seed
        For the search. Several workers may find different schedules of the same objective.
    start
        A valid schedule of the same problem, but for its limits, to be improved on.
    enough
        An objective in ticks with which the search may end.
    deterministic
        Whether work is counted in place of time, so that the same problem, limit and seed give the
        same schedule on every run: see ``reproducible``. One thread; ``start`` and ``enough`` are
        not used.
    asymmetric
        Whether to search among all orders with pairs from the start where a problem is its own
        mirror image. Else half of each order is searched first. Bounds hold for all orders.
    on_progress
        Called with each better schedule.

    Raises
    ------
    NoScheduleError
        If no schedule keeps the memory limits, with the device and the least limit that would do.
    ValueError
        If the time limit or the number of workers makes no sense, or ``start`` is for another
        problem or above the limits.
    """
    require_problem(problem)
    if start is not None:
        _require_start(problem, start)
    if not time_limit_s >= 0:
        raise ValueError(f"time_limit_s: {time_limit_s} is no time; give seconds, as 60")
    if workers is not None and workers < 1:
        raise ValueError(f"workers: {workers} is too few; at least 1 is needed")
    ops = 3 * problem.stages * problem.total_microbatches
    if ops > MOST_OPS:
        raise ValueError(
            f"microbatches: {problem.total_microbatches} on {problem.stages} stages is about {ops} "
            f"ops; up to {MOST_OPS} can be solved, and more microbatches only repeat the middle"
        )
    began = monotonic()
    _refuse_infeasible(problem)
    proof = _strongest_of_each(bounds(problem))
    threads = workers or min(MOST_WORKERS, os.cpu_count() or 1)
    if start is None and is_long(problem):
        return solve_long(
            problem,
            proof,
            solve,
            time_limit_s=time_limit_s,
            workers=threads,
            seed=seed,
            deterministic=deterministic,
            on_progress=on_progress,
        )
    if deterministic:
        return solve_reproducibly(
            problem, proof, time_limit_s=time_limit_s, seed=seed, on_progress=on_progress
        )
    writing_s = min(0.5 * time_limit_s, WRITING_S * ops)
    deadline = began + time_limit_s - writing_s
    found = Incumbent(problem, proof, began=began, on_progress=on_progress)
    search = Search(
        problem=problem,
        found=found,
        deadline=deadline,
        workers=threads,
        seed=seed,
        enough=0 if enough is None else enough,
        asymmetric=asymmetric,
        solver=solve,
    )
    try:
        if start is not None:
            found.offer(start.rows, start.source, start.starts)
        for step in _STEPS:
            step(search)
    except KeyboardInterrupt:
        return search.result(interrupted=True)
    else:
        return search.result(interrupted=False)
    finally:
        search.end()  # Where an error is raised, too.


_STEPS: tuple[Callable[[Search], None], ...] = (
    try_families,
    start_states,
    try_forms,
    try_lists,
    try_small,
    try_pairing,
    start_bounds,
    try_windows,
    try_mirrored,
    try_paired,
    try_more_windows,
    try_tuned,
    try_exact,
    Search.wait_for_bounds,
)
"""The ways to a better schedule or bound, in order; each ends at once where the best is proven."""


def _refuse_infeasible(problem: Problem) -> None:
    missing = shortages(problem)
    if not missing:
        return
    no_limits = replace(problem.memory, limit=(None,) * problem.devices)
    bound = bounds(replace(problem, memory=no_limits))[0]
    worst = max(missing, key=lambda shortage: shortage.least - shortage.limit)
    unit = f" {problem.memory.unit}" if problem.memory.unit else ""
    limit, least = problem.amount(worst.limit), problem.amount(worst.least)
    others = f" ({len(missing) - 1} more devices lack memory)" if len(missing) > 1 else ""
    raise NoScheduleError(
        f"infeasible: device {worst.device} cannot hold even one microbatch at a time within "
        f"memory.limit {limit}{unit}; the least limit that would do is {least}{unit}{others}",
        problem=problem,
        device=worst.device,
        limit=limit,
        least=least,
        bound=problem.time(bound.ticks),
    )


def _require_start(problem: Problem, start: Schedule) -> None:
    memory = replace(start.problem.memory, limit=problem.memory.limit)
    if memory != problem.memory or replace(problem, memory=start.problem.memory) != start.problem:
        raise ValueError("start: is for another problem; only the memory limits may differ")
    if not within_limits(problem, start.rows):
        raise ValueError("start: is above memory.limit; give a schedule that keeps it")


def _strongest_of_each(found: tuple[Bound, ...]) -> tuple[Bound, ...]:
    strongest: dict[str, Bound] = {}
    for bound in found:
        strongest.setdefault(bound.name, bound)
    return tuple(strongest.values())
