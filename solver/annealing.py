"""Rounds of annealing: some runs at once, each round from the best order so far."""
# pyright: basic
# numba compiles what is compiled here and has no types of its own.

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from bubbleproof.schedules.problem import Problem
from bubbleproof.solver.background import run_together
from bubbleproof.solver.compiled import compiled

T = TypeVar("T")


def rounds(
    start: T,
    anneal: Callable[[T, int, float], tuple[int, T]],
    *,
    rank: Callable[[T], list[int]],
    heats: Sequence[float],
    workers: int,
    seed: int,
) -> Iterator[T | None]:
    """Yield better and better answers, or None after a round without progress, for ever.

    Parameters
    ----------
    start
        Where the first round starts.
    anneal
        Anneals a copy, with a seed and a heat; returns what it came to, and its objective.
    rank
        Decides between answers of one objective, so that it does not matter which run ended first.
    heats
        What runs start with, in turn, in ticks.
    workers
        Runs at once.
    seed
        For all randomness.
    """
    rng = np.random.default_rng(seed)
    best: int | None = None
    turn = 0

    def run(run_seed: int, heat: float) -> None:
        results.append(anneal(start, run_seed, heat))

    while True:
        results: list[tuple[int, T]] = []
        runs: list[partial[None]] = []
        for _ in range(workers):
            runs.append(partial(run, int(rng.integers(2**31)), heats[turn % len(heats)]))
            turn += 1
        run_together(runs)
        objective, found = min(results, key=lambda result: (result[0], rank(result[1])))
        improved = best is None or objective < best
        if best is None or objective <= best:
            best, start = objective, found
        yield found if improved else None


def longest_part(problem: Problem) -> int:
    """Return the longest F or I, in ticks: what heats are measured by."""
    return max(1, *problem.cost.F, *problem.cost.I)


@compiled
def accepted(value, current, heat):
    """Whether annealing goes on from a value: a worse one the oftener, the hotter it is."""
    return value <= current or np.random.random() < np.exp((current - value) / (heat + 1e-9))
