"""Orders of F's and I's alone, in which W's fill the gaps.

Nothing waits for a W but memory, so a device need not be told when to run one: it runs the oldest
that waits where the next F or I comes late enough, does not fit the memory without it, or too many
wait. That leaves a third of the ops out of a search, and a move of an F or an I takes the W's
along. Published orders that run each W at a fixed place gain at once: ZB-V with costs of 10/12/8
and a transfer of 1 loses 68, 148, 308 units of time on 8, 16, 32 devices, and with W's in the gaps
64, 144, 304.
"""
# pyright: basic
# numba compiles these functions and has no types of its own.

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleproof.schedules import families
from bubbleproof.schedules.ops import OpKind, Row, has_pairs
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.solver.annealing import accepted, longest_part, rounds
from bubbleproof.solver.compiled import compiled
from bubbleproof.solver.dispatch import (
    FORWARD,
    INPUT,
    WEIGHT,
    Compiled,
    Ints,
    compile_problem,
    copy_into,
    decode,
    order_buffer,
    score,
)
from bubbleproof.solver.middle import condensed
from bubbleproof.solver.reorder import encode, perturb, positions, take_back

GAP, BACKLOG = range(2)
"""Per device: the percentage of a W that a gap must have for one to run in it; and how many waiting
W's are so many that one runs at once."""

_OPS_PER_ROUND = 6_000_000
_HEATS = (0.05, 0.5, 0.01, 0.2)
_GAPS = (100, 75, 50)


@dataclass(frozen=True, slots=True)
class _Filling:
    """What decides an order: its ops but W's, how many on each device, and the rules for W's."""

    sequence: Ints
    length: Ints
    rules: Ints


def filled(problem: Problem, rows: Sequence[Row]) -> tuple[Row, ...] | None:
    """Return the best order with the same F's and I's and W's in the gaps; None if all get stuck.

    Parameters
    ----------
    problem
        A feasible problem.
    rows
        An order without pairs, each stage and kind in the order of the microbatches.
    """
    arrays = compile_problem(problem)
    found = _best_filled(problem, arrays, _sequences(problem, rows))
    return None if found is None else _rows(problem, arrays, found)


def filled_families(problem: Problem) -> Iterator[tuple[Row, ...]]:
    """Yield the orders of all families that apply, W's in the gaps; none where that gets stuck."""
    if not problem.backward.allows(OpKind.BACKWARD_WEIGHT):
        return
    for name in families.names():
        try:
            rows = families.build(name, problem).rows
        except ValueError:
            continue  # The family does not apply.
        if not has_pairs(rows):
            yield filled(problem, rows) or ()


def refilled(
    problem: Problem, rows: Sequence[Row], *, workers: int, seed: int, target: int
) -> Iterator[tuple[Row, ...]]:
    """Yield better and better orders, or none after a round without progress, for ever.

    As ``reorder.reordered`` does, but W's go where there are gaps. Ends at once if with the given
    F's and I's no W's do.
    """
    arrays = compile_problem(problem)
    for found in _searched(problem, rows, None, workers=workers, seed=seed, target=target):
        yield () if found is None else _rows(problem, arrays, found)


def refilled_ends(
    problem: Problem, rows: Sequence[Row], *, workers: int, seed: int
) -> Iterator[tuple[Row, ...]]:
    """Yield orders of the same middle with other ends, for ever; none after one without progress.

    As ``refilled``, but among orders with no more microbatches than the ends need, so with the
    middle back in one may be no better than the one before. Ends at once if nothing repeats.
    """
    short = condensed(problem, rows)
    if short is None:
        return
    arrays = compile_problem(problem)
    still = np.array(short.still, np.int64)
    found_ends = _searched(short.problem, short.rows, still, workers=workers, seed=seed, target=0)
    for found in found_ends:
        if found is None:
            yield ()
        else:
            longer = short.expanded(decode(short.problem, found.sequence))
            yield _rows(problem, arrays, replace(_sequences(problem, longer), rules=found.rules))


