"""List scheduling with tunable rules, compiled: one schedule in microseconds per hundred ops.

The rules are numbers per stage and per device, so that a search can change them (``tune``).
Unlike ``construct``, a run may get stuck on memory; that only makes its rules worthless.
"""
# pyright: basic
# numba compiles these functions and has no types of its own.

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bubbleproof.schedules.ops import Block, Op, OpKind, Pair, Row
from bubbleproof.schedules.problem import Problem
from bubbleproof.solver.compiled import compiled
from bubbleproof.solver.limits import room

KINDS = tuple(OpKind)
FORWARD, INPUT, WEIGHT, FULL = range(4)
"""Indices of the op kinds in ``KINDS`` and in the arrays below."""

PARTNER = len(KINDS)
"""In an order, in place of FULL: a backward that is a pair with the forward written before it."""

_NEVER = 2**62
_NO_LIMIT = 2**60
_IDLE_WEIGHT = 0.3

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Compiled(NamedTuple):
    """A problem as arrays: [stage], [device], or [kind, stage]."""

    device: Ints
    first_held: Ints
    """For each device, and one more, where its stages begin in ``held_stages``."""
    held_stages: Ints
    previous: Ints
    following: Ints
    """The neighbours in the chain; -1 for none."""
    microbatches: Ints
    duration: Ints
    allocate: Ints
    free: Ints
    forward_lag: Ints
    """Ticks from the end of the previous stage's F to the earliest start of this one's."""
    backward_lag: Ints
    room: Ints
    pair: Ints
    """For each device the ticks of a pair; -1 where none is allowed."""


class Rules(NamedTuple):
    """What a device prefers, as rows of numbers per stage and per device."""

    stage: Floats
    """IN_FLIGHT, RESERVE, FORWARD_FIRST, BACKWARD_FIRST, FUSED x stage."""
    device: Floats
    """BACKLOG, GAP, PATIENCE, COURTSHIP x device."""


IN_FLIGHT, RESERVE, FORWARD_FIRST, BACKWARD_FIRST, FUSED = range(5)
"""Per stage: how many forwards may be ahead of their backwards; the memory that must be left when
an F starts; the preference for a ready F and for a ready backward, of which the highest goes
first; and whether backwards run as B."""

BACKLOG, GAP, PATIENCE, COURTSHIP = range(4)
"""Per device: with so many W's waiting one runs at once; a W runs in a gap of at least this
multiple of its length; the ticks to wait for a preferred op while another is ready; and those that
an op waits for one to be a pair with, less than 0 where it runs alone."""


def compile_problem(problem: Problem) -> Compiled:
    """Return a problem as arrays."""
    placement = problem.placement
    stages = range(problem.stages)
    held = placement.stages_of_device
    changes = [[problem.memory.of(kind)[s] for s in stages] for kind in KINDS]
    rooms = [room(problem, device) for device in range(problem.devices)]
    pairs = problem.cost.pair if problem.backward.allows(OpKind.BACKWARD) else ()

    def lags(neighbours: tuple[int | None, ...]) -> Ints:
        return _ints(
            [0 if near is None else problem.lag(near, s) for s, near in enumerate(neighbours)]
        )

    return Compiled(
        device=_ints(placement.device_of_stage),
        first_held=_ints([sum(map(len, held[:device])) for device in range(len(held) + 1)]),
        held_stages=_ints([stage for stages in held for stage in stages]),
        previous=_ints([-1 if near is None else near for near in placement.previous]),
        following=_ints([-1 if near is None else near for near in placement.following]),
        microbatches=_ints([len(problem.microbatches_of_stage(s)) for s in stages]),
        duration=_ints([problem.cost.of(kind) for kind in KINDS]),
        allocate=_ints([[change[0] for change in row] for row in changes]),
        free=_ints([[change[1] for change in row] for row in changes]),
        forward_lag=lags(placement.previous),
        backward_lag=lags(placement.following),
        room=_ints([_NO_LIMIT if limit is None else limit for limit in rooms]),
        pair=_ints([-1 if ticks is None else ticks for ticks in pairs or [None] * len(rooms)]),
    )


def order_buffer(problem: Compiled) -> Ints:
    """Return room for the order of every device, as ``dispatch`` writes it."""
    per_device = np.zeros(len(problem.room), np.int64)
    np.add.at(per_device, problem.device, 3 * problem.microbatches)
    return np.full((len(problem.room), int(per_device.max())), -1, np.int64)


