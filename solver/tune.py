"""Search for the rules with which compiled list scheduling gives the best schedule.

Few numbers per stage decide the whole schedule, so one change moves whole runs of microbatches,
and the search does not grow with their number. Simulated annealing from the policies of
``construct``, in rounds: each round anneals several sets of rules at once, the next round starts
from the best of all so far or from a new policy. The same seed and workers give the same rounds.
"""
# pyright: basic
# numba compiles the inner loop and has no types of its own.

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from threading import Thread

import numba
import numpy as np

from bubbleproof.schedules.ops import OpKind, Row
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.solver.dispatch import (
    Compiled,
    Rules,
    compile_problem,
    decode,
    dispatch,
    order_buffer,
)
from bubbleproof.solver.times import LeastTimes

_STEPS_PER_ROUND = 4_000_000
"""Ops dispatched in one annealing run: a fraction of a second."""
_ELITE = 4
_IDLE_WEIGHT = 0.3
"""How much the mean over devices counts beside the largest, so that small gains show."""


@dataclass(frozen=True, slots=True)
class Found:
    """The rules with which a round ended best, and their objective in ticks."""

    objective: int
    rules: Rules


def tuned(problem: Problem, *, workers: int, seed: int, target: int) -> Iterator[tuple[Row, ...]]:
    """Yield better and better orders, or none after a round without progress, for ever.

    Parameters
    ----------
    problem
        A feasible problem.
    workers
        Annealing runs at once.
    seed
        For all randomness.
    target
        The objective in ticks at which a run may stop.
    """
    compiled = compile_problem(problem)
    span = problem.objective is Objective.SPAN
    ops = int(3 * compiled.microbatches.sum())
    steps = max(20, _STEPS_PER_ROUND // ops)
    starts = list(_first_rules(problem))
    elite: list[Found] = []
    best: int | None = None
    scale = max(1, max(map(max, (problem.cost.F, problem.cost.I))))
    free = problem.backward.value == "free"
    rng = np.random.default_rng(seed)
    turn = 0

    def anneal(rules: Rules, run_seed: int, heat: float) -> None:
        order = order_buffer(compiled)
        objective = _anneal(
            compiled, rules, order, span, free, steps, heat, scale, run_seed, target
        )
        if objective >= 0:
            elite.append(Found(int(objective), rules))

    while True:
        runs: list[Thread] = []
        for _ in range(workers):
            fresh = turn < len(starts) or turn % 3 == 0 or not elite
            base = starts[turn % len(starts)] if fresh else elite[rng.integers(len(elite))].rules
            rules = _copy(base)
            heat = scale * (2.0, 0.2, 0.5)[turn % 3]
            # Daemons, so that a program that ends does not wait for a compilation.
            arguments = (rules, int(rng.integers(2**31)), heat)
            runs.append(Thread(target=anneal, args=arguments, daemon=True))
            turn += 1
        for run in runs:
            run.start()
        for run in runs:
            run.join()
        elite.sort(key=lambda found: (found.objective, found.rules.in_flight.tolist()))
        del elite[_ELITE:]
        if elite and (best is None or elite[0].objective < best):
            best = elite[0].objective
            yield _rows(problem, compiled, elite[0].rules)
        else:
            yield ()


def _rows(problem: Problem, compiled: Compiled, rules: Rules) -> tuple[Row, ...]:
    order = order_buffer(compiled)
    edges = np.zeros((2, problem.devices), np.int64)
    dispatch(compiled, rules, order, edges[0], edges[1])
    return decode(problem, order)


def _first_rules(problem: Problem) -> Iterator[Rules]:
    """Yield the rules of the plain policies: how far ahead, and who goes first."""
    times = LeastTimes(problem)
    stages, devices = problem.stages, problem.devices
    held = problem.placement.stages_of_device
    period = max(sum(times.forward[s] + times.backward[s] for s in on_device) for on_device in held)
    most = max(problem.microbatches)
    position = np.zeros(stages)
    for chain in problem.placement.chains:
        position[list(chain)] = np.arange(len(chain)) / len(chain)
    later = np.array(
        [
            max(
                (problem.memory.F[t][0] for t in held[device] if position[t] > position[s]),
                default=0,
            )
            for s, device in enumerate(problem.placement.device_of_stage)
        ],
        np.int64,
    )
    fused = not problem.backward.allows(OpKind.BACKWARD_INPUT)
    for backward_first in (0.5, -0.5):
        for ahead in (1.0, None, 1.5, 2.0):
            in_flight = [
                most
                if ahead is None or not period
                else max(1, ceil(ahead * times.turnaround(s) / period))
                for s in range(stages)
            ]
            yield Rules(
                in_flight=np.array(in_flight, np.int64),
                reserve=later.copy(),
                forward_first=position.copy(),
                backward_first=position + backward_first,
                backlog=np.full(devices, stages * most + 1, np.int64),
                gap=np.ones(devices),
                patience=np.zeros(devices, np.int64),
                fused=np.full(stages, fused),
            )


@numba.njit(cache=True, nogil=True)
def _anneal(problem, rules, order, span, free, steps, heat, scale, seed, target):
    """Anneal rules in place; they end as the best seen. Return their objective; -1 for none."""
    np.random.seed(seed)
    devices, stages = problem.room.size, problem.device.size
    most = problem.microbatches.max()
    grain = max(1, problem.allocate[0].max())
    begin, end = np.zeros(devices, np.int64), np.zeros(devices, np.int64)
    best, current = -1, np.inf
    if dispatch(problem, rules, order, begin, end):
        best, current = _score(begin, end, span)
    kept, champion = _copy(rules), _copy(rules)
    for step in range(steps):
        if 0 <= best <= target:
            break
        _assign(kept, rules)
        for _ in range(1 + (np.random.random() < 0.3)):
            _mutate(rules, devices, stages, most, grain, scale, free)
        if dispatch(problem, rules, order, begin, end):
            objective, score = _score(begin, end, span)
            cooled = heat * (1 - step / steps) + 1e-9
            if score <= current or np.random.random() < np.exp((current - score) / cooled):
                current = score
                if best < 0 or objective < best:
                    best = objective
                    _assign(champion, rules)
                continue
        _assign(rules, kept)
    _assign(rules, champion)
    return best


@numba.njit(cache=True, nogil=True)
def _score(begin, end, span):
    """Return the objective, and what annealing minimizes: also a share of the mean."""
    largest, total = 0, 0
    for device in range(begin.size):
        value = end[device]
        if span and begin[device] >= 0:
            value -= begin[device]
        largest = max(largest, value)
        total += value
    return largest, largest + _IDLE_WEIGHT * total / begin.size


@numba.njit(cache=True, nogil=True)
def _mutate(rules, devices, stages, most, grain, scale, free):
    """Change one kind of rule on one stage or device, a run of them, or all."""
    kind = np.random.randint(8 if free else 7)
    size = stages if kind in (0, 1, 2, 3, 7) else devices
    first, last = 0, size
    spread = np.random.random()
    if spread < 0.9:
        first = np.random.randint(size)
        last = first + 1 if spread < 0.6 else first + 1 + np.random.randint(size - first)
    step = 1 if np.random.random() < 0.5 else -1
    if np.random.random() < 0.2:
        step *= 2
    value = np.random.random()
    for place in range(first, last):
        if kind == 0:
            rules.in_flight[place] = max(1, min(most, rules.in_flight[place] + step))
        elif kind == 1:
            rules.reserve[place] = max(0, rules.reserve[place] + step * grain)
        elif kind == 2:
            rules.forward_first[place] = value
        elif kind == 3:
            rules.backward_first[place] = value + 0.2
        elif kind == 4:
            rules.backlog[place] = max(1, min(most + 1, rules.backlog[place] + step))
        elif kind == 5:
            rules.gap[place] = 1.5 * value if value > 0.1 else 0.0
        elif kind == 6:
            rules.patience[place] = 0 if value < 0.4 else int(2 * value * scale)
        else:
            rules.fused[place] = value < 0.5


@numba.njit(cache=True, nogil=True)
def _copy(rules):
    return Rules(
        rules.in_flight.copy(),
        rules.reserve.copy(),
        rules.forward_first.copy(),
        rules.backward_first.copy(),
        rules.backlog.copy(),
        rules.gap.copy(),
        rules.patience.copy(),
        rules.fused.copy(),
    )


@numba.njit(cache=True, nogil=True)
def _assign(target, source):
    target.in_flight[:] = source.in_flight
    target.reserve[:] = source.reserve
    target.forward_first[:] = source.forward_first
    target.backward_first[:] = source.backward_first
    target.backlog[:] = source.backlog
    target.gap[:] = source.gap
    target.patience[:] = source.patience
    target.fused[:] = source.fused