def _searched(
    problem: Problem,
    rows: Sequence[Row],
    still: Ints | None,
    *,
    workers: int,
    seed: int,
    target: int,
) -> Iterator[_Filling | None]:
    """Yield better and better fillings, or None after a round without progress, for ever."""
    arrays = compile_problem(problem)
    span = problem.objective is Objective.SPAN
    champion = _best_filled(problem, arrays, _sequences(problem, rows))
    if champion is None:
        return
    if still is None:
        still = np.zeros((problem.devices, 2), np.int64)
    steps = max(50, _OPS_PER_ROUND // int(champion.length.sum()))

    def anneal(start: _Filling, run_seed: int, heat: float) -> tuple[int, _Filling]:
        order = order_buffer(arrays)
        sequence, length, rules = start.sequence.copy(), start.length, start.rules.copy()
        objective = _anneal(
            arrays, sequence, length, still, rules, order, span, steps, heat, run_seed, target
        )
        return int(objective), _Filling(sequence, length, rules)

    scale = longest_part(problem)
    yield from rounds(
        champion,
        anneal,
        rank=lambda filling: [*filling.sequence.ravel().tolist(), *filling.rules.ravel().tolist()],
        heats=[scale * heat for heat in _HEATS],
        workers=workers,
        seed=seed,
    )


def _sequences(problem: Problem, rows: Sequence[Row]) -> _Filling:
    """Return the ops of an order but W's, with W's where a whole one has room."""
    order = encode(problem, rows)
    block = max(problem.microbatches) * problem.stages
    is_part = (order >= 0) & (order // block != WEIGHT)
    length = is_part.sum(axis=1)
    sequence = np.full((len(rows), int(length.max())), -1, np.int64)
    for device, kept in enumerate(is_part):
        sequence[device, : length[device]] = order[device, kept]
    rules = np.zeros((2, len(rows)), np.int64)
    rules[GAP], rules[BACKLOG] = 100, 1 + sequence.size
    return _Filling(sequence, length, rules)


def _best_filled(problem: Problem, arrays: Compiled, ops: _Filling) -> _Filling | None:
    span = problem.objective is Objective.SPAN
    begin, end = np.zeros((2, problem.devices), np.int64)
    order = order_buffer(arrays)
    found: list[tuple[int, _Filling]] = []
    for gap in _GAPS:
        rules = ops.rules.copy()
        rules[GAP] = gap
        if fill(arrays, ops.sequence, ops.length, rules, order, begin, end):
            found.append((int(score(begin, end, span)[0]), replace(ops, rules=rules)))
    return min(found, key=lambda each: each[0])[1] if found else None


def _rows(problem: Problem, arrays: Compiled, filling: _Filling) -> tuple[Row, ...]:
    """Return the rows of a filling; none where it gets stuck."""
    order = order_buffer(arrays)
    begin, end = np.zeros((2, problem.devices), np.int64)
    ran = fill(arrays, filling.sequence, filling.length, filling.rules, order, begin, end)
    return decode(problem, order) if ran else ()


@compiled
def fill(problem, sequence, length, rules, order, begin, end):
    """Write the order of every device, its first start and last end; False if it gets stuck.

    Whether a W runs depends only on when its device is free and when the next op's input is there,
    so devices are followed in any order as far as their inputs are known.
    """
    previous, following, device_of = problem.previous, problem.following, problem.device
    duration, allocate, free, rooms = (
        problem.duration,
        problem.allocate,
        problem.free,
        problem.room,
    )
    forward_lag, backward_lag = problem.forward_lag, problem.backward_lag
    gap, backlog = rules[GAP], rules[BACKLOG]
    devices, stages, most = begin.size, device_of.size, problem.microbatches.max()
    ends = np.full((2, stages, most), -1, np.int64)
    place, written = np.zeros(devices, np.int64), np.zeros(devices, np.int64)
    weight, waiting = np.zeros(devices, np.int64), np.zeros(devices, np.int64)
    held = np.zeros(devices, np.int64)
    stack = np.arange(devices)
    queued = np.ones(devices, np.bool_)
    order[:] = -1
    begin[:] = -1
    end[:] = 0
    height, done = devices, 0
    while height:
        height -= 1
        device = stack[height]
        queued[device] = False
        now = end[device]
        while True:
            ready, kind, stage, index = now, -1, -1, -1
            if place[device] < length[device]:
                code = sequence[device, place[device]]
                kind, stage, index = code // most // stages, code // most % stages, code % most
                if kind == FORWARD:
                    near = previous[stage]
                    if near >= 0:
                        if ends[0, near, index] < 0:
                            break
                        ready = max(ready, ends[0, near, index] + forward_lag[stage])
                else:
                    near = following[stage]
                    if near >= 0:
                        if ends[1, near, index] < 0:
                            break
                        ready = max(ready, ends[1, near, index] + backward_lag[stage])
                    if ends[0, stage, index] < 0:
                        return False
            elif not waiting[device]:
                break
            fits = kind >= 0 and held[device] + allocate[kind, stage] <= rooms[device]
            if waiting[device]:
                while sequence[device, weight[device]] // most // stages != INPUT:
                    weight[device] += 1
                code = sequence[device, weight[device]]
                near = code // most % stages
                ticks = duration[WEIGHT, near]
                if held[device] + allocate[WEIGHT, near] <= rooms[device] and (
                    not fits
                    or waiting[device] >= backlog[device]
                    or 100 * (ready - now) >= gap[device] * max(1, ticks)
                ):
                    order[device, written[device]] = code + (WEIGHT - INPUT) * stages * most
                    written[device] += 1
                    held[device] += allocate[WEIGHT, near] - free[WEIGHT, near]
                    weight[device] += 1
                    waiting[device] -= 1
                    now += ticks
                    continue
            if not fits:
                return False
            order[device, written[device]] = sequence[device, place[device]]
            written[device] += 1
            place[device] += 1
            done += 1
            held[device] += allocate[kind, stage] - free[kind, stage]
            if begin[device] < 0:
                begin[device] = ready
            now = ready + duration[kind, stage]
            if kind == INPUT:
                waiting[device] += 1
            ends[0 if kind == FORWARD else 1, stage, index] = now
            woken = following[stage] if kind == FORWARD else previous[stage]
            if woken >= 0:
                other = device_of[woken]
                if other != device and not queued[other]:
                    queued[other] = True
                    stack[height] = other
                    height += 1
        end[device] = now
    return done == length.sum()


@compiled
def _anneal(problem, sequence, length, still, rules, order, span, steps, heat, seed, target):
    """Anneal an order and its rules in place; they end as the best seen. Return their objective."""
    np.random.seed(seed)
    devices = rules.shape[1]
    position = positions(problem, sequence, length)
    begin, end = np.zeros(devices, np.int64), np.zeros(devices, np.int64)
    fill(problem, sequence, length, rules, order, begin, end)
    best, current = score(begin, end, span)
    champion, saved = sequence.copy(), sequence.copy()
    champion_rules, saved_rules = rules.copy(), rules.copy()
    touched = np.zeros(devices, np.int64)
    for step in range(steps):
        if best <= target:
            break
        count, changed = 0, True
        copy_into(rules, saved_rules)
        if np.random.random() < 0.1:
            _change_rule(rules)
        else:
            count, changed = perturb(problem, sequence, length, still, position, saved, touched)
        if changed and fill(problem, sequence, length, rules, order, begin, end):
            objective, value = score(begin, end, span)
            if accepted(value, current, heat * (1 - step / steps)):
                current = value
                if objective < best:
                    best = objective
                    copy_into(sequence, champion)
                    copy_into(rules, champion_rules)
                continue
        copy_into(saved_rules, rules)
        take_back(sequence, length, position, saved, touched, count)
    copy_into(champion, sequence)
    copy_into(champion_rules, rules)
    return best


@compiled
def _change_rule(rules):
    """Change one rule of one device, or of a run of them."""
    first = np.random.randint(rules.shape[1])
    last = first + 1
    if np.random.random() < 0.4:
        last += np.random.randint(rules.shape[1] - first)
    if np.random.random() < 0.5:
        rules[GAP, first:last] = np.random.randint(0, 150)
        return
    step = 1 if np.random.random() < 0.5 else -1
    for device in range(first, last):
        rules[BACKLOG, device] = max(1, rules[BACKLOG, device] + step)