def decode(problem: Problem, order: Ints) -> tuple[Row, ...]:
    """Return the rows that ``dispatch`` has written."""
    most = max(problem.microbatches)
    first = [problem.microbatches_of_stage(stage).start for stage in range(problem.stages)]

    def op(code: int) -> Op:
        place, index = divmod(code, most)
        kind, stage = divmod(place, problem.stages)
        return Op(stage, KINDS[kind], first[stage] + index)

    def blocks(row: Ints) -> Row:
        found: list[Block] = []
        for code in row[row >= 0].tolist():
            kind, rest = divmod(code, most * problem.stages)
            before = found[-1] if found else None
            if kind == PARTNER and isinstance(before, Op):
                found[-1] = Pair(before, op(FULL * most * problem.stages + rest))
            else:
                found.append(op(code))
        return tuple(found)

    return tuple(map(blocks, order))


@compiled
def dispatch(problem, rules, order, begin, end):
    """Write the order of every device, its first start and last end; False if it gets stuck.

    Devices take their ops in the order of time: whoever can start next chooses next, so all
    arrivals up to then are known.
    """
    # Locals: every look into a tuple of arrays would count references, which is most of the time.
    device_of, first_held, held_stages = problem.device, problem.first_held, problem.held_stages
    previous, following = problem.previous, problem.following
    microbatches, duration = problem.microbatches, problem.duration
    allocate, free, rooms = problem.allocate, problem.free, problem.room
    forward_lag, backward_lag = problem.forward_lag, problem.backward_lag
    in_flight, reserve = rules.stage[IN_FLIGHT], rules.stage[RESERVE]
    forward_first, backward_first = rules.stage[FORWARD_FIRST], rules.stage[BACKWARD_FIRST]
    fused = rules.stage[FUSED] > 0
    backlog, gaps, patience = rules.device[BACKLOG], rules.device[GAP], rules.device[PATIENCE]
    courtship, pair = rules.device[COURTSHIP], problem.pair

    devices, stages = rooms.size, device_of.size
    most = microbatches.max()
    forwards = np.zeros(stages, np.int64)
    backwards = np.zeros(stages, np.int64)
    weights = np.zeros(stages, np.int64)
    pending = np.zeros(stages, np.int64)
    whole = np.zeros((stages, most), np.bool_)
    forward_end = np.zeros((stages, most), np.int64)
    backward_end = np.zeros((stages, most), np.int64)
    held = np.zeros(devices, np.int64)
    length = np.zeros(devices, np.int64)
    kinds = np.zeros(devices, np.int64)
    chosen = np.zeros(devices, np.int64)
    partners = np.full(devices, -1, np.int64)
    start = np.zeros(devices, np.int64)
    stale = np.ones(devices, np.bool_)
    forward_ready = np.zeros(stages, np.int64)
    backward_ready = np.zeros(stages, np.int64)
    order[:] = -1
    begin[:] = -1
    end[:] = 0
    left = 0
    for stage in range(stages):
        left += microbatches[stage] * (2 if fused[stage] else 3)

    while left:
        now, device = _NEVER, -1
        for candidate in range(devices):
            if stale[candidate]:
                stale[candidate] = False
                free_from, room = end[candidate], rooms[candidate] - held[candidate]
                soonest, blocked = _NEVER, False
                oldest, weight, waiting = _NEVER, -1, 0
                for place in range(first_held[candidate], first_held[candidate + 1]):
                    stage = held_stages[place]
                    index = forwards[stage]
                    ready = _NEVER
                    if index < microbatches[stage] and index - backwards[stage] < in_flight[stage]:
                        near = previous[stage]
                        if near < 0:
                            ready = 0
                        elif forwards[near] > index:
                            ready = forward_end[near, index] + forward_lag[stage]
                        if ready < _NEVER and allocate[FORWARD, stage] + reserve[stage] > room:
                            ready, blocked = _NEVER, True
                    forward_ready[stage] = ready
                    soonest = min(soonest, ready)
                    index = backwards[stage]
                    ready = _NEVER
                    if index < forwards[stage]:
                        near = following[stage]
                        if near < 0:
                            ready = forward_end[stage, index]
                        elif backwards[near] > index:
                            ready = backward_end[near, index] + backward_lag[stage]
                        kind = FULL if fused[stage] else INPUT
                        if ready < _NEVER and allocate[kind, stage] > room:
                            ready, blocked = _NEVER, True
                    backward_ready[stage] = ready
                    soonest = min(soonest, ready)
                    if not fused[stage] and pending[stage]:
                        while whole[stage, weights[stage]]:
                            weights[stage] += 1
                        waiting += pending[stage]
                        if weights[stage] < oldest and allocate[WEIGHT, stage] <= room:
                            oldest, weight = weights[stage], stage
                soonest = max(soonest, free_from)
                start[candidate], partners[candidate] = _NEVER, -1
                gap = soonest - free_from
                if weight >= 0 and (
                    soonest == _NEVER
                    or waiting >= backlog[candidate]
                    or gap >= gaps[candidate] * duration[WEIGHT, weight]
                    or (blocked and gap > 0)
                ):
                    kinds[candidate], chosen[candidate] = WEIGHT, weight
                    start[candidate] = free_from
                elif soonest < _NEVER:
                    latest, best = soonest + patience[candidate], -np.inf
                    for place in range(first_held[candidate], first_held[candidate + 1]):
                        stage = held_stages[place]
                        if forward_ready[stage] <= latest and forward_first[stage] > best:
                            best = forward_first[stage]
                            kinds[candidate], chosen[candidate] = FORWARD, stage
                            start[candidate] = max(soonest, forward_ready[stage])
                        if backward_ready[stage] <= latest and backward_first[stage] > best:
                            best = backward_first[stage]
                            kinds[candidate] = FULL if fused[stage] else INPUT
                            chosen[candidate] = stage
                            start[candidate] = max(soonest, backward_ready[stage])
                    if pair[candidate] >= 0 and courtship[candidate] >= 0:
                        latest, best = start[candidate] + courtship[candidate], -np.inf
                        forward, first = kinds[candidate] == FORWARD, chosen[candidate]
                        for place in range(first_held[candidate], first_held[candidate + 1]):
                            stage = held_stages[place]
                            ready = backward_ready[stage] if forward else forward_ready[stage]
                            value = backward_first[stage] if forward else forward_first[stage]
                            f, b = (first, stage) if forward else (stage, first)
                            fits = allocate[FORWARD, f] + allocate[FULL, b] <= room
                            if fits and ready <= latest and value > best:
                                best, partners[candidate] = value, stage
                        if partners[candidate] >= 0:
                            stage = partners[candidate]
                            ready = backward_ready[stage] if forward else forward_ready[stage]
                            start[candidate] = max(start[candidate], ready)
            if start[candidate] < now:
                now, device = start[candidate], candidate
        if device < 0:
            return False
        kind, stage = kinds[device], chosen[device]
        until = now + duration[kind, stage]
        partner = partners[device] if kind != WEIGHT else -1
        if partner >= 0:
            if kind != FORWARD:
                stage, partner = partner, stage
            kind, until = FORWARD, now + pair[device]
        if kind == FORWARD:
            index = forwards[stage]
            forward_end[stage, index] = until
            forwards[stage] += 1
            if following[stage] >= 0:
                stale[device_of[following[stage]]] = True
        elif kind == WEIGHT:
            index = weights[stage]
            weights[stage] += 1
            pending[stage] -= 1
        else:
            index = backwards[stage]
            backward_end[stage, index] = until
            backwards[stage] += 1
            pending[stage] += 1
            if previous[stage] >= 0:
                stale[device_of[previous[stage]]] = True
        held[device] += allocate[kind, stage] - free[kind, stage]
        order[device, length[device]] = (kind * stages + stage) * most + index
        length[device] += 1
        if partner >= 0:
            index = backwards[partner]
            backward_end[partner, index] = until
            backwards[partner] += 1
            if previous[partner] >= 0:
                stale[device_of[previous[partner]]] = True
            held[device] += allocate[FULL, partner] - free[FULL, partner]
            order[device, length[device]] = (PARTNER * stages + partner) * most + index
            length[device] += 1
            whole[partner, index] = True
            left -= 1 if fused[partner] else 2
        if begin[device] < 0:
            begin[device] = now
        end[device] = until
        stale[device] = True
        left -= 1
    return True


@compiled
def score(begin, end, span):
    """Return the objective, and what a search minimizes: with a share of the mean over devices.

    Where one device decides, gains on the others would else not show.
    """
    largest, total = 0, 0
    for device in range(begin.size):
        value = end[device]
        if span and begin[device] >= 0:
            value -= begin[device]
        largest = max(largest, value)
        total += value
    return largest, largest + _IDLE_WEIGHT * total / begin.size


@compiled
def copy_into(source, target):
    """Copy a matrix; written out, since it compiles in a tenth of the time."""
    for row in range(source.shape[0]):
        for place in range(source.shape[1]):
            target[row, place] = source[row, place]


def _ints(values: object) -> Ints:
    return np.array(values, np.int64)
