"""Very many microbatches: a short problem solved, and its kernel repeated.

Simplification: the search sees only schedules whose middle repeats; the bound is on all.
"""

from collections.abc import Callable
from dataclasses import replace
from time import monotonic

from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Bound, Schedule, Status
from bubbleproof.schedules.simulate import simulate
from bubbleproof.solver.kernels import Kernels, short_problem
from bubbleproof.solver.line_bound import least_line
from bubbleproof.solver.result import Progress, Result, Solve

LONG_OPS = 150_000
"""Problems with more ops are long, where a kernel can be repeated often in them."""

WRITING_S = 6e-6
"""Seconds that each op of the answer takes, as it is written out and timed."""

_SOLVING_SHARE = 0.5
_LOOKING_SHARE = 0.6


def is_long(problem: Problem) -> bool:
    """Whether a problem is better solved by repeating a kernel."""
    total = problem.total_microbatches
    short = short_problem(problem, rounds=min(problem.microbatches))
    return 3 * problem.stages * total > LONG_OPS and 2 * short.total_microbatches <= total


def solve_long(
    problem: Problem,
    proof: tuple[Bound, ...],
    solve: Solve,
    *,
    time_limit_s: float,
    workers: int,
    seed: int,
    deterministic: bool,
    on_progress: Callable[[Progress], None] | None,
) -> Result:
    """Return the best schedule that repeats a kernel, with what is proven of all schedules.

    Parameters
    ----------
    problem
        A feasible, long problem.
    proof
        Bounds on its objective, the strongest first.
    solve
        What solves the short problem.
    time_limit_s
        Wall time in seconds. Writing out the answer takes some 6 s for each million ops, however
        little time there is; else that is taken into account.
    workers, seed, deterministic, on_progress
        As for ``portfolio.solve``.
    """
    began = monotonic()
    ops = 3 * problem.stages * problem.total_microbatches
    searching_s = max(0.2 * time_limit_s, time_limit_s - WRITING_S * ops)
    deadline = began + searching_s
    rounds = min(problem.microbatches)
    short = short_problem(problem, rounds=rounds)
    solved: list[Schedule] = []
    answer = solve(
        short,
        time_limit_s=_SOLVING_SHARE * searching_s,
        workers=workers,
        seed=seed,
        deterministic=deterministic,
        on_progress=lambda progress: solved.append(progress.schedule),
    )
    kernels = Kernels(short, rounds=rounds, line=least_line(short))
    finished = kernels.search(
        solved,
        deadline,
        interrupted=answer.interrupted,
        looking_share=_LOOKING_SHARE,
        workers=workers,
        seed=seed,
        deterministic=deterministic,
    )
    schedule = kernels.pace.unrolled(rounds)
    timeline = simulate(schedule)
    objective, bound = timeline.objective_ticks, proof[0].ticks
    schedule = replace(
        schedule,
        source=f"{schedule.source}, its kernel repeated",
        objective=objective,
        bound=bound,
        status=Status.OPTIMAL if objective == bound else Status.FEASIBLE,
        proof=proof,
    )
    seconds = monotonic() - began
    if on_progress is not None:
        on_progress(Progress(schedule=schedule, seconds=seconds))
    return Result(
        timeline=replace(timeline, schedule=schedule),
        seconds=seconds,
        interrupted=not finished,
        cut=answer.cut,
    )
