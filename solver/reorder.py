"""Search among the orders themselves: simulated annealing with moves of whole runs.

A move shifts one op in its device's row, or the same op of a run of consecutive microbatches, by
a few places, on one device or on several neighbours at once. A device's order alone decides its
memory, and one longest-path pass decides all times, so a move is judged in a few microseconds per
hundred ops.
"""
# pyright: basic
# numba compiles these functions and has no types of its own.

from collections.abc import Iterator, Sequence

import numpy as np

from bubbleproof.schedules.ops import Op, Row
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.solver.annealing import accepted, longest_part, rounds
from bubbleproof.solver.compiled import compiled
from bubbleproof.solver.dispatch import (
    FORWARD,
    KINDS,
    WEIGHT,
    Ints,
    compile_problem,
    copy_into,
    decode,
    score,
)

_OPS_PER_ROUND = 8_000_000
_HEATS = (0.05, 0.5, 0.01, 0.2)


def reordered(
    problem: Problem, rows: Sequence[Row], *, workers: int, seed: int, target: int
) -> Iterator[tuple[Row, ...]]:
    """Yield better and better orders, or none after a round without progress, for ever.

    Parameters
    ----------
    problem
        A feasible problem.
    rows
        A valid order without pairs, each stage and kind in the order of the microbatches.
    workers, seed, target
        As for ``tune.tuned``.
    """
    arrays = compile_problem(problem)
    span = problem.objective is Objective.SPAN
    steps = max(50, _OPS_PER_ROUND // sum(map(len, rows)))

    def anneal(start: Ints, run_seed: int, heat: float) -> tuple[int, Ints]:
        order = start.copy()
        return int(_anneal(arrays, order, span, steps, heat, run_seed, target)), order

    scale = longest_part(problem)
    for order in rounds(
        encode(problem, rows),
        anneal,
        rank=lambda order: order.ravel().tolist(),
        heats=[scale * heat for heat in _HEATS],
        workers=workers,
        seed=seed,
    ):
        yield () if order is None else decode(problem, order)


def encode(problem: Problem, rows: Sequence[Row]) -> Ints:
    """Return rows without pairs as ``dispatch`` writes them."""
    most = max(problem.microbatches)
    first = [problem.microbatches_of_stage(stage).start for stage in range(problem.stages)]
    order = np.full((len(rows), max(map(len, rows))), -1, np.int64)
    for device, row in enumerate(rows):
        for position, op in enumerate(row):
            if not isinstance(op, Op):
                raise ValueError(f"{op}: an order without pairs is needed")
            place = KINDS.index(op.kind) * problem.stages + op.stage
            order[device, position] = place * most + op.microbatch - first[op.stage]
    return order


@compiled
def evaluate(problem, order, length, begin, end, ends):
    """Fill in the first start and last end of every device; False if the order cannot run.

    ``ends`` is [F or backward, stage, microbatch], filled with -1 for what has not run.
    """
    previous, following, device_of = problem.previous, problem.following, problem.device
    duration = problem.duration
    forward_lag, backward_lag = problem.forward_lag, problem.backward_lag
    devices, stages = begin.size, device_of.size
    most = ends.shape[2]
    place = np.zeros(devices, np.int64)
    ends[:] = -1
    begin[:] = -1
    end[:] = 0
    stack = np.arange(devices)
    queued = np.ones(devices, np.bool_)
    height, done = devices, 0
    while height:
        height -= 1
        device = stack[height]
        queued[device] = False
        now = end[device]
        while place[device] < length[device]:
            code = order[device, place[device]]
            index = code % most
            kind, stage = code // most // stages, code // most % stages
            ready = now
            near, woken = -1, -1
            if kind == FORWARD:
                near = previous[stage]
                if near >= 0:
                    if ends[0, near, index] < 0:
                        break
                    ready = max(ready, ends[0, near, index] + forward_lag[stage])
                woken = following[stage]
            elif kind == WEIGHT:
                if ends[1, stage, index] < 0:
                    break
            else:
                if ends[0, stage, index] < 0:
                    break
                near = following[stage]
                if near >= 0:
                    if ends[1, near, index] < 0:
                        break
                    ready = max(ready, ends[1, near, index] + backward_lag[stage])
                woken = previous[stage]
            now = ready + duration[kind, stage]
            if begin[device] < 0:
                begin[device] = ready
            if kind != WEIGHT:
                ends[0 if kind == FORWARD else 1, stage, index] = now
                if woken >= 0:
                    other = device_of[woken]
                    if other != device and not queued[other]:
                        queued[other] = True
                        stack[height] = other
                        height += 1
            place[device] += 1
            done += 1
        end[device] = now
    return done == length.sum()


@compiled
def _anneal(problem, order, span, steps, heat, seed, target):
    """Anneal an order in place; it ends as the best seen. Return its objective."""
    np.random.seed(seed)
    devices, width = order.shape
    most = problem.microbatches.max()
    allocate, free, room = problem.allocate, problem.free, problem.room
    length = np.zeros(devices, np.int64)
    for device in range(devices):
        for place in range(width):
            if order[device, place] >= 0:
                length[device] = place + 1
    position = positions(problem, order, length)
    begin, end = np.zeros(devices, np.int64), np.zeros(devices, np.int64)
    ends = np.zeros((2, problem.device.size, most), np.int64)
    evaluate(problem, order, length, begin, end, ends)
    best, current = score(begin, end, span)
    champion, saved = order.copy(), order.copy()
    touched = np.zeros(devices, np.int64)
    still = np.zeros((devices, 2), np.int64)
    for step in range(steps):
        if best <= target:
            break
        count, changed = perturb(problem, order, length, still, position, saved, touched)
        valid = changed
        for place in range(count):
            device = touched[place]
            valid = valid and _fits(
                order, device, length[device], allocate, free, room[device], most
            )
        if valid and evaluate(problem, order, length, begin, end, ends):
            objective, value = score(begin, end, span)
            if accepted(value, current, heat * (1 - step / steps)):
                current = value
                if objective < best:
                    best = objective
                    copy_into(order, champion)
                continue
        take_back(order, length, position, saved, touched, count)
    copy_into(champion, order)
    return best


@compiled
def positions(problem, order, length):
    """Return for each op where in its row it is; -1 for those that are in none."""
    position = np.full(4 * problem.device.size * problem.microbatches.max(), -1, np.int64)
    for device in range(order.shape[0]):
        for place in range(length[device]):
            position[order[device, place]] = place
    return position


@compiled
def perturb(problem, order, length, still, position, saved, touched):
    """Shift an op, or the same op of a run of microbatches, on one stage or several in a row.

    Return how many devices it touched, which are then in ``touched`` with their rows of before in
    ``saved``, and whether anything moved. ``position`` says for each op where in its row it is;
    what lies between the two positions of ``still`` does not move and is not passed.
    """
    stages, most = problem.device.size, problem.microbatches.max()
    devices, device_of = order.shape[0], problem.device
    device = np.random.randint(devices)
    if length[device] == 0:
        return 0, False
    code = order[device, np.random.randint(length[device])]
    kind, stage, index = code // most // stages, code // most % stages, code % most
    distance = 1 + int(np.random.random() ** 2 * 8)
    if np.random.random() < 0.5:
        distance = -distance
    until, how_many = index + 1, np.random.random()
    if how_many > 0.7:
        until = problem.microbatches[stage]
    elif how_many > 0.4:
        until += np.random.randint(problem.microbatches[stage] - index)
    neighbours = np.random.randint(devices) if np.random.random() < 0.25 else 0

    count, changed = 0, False
    for other in range(stage, min(stages, stage + neighbours + 1)):
        device = device_of[other]
        for place in range(count):
            if touched[place] == device:
                return count, changed
        touched[count] = device
        count += 1
        for place in range(length[device]):
            saved[device, place] = order[device, place]
        until_here = min(until, problem.microbatches[other])
        for step_in_run in range(index, until_here):
            run = step_in_run if distance < 0 else until_here - 1 - (step_in_run - index)
            moved = (kind * stages + other) * most + run
            if position[moved] >= 0:
                changed |= _shift(
                    order, device, length, still, position, moved, distance, stages, most
                )
    return count, changed


@compiled
def take_back(order, length, position, saved, touched, count):
    """Undo a move."""
    for place in range(count):
        device = touched[place]
        for back in range(length[device]):
            order[device, back] = saved[device, back]
            position[order[device, back]] = back


@compiled
def _shift(order, device, length, still, position, code, distance, stages, most):
    """Move an op in its row, up to the next op that it has to stay behind or ahead of."""
    kind, stage, index = code // most // stages, code // most % stages, code % most
    here = position[code]
    low, high = 0, length[device]
    if here < still[device, 0]:
        high = still[device, 0]
    elif here >= still[device, 1]:
        low = still[device, 1]
    else:
        return False
    there = max(low, min(high - 1, here + distance))
    step = 1 if there > here else -1
    while here != there:
        near = order[device, here + step]
        near_kind, near_stage, near_index = (
            near // most // stages,
            near // most % stages,
            near % most,
        )
        if near_stage == stage and (near_kind == kind or near_index == index):
            break
        order[device, here], position[near] = near, here
        here += step
    moved = position[code] != here
    order[device, here], position[code] = code, here
    return moved


@compiled
def _fits(order, device, length, allocate, free, room, most):
    stages = allocate.shape[1]
    held = 0
    for place in range(length):
        op = order[device, place] // most
        kind, stage = op // stages, op % stages
        held += allocate[kind, stage]
        if held > room:
            return False
        held -= free[kind, stage]
    return True
