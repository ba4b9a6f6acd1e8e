"""Search among orders with overlapped pairs: simulated annealing, compiled.

A place of a row holds one op, or a forward and a full backward as one block. A move shifts a block
in its row, pairs a forward with a backward near by, takes a pair apart, or splits or fuses a
backward; it does so for one microbatch or for a run of them. One longest-path pass judges it. A
problem that is its own mirror image is searched by half: the rows of half the devices, the others
being their images. That is a search, not a proof: it bounds nothing.
"""
# pyright: basic
# numba compiles these functions and has no types of its own.

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import Block, Op, Pair, Row
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.solver.annealing import accepted, longest_part, rounds
from bubbleproof.solver.compiled import compiled
from bubbleproof.solver.dispatch import (
    FORWARD,
    KINDS,
    WEIGHT,
    Compiled,
    Ints,
    compile_problem,
    copy_into,
    score,
)
from bubbleproof.solver.mirror import Mirror, is_own_image, mirror_of, reflected
from bubbleproof.solver.pair_moves import REACH, pair_ops, part, shift_op, split_or_fuse

_BLOCKS_PER_ROUND = 6_000_000
_HEATS = (0.05, 0.3, 0.01, 0.15)


def paired_orders(
    problem: Problem,
    rows: Sequence[Row],
    *,
    workers: int,
    seed: int,
    target: int,
    asymmetric: bool = False,
) -> Iterator[tuple[Row, ...]]:
    """Yield better and better orders, or none after a round without progress, for ever.

    Parameters
    ----------
    problem
        A feasible problem.
    rows
        A valid order, each stage and kind in the order of the microbatches.
    workers, seed, target
        As for ``tune.tuned``.
    asymmetric
        Whether to search all orders also where half of them would do.
    """
    view = _View.of(problem, rows, asymmetric=asymmetric)
    span = problem.objective is Objective.SPAN
    split = problem.backward is Backward.FREE
    order = view.encode(rows)
    blocks = int((order[0] >= 0).sum())
    steps = max(50, _BLOCKS_PER_ROUND // max(1, blocks))

    def anneal(start: Ints, run_seed: int, heat: float) -> tuple[int, Ints]:
        order = start.copy()
        objective = _anneal(view.arrays, order, span, split, steps, heat, run_seed, target)
        return int(objective), order

    scale = longest_part(problem)
    for found in rounds(
        order,
        anneal,
        rank=lambda order: order.ravel().tolist(),
        heats=[scale * heat for heat in _HEATS],
        workers=workers,
        seed=seed,
    ):
        yield () if found is None else view.decode(found)


@dataclass(frozen=True, slots=True)
class _View:
    """What is searched: all devices, or half of them."""

    problem: Problem
    arrays: Compiled
    mirror: Mirror | None
    devices: tuple[int, ...]
    stages: tuple[dict[int, int], ...]
    """For each device that is searched its stages by their number in the search."""

    @staticmethod
    def of(problem: Problem, rows: Sequence[Row], *, asymmetric: bool) -> "_View":
        """Look at half of the devices where the problem and the order are their own image."""
        whole = compile_problem(problem)
        held = problem.placement.stages_of_device
        mirror = None if asymmetric else mirror_of(problem)
        stays = mirror is not None and any(d == there for d, there in enumerate(mirror.device))
        if mirror is None or stays or not is_own_image(problem, mirror, rows):
            return _View(
                problem=problem,
                arrays=whole,
                mirror=None,
                devices=tuple(range(problem.devices)),
                stages=tuple({stage: stage for stage in stages} for stages in held),
            )
        chain = problem.placement.chains[0]
        halves = tuple(d for d, there in enumerate(mirror.device) if d < there)
        number = {stage: place for place, stage in enumerate(chain)}
        number |= {mirror.stage[stage]: place for stage, place in number.items()}
        # A stage of the search is one of the first chain, on its own device or on the image of it.
        device_of = [
            halves.index(min(d, mirror.device[d]))
            for d in (problem.placement.device_of_stage[stage] for stage in chain)
        ]
        stages = list(chain)
        length = len(chain)
        by_device = [[s for s, d in enumerate(device_of) if d == k] for k in range(len(halves))]
        half = Compiled(
            device=np.array(device_of, np.int64),
            first_held=np.array(
                [sum(map(len, by_device[:k])) for k in range(len(halves) + 1)], np.int64
            ),
            held_stages=np.array([s for each in by_device for s in each], np.int64),
            previous=np.arange(-1, length - 1),
            following=np.array([*range(1, length), -1], np.int64),
            microbatches=whole.microbatches[stages],
            duration=whole.duration[:, stages],
            allocate=whole.allocate[:, stages],
            free=whole.free[:, stages],
            forward_lag=whole.forward_lag[stages],
            backward_lag=whole.backward_lag[stages],
            room=whole.room[list(halves)],
            pair=whole.pair[list(halves)],
        )
        return _View(
            problem=problem,
            arrays=half,
            mirror=mirror,
            devices=halves,
            stages=tuple({number[stage]: stage for stage in held[d]} for d in halves),
        )

    def encode(self, rows: Sequence[Row]) -> Ints:
        """Return the order as [first or second op, device, place], -1 for none."""
        number = {stage: s for stages in self.stages for s, stage in stages.items()}
        count, most = len(self.arrays.device), int(self.arrays.microbatches.max())
        per_device = np.zeros(len(self.devices), np.int64)
        np.add.at(per_device, self.arrays.device, 3 * self.arrays.microbatches)
        order = np.full((2, len(self.devices), int(per_device.max()) + 1), -1, np.int64)

        def code(op: Op) -> int:
            first = self.problem.microbatches_of_stage(op.stage).start
            return (KINDS.index(op.kind) * count + number[op.stage]) * most + op.microbatch - first

        for place, device in enumerate(self.devices):
            for position, block in enumerate(rows[device]):
                if isinstance(block, Pair):
                    order[0, place, position] = code(block.forward)
                    order[1, place, position] = code(block.backward)
                else:
                    order[0, place, position] = code(block)
        return order

    def decode(self, order: Ints) -> tuple[Row, ...]:
        """Return the rows of all devices."""
        count, most = len(self.arrays.device), int(self.arrays.microbatches.max())
        rows: list[Row] = [()] * self.problem.devices

        def op(code: int, stages: dict[int, int]) -> Op:
            kind, stage = divmod(code // most, count)
            first = self.problem.microbatches_of_stage(stages[stage]).start
            return Op(stages[stage], KINDS[kind], first + code % most)

        def block(place: int, position: int) -> Block:
            first, second = (int(code) for code in order[:, place, position])
            stages = self.stages[place]
            return op(first, stages) if second < 0 else Pair(op(first, stages), op(second, stages))

        for place, device in enumerate(self.devices):
            length = int((order[0, place] >= 0).sum())
            rows[device] = tuple(block(place, position) for position in range(length))
            if self.mirror is not None:
                there = self.mirror.device[device]
                rows[there] = reflected(self.problem, self.mirror, rows[device])
        return tuple(rows)


@compiled
def _evaluate(problem, order, length, begin, end, ends):
    """Fill in the first start and last end of every device; False if the order cannot run.

    ``ends`` is [F or backward, stage, microbatch], filled with -1 for what has not run.
    """
    previous, following, device_of = problem.previous, problem.following, problem.device
    duration, pair = problem.duration, problem.pair
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
            ready, ticks, waits = now, pair[device], False
            two = order[1, device, place[device]] >= 0
            for member in range(2 if two else 1):
                code = order[member, device, place[device]]
                index, stage = code % most, code // most % stages
                kind = code // most // stages
                if not two:
                    ticks = duration[kind, stage]
                if kind == FORWARD:
                    near = previous[stage]
                    if near >= 0:
                        waits |= ends[0, near, index] < 0
                        ready = max(ready, ends[0, near, index] + forward_lag[stage])
                elif kind == WEIGHT:
                    waits |= ends[1, stage, index] < 0
                else:
                    near = following[stage]
                    waits |= ends[0, stage, index] < 0
                    if near >= 0:
                        waits |= ends[1, near, index] < 0
                        ready = max(ready, ends[1, near, index] + backward_lag[stage])
            if waits:
                break
            now = ready + ticks
            if begin[device] < 0:
                begin[device] = ready
            for member in range(2 if two else 1):
                code = order[member, device, place[device]]
                index, stage = code % most, code // most % stages
                kind = code // most // stages
                if kind != WEIGHT:
                    ends[0 if kind == FORWARD else 1, stage, index] = now
                    woken = following[stage] if kind == FORWARD else previous[stage]
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
def _anneal(problem, order, span, split, steps, heat, seed, target):
    """Anneal an order in place; it ends as the best seen. Return its objective."""
    np.random.seed(seed)
    devices, width = order.shape[1], order.shape[2]
    stages, most = problem.device.size, problem.microbatches.max()
    length = np.zeros(devices, np.int64)
    for device in range(devices):
        while length[device] < width and order[0, device, length[device]] >= 0:
            length[device] += 1
    begin, end = np.zeros(devices, np.int64), np.zeros(devices, np.int64)
    ends = np.zeros((2, stages, most), np.int64)
    _evaluate(problem, order, length, begin, end, ends)
    best, current = score(begin, end, span)
    champion, saved, lengths = order.copy(), order.copy(), length.copy()
    for step in range(steps):
        if best <= target:
            break
        chosen = np.random.randint(devices)
        if length[chosen] == 0:
            continue
        place = np.random.randint(length[chosen])
        member = np.random.randint(2) if order[1, chosen, place] >= 0 else 0
        code = order[member, chosen, place]
        kind, stage, index = code // most // stages, code // most % stages, code % most
        run, how_many = 1, np.random.random()
        if how_many > 0.7:
            run = problem.microbatches[stage] - index
        elif how_many > 0.5:
            run = 1 + np.random.randint(problem.microbatches[stage] - index)
        first, last = stage, stage + 1
        if np.random.random() < 0.2:
            last = min(stages, stage + 1 + np.random.randint(stages))
        what, draw = np.random.random(), np.random.random()
        distance = 1 + int(np.random.random() ** 2 * REACH)
        if np.random.random() < 0.5:
            distance = -distance
        partner, other = -1, 0
        if what >= 0.6 and kind == FORWARD and member == 0 and order[1, chosen, place] < 0:
            near = place + distance
            if 0 <= near < length[chosen] and order[1, chosen, near] < 0:
                partner = order[0, chosen, near]
                other = partner // most % stages

        copied = order.shape[1]
        for device in range(copied):
            lengths[device] = length[device]
            for member in range(2):
                for back in range(length[device] + 1):
                    saved[member, device, back] = order[member, device, back]
        changed = False
        if what < 0.6:
            for each in range(first, last):
                until = min(run, problem.microbatches[each] - index)
                for turn in range(until):
                    which = index + (turn if distance < 0 else until - 1 - turn)
                    moved = (kind * stages + each) * most + which
                    changed |= shift_op(
                        order, length, problem.device[each], moved, distance, most, stages
                    )
        elif partner >= 0 and problem.pair[chosen] >= 0:
            for turn in range(min(run, problem.microbatches[other] - partner % most)):
                changed |= pair_ops(
                    order, length, chosen, code + turn, partner + turn, draw < 0.5, most, stages
                )
        elif what < 0.8:
            for turn in range(run):
                changed |= part(
                    order,
                    length,
                    chosen,
                    code + turn,
                    draw < 0.7 and split,
                    draw < 0.35,
                    most,
                    stages,
                )
        elif split:
            for turn in range(run):
                changed |= split_or_fuse(order, length, chosen, code + turn, draw, most, stages)
        if (
            changed
            and _fits(problem, order, length)
            and _evaluate(problem, order, length, begin, end, ends)
        ):
            objective, value = score(begin, end, span)
            if accepted(value, current, heat * (1 - step / steps)):
                current = value
                if objective < best:
                    best = objective
                    copy_into(order[0], champion[0])
                    copy_into(order[1], champion[1])
                continue
        if changed:
            for device in range(copied):
                length[device] = lengths[device]
                for member in range(2):
                    for back in range(width):
                        order[member, device, back] = (
                            saved[member, device, back] if back < length[device] else -1
                        )
    copy_into(champion[0], order[0])
    copy_into(champion[1], order[1])
    return best


@compiled
def _fits(problem, order, length):
    allocate, free, stages = problem.allocate, problem.free, problem.device.size
    most = problem.microbatches.max()
    for device in range(length.size):
        held = 0
        for place in range(length[device]):
            freed = 0
            for member in range(2):
                code = order[member, device, place]
                if code >= 0:
                    kind, stage = code // most // stages, code // most % stages
                    held += allocate[kind, stage]
                    freed += free[kind, stage]
            if held > problem.room[device]:
                return False
            held -= freed
    return True
