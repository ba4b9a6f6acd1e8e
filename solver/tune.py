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
from functools import partial

import numpy as np

from bubbleproof.schedules.ops import OpKind, Row
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.solver.annealing import accepted, longest_part
from bubbleproof.solver.background import run_together
from bubbleproof.solver.compiled import compiled
from bubbleproof.solver.construct import AHEAD, most_in_flight
from bubbleproof.solver.dispatch import (
    BACKLOG,
    BACKWARD_FIRST,
    COURTSHIP,
    FORWARD_FIRST,
    FUSED,
    GAP,
    IN_FLIGHT,
    PATIENCE,
    RESERVE,
    Compiled,
    Rules,
    compile_problem,
    copy_into,
    decode,
    dispatch,
    order_buffer,
    score,
)
from bubbleproof.solver.scale import may_pair

_OPS_PER_ROUND = 1_500_000
"""Ops dispatched in one annealing run: a fraction of a second."""
_ELITE = 4
_HEATS = (0.1, 0.01, 1.0, 0.02)
"""In units of the longest F or I: most runs climb, some wander."""


@dataclass(frozen=True, slots=True)
class Found:
    """The rules with which a round ended best, and their objective in ticks."""

    objective: int
    rules: Rules


def tuned(problem: Problem, *, workers: int, seed: int, target: int) -> Iterator[tuple[Row, ...]]:
    """Yield better and better orders, or none after a round without progress, for ever.

    The first is the best that the plain rules give.

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
    arrays = compile_problem(problem)
    span = problem.objective is Objective.SPAN
    ops = int(3 * arrays.microbatches.sum())
    steps = max(10, _OPS_PER_ROUND // ops)
    starts = list(first_rules(problem))
    plain = [(_objective(arrays, rules, span), rules) for rules in starts]
    elite = [Found(objective, rules) for objective, rules in plain if objective is not None]
    elite.sort(key=lambda found: found.objective)
    best = elite[0].objective if elite else None
    if elite:
        yield _rows(problem, arrays, elite[0].rules)
    scale = longest_part(problem)
    free = problem.backward.value == "free"
    rng = np.random.default_rng(seed)
    turn = 0

    def anneal(rules: Rules, run_seed: int, heat: float) -> None:
        order = order_buffer(arrays)
        objective = _anneal(arrays, rules, order, span, free, steps, heat, scale, run_seed, target)
        if objective >= 0:
            elite.append(Found(int(objective), rules))

    while True:
        runs: list[partial[None]] = []
        for _ in range(workers):
            fresh = turn < len(starts) or turn % 3 == 0 or not elite
            base = starts[turn % len(starts)] if fresh else elite[rng.integers(len(elite))].rules
            rules = Rules(base.stage.copy(), base.device.copy())
            heat = scale * _HEATS[turn % len(_HEATS)]
            runs.append(partial(anneal, rules, int(rng.integers(2**31)), heat))
            turn += 1
        run_together(runs)
        elite.sort(key=lambda found: (found.objective, found.rules.stage.tolist()))
        del elite[_ELITE:]
        if elite and (best is None or elite[0].objective < best):
            best = elite[0].objective
            yield _rows(problem, arrays, elite[0].rules)
        else:
            yield ()


def _objective(arrays: Compiled, rules: Rules, span: bool) -> int | None:
    begin, end = np.zeros((2, len(arrays.room)), np.int64)
    if not dispatch(arrays, rules, order_buffer(arrays), begin, end):
        return None
    return int(score(begin, end, span)[0])


def _rows(problem: Problem, arrays: Compiled, rules: Rules) -> tuple[Row, ...]:
    order = order_buffer(arrays)
    edges = np.zeros((2, problem.devices), np.int64)
    dispatch(arrays, rules, order, edges[0], edges[1])
    return decode(problem, order)


def first_rules(problem: Problem) -> Iterator[Rules]:
    """Yield the rules of the plain policies: how far ahead, and who goes first."""
    stages, devices = problem.stages, problem.devices
    held = problem.placement.stages_of_device
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
        for ahead in AHEAD:
            in_flight = [most if m is None else m for m in most_in_flight(problem, ahead)]
            stage = np.zeros((5, stages))
            stage[IN_FLIGHT], stage[RESERVE] = in_flight, later
            stage[FORWARD_FIRST], stage[BACKWARD_FIRST] = position, position + backward_first
            stage[FUSED] = fused
            device = np.zeros((4, devices))
            device[BACKLOG], device[GAP] = stages * most + 1, 1
            yield Rules(stage, device)
            if may_pair(problem):
                patient = device.copy()
                patient[COURTSHIP] = max(problem.cost.F)
                yield Rules(stage.copy(), patient)


@compiled
def _anneal(problem, rules, order, span, free, steps, heat, scale, seed, target):
    """Anneal rules in place; they end as the best seen. Return their objective; -1 for none."""
    np.random.seed(seed)
    devices, most = problem.room.size, problem.microbatches.max()
    grain = max(1, problem.allocate[0].max())
    pairs = problem.pair.max() >= 0
    begin, end = np.zeros(devices, np.int64), np.zeros(devices, np.int64)
    best, current = -1, np.inf
    if dispatch(problem, rules, order, begin, end):
        best, current = score(begin, end, span)
    stage, device = rules.stage, rules.device
    kept_stage, kept_device = stage.copy(), device.copy()
    best_stage, best_device = stage.copy(), device.copy()
    for step in range(steps):
        if 0 <= best <= target:
            break
        copy_into(stage, kept_stage)
        copy_into(device, kept_device)
        for _ in range(1 + (np.random.random() < 0.3)):
            _mutate(stage, device, most, grain, scale, free, pairs)
        if dispatch(problem, rules, order, begin, end):
            objective, value = score(begin, end, span)
            if accepted(value, current, heat * (1 - step / steps)):
                current = value
                if best < 0 or objective < best:
                    best = objective
                    copy_into(stage, best_stage)
                    copy_into(device, best_device)
                continue
        copy_into(kept_stage, stage)
        copy_into(kept_device, device)
    copy_into(best_stage, stage)
    copy_into(best_device, device)
    return best


@compiled
def _mutate(stage, device, most, grain, scale, free, pairs):
    """Change one kind of rule on one stage or device, a run of them, or all."""
    kind = np.random.randint(7 + free + pairs)
    if kind == 7 and not free:
        kind = 8
    rules, row = (stage, kind) if kind <= BACKWARD_FIRST else (device, kind - 4)
    if kind == 7:
        rules, row = stage, FUSED
    elif kind == 8:
        rules, row = device, COURTSHIP
    first, last = 0, rules.shape[1]
    spread = np.random.random()
    if spread < 0.9:
        first = np.random.randint(last)
        last = first + 1 if spread < 0.6 else first + 1 + np.random.randint(last - first)
    step = 1 if np.random.random() < 0.5 else -1
    if np.random.random() < 0.2:
        step *= 2
    value = np.random.random()
    for place in range(first, last):
        old = rules[row, place]
        if kind == IN_FLIGHT:
            new = max(1, min(most, old + step))
        elif kind == RESERVE:
            new = max(0, old + step * grain)
        elif kind == FORWARD_FIRST:
            new = value
        elif kind == BACKWARD_FIRST:
            new = value + 0.2
        elif kind == 4 + BACKLOG:
            new = max(1, min(most + 1, old + step))
        elif kind == 4 + GAP:
            new = 1.5 * value if value > 0.1 else 0.0
        elif kind == 4 + PATIENCE:
            new = 0 if value < 0.4 else int(2 * value * scale)
        elif kind == 8:
            new = -1 if value < 0.1 else int(2 * (value - 0.1) * scale)
        else:
            new = 1.0 if value < 0.5 else 0.0
        rules[row, place] = new
