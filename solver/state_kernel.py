"""One layer of the state search, compiled: from the states with k ops started to those with k + 1.

See ``states`` for what a state is and why the steps are enough. A state is a row of numbers, and
less is better in each of them from ``blocked`` on:

- for each kind of op how many have started, which makes two states comparable;
- for each device the ops that must wait for a later one, as bits;
- for each class of W's how many have started, negative;
- for each device the time from which it can start an op;
- for each kind of op with an input from another device when the newest inputs arrive, the latest
  one last.
"""
# pyright: basic
# numba compiles these functions and has no types of its own.

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bubbleproof.solver.compiled import compiled
from bubbleproof.solver.paying import passed
from bubbleproof.solver.prices import Prices
from bubbleproof.solver.state_problem import ARRIVALS, FORWARDS, GRADIENTS, Ints, Kinds, Weights

BUCKETS = 1 << 16

NO_LAYER, NOW, AFTER = range(3)
"""Which layer has no room for one more state."""

_FULL = -1
_NEVER = np.int64(2**60)


class Devices(NamedTuple):
    """What is given for each device."""

    room: Ints
    deadline: Ints
    begin_by: Ints
    """When its first op must have started."""


class Layer(NamedTuple):
    """States with as many ops started, W's not counted."""

    rows: NDArray[np.int32]
    dead: NDArray[np.bool_]
    """Whether another state is better."""
    link: NDArray[np.int32]
    """The next state in the same bucket."""
    bucket: NDArray[np.int32]
    paid: Ints
    """What it has paid, see ``prices``."""
    parent: NDArray[np.int32]
    """The state before; in the same layer where the step was a W."""
    step: NDArray[np.int16]
    """What was started: a kind, or the number of kinds and a class of W's."""


@compiled
def expand(
    kinds: Kinds,
    weights: Weights,
    devices: Devices,
    prices: Prices,
    now: Layer,
    after: Layer,
    first: int,
    most: int,
    size: int,
    size_after: int,
) -> tuple[int, int, int, int, int]:
    """Take steps from states of a layer; return where to go on, and how many states there are.

    Parameters
    ----------
    first, most
        The first state, and how many to expand.
    size, size_after
        How many states both layers have.

    Returns
    -------
    tuple of int
        The next state to expand, the sizes of both layers, from how many states steps were taken,
        and which layer has to grow before it can go on.
    """
    x_count, p, c_count = len(kinds.device), len(devices.room), len(weights.device)
    at_blocked, at_weights = x_count, x_count + p
    at_free = at_weights + c_count
    width = now.rows.shape[1]
    state, row = np.zeros(width, np.int32), np.zeros(width, np.int32)
    held, left, head = np.zeros(p, np.int64), np.zeros(p, np.int64), np.zeros(x_count, np.int64)
    start = np.zeros(x_count + c_count, np.int64)
    here = np.zeros(p, np.bool_)
    begun = np.zeros(p, np.bool_)
    paid = np.zeros(1, np.int64)
    expanded = 0
    index = first
    while index < size and expanded < most:
        if now.dead[index]:
            index += 1
            continue
        state[:] = now.rows[index]
        spent = now.paid[index]
        expanded += 1
        _survey(kinds, weights, state, held, here, begun)
        while True:
            # The op that can end first: nothing can start on its device before, but what it
            # could as well go before of.
            _find_starts(kinds, weights, devices, state, held, here, start)
            best, best_end = -1, _NEVER
            for x in range(x_count + c_count):
                if start[x] < 0:
                    continue
                end = start[x] + (kinds.ticks[x] if x < x_count else weights.ticks[x - x_count])
                if end < best_end or (end == best_end and start[x] < start[best]):
                    best, best_end = x, end
            if best < 0:
                break
            device = _device(kinds, weights, best)
            for x in range(x_count + c_count):
                if start[x] < 0 or _device(kinds, weights, x) != device:
                    continue
                if x != best and start[x] >= best_end:
                    continue
                row[:] = state
                paid[0] = spent
                if not _take(kinds, weights, devices, prices, row, held, begun, x, start[x], paid):
                    continue
                if paid[0] > prices.allowance[0]:
                    continue
                if not _settle(kinds, weights, devices, prices, row, left, head, paid):
                    continue
                if paid[0] > prices.allowance[0]:
                    continue
                if x < x_count:
                    kept = _keep(after, row, paid[0], size_after, x_count, p, index, x)
                    if kept == _FULL:
                        return index, size, size_after, expanded, AFTER
                    size_after = kept
                else:
                    kept = _keep(now, row, paid[0], size, x_count, p, index, x)
                    if kept == _FULL:
                        return index, size, size_after, expanded, NOW
                    size = kept
            if best >= x_count or kinds.net[best] <= 0:
                break  # To go first would be no worse.
            state[at_blocked + device] |= 1 << kinds.bit[best]
            free = np.int64(state[at_free + device])
            if best_end > free:
                spent += passed(
                    kinds, weights, prices, state, device, free, best_end, held[device], -1
                )
                state[at_free + device] = best_end
        index += 1
    return index, size, size_after, expanded, NO_LAYER


@compiled
def _device(kinds, weights, x):
    """Return the device of a kind or of a class of W's."""
    return kinds.device[x] if x < len(kinds.device) else weights.device[x - len(kinds.device)]


@compiled
def _survey(kinds, weights, state, held, here, begun):
    """Find for each device what it holds, whether more than W's is left, whether it has begun."""
    x_count, p = len(kinds.device), len(held)
    held[:] = 0
    here[:] = False
    begun[:] = False
    for x in range(x_count):
        device = kinds.device[x]
        held[device] += state[x] * kinds.net[x]
        if state[x] < kinds.number[x]:
            here[device] = True
        if state[x] > 0:
            begun[device] = True
    for c in range(len(weights.device)):
        held[weights.device[c]] -= state[x_count + p + c] * weights.net[c]


@compiled
def _find_starts(kinds, weights, devices, state, held, here, start):
    """Find when the next op of each kind and class could start; -1 if it cannot be next."""
    x_count, p, c_count = len(kinds.device), len(held), len(weights.device)
    at_weights = x_count + p
    at_free = at_weights + c_count
    for c in range(c_count):
        device = weights.device[c]
        start[x_count + c] = state[at_free + device] if here[device] else -1
    waiting = state[at_weights:at_free].copy()
    for x in range(x_count):
        if kinds.weight_class[x] >= 0:
            waiting[kinds.weight_class[x]] += state[x]
        device, source = kinds.device[x], kinds.source[x]
        start[x] = -1
        if (
            state[x] < kinds.number[x]
            and (source < 0 or state[source] > state[x])
            and held[device] + kinds.allocate[x] <= devices.room[device]
            and not (state[x_count + device] >> kinds.bit[x]) & 1
        ):
            start[x] = state[at_free + device]
            if kinds.queue[x] >= 0:
                arrivals = state[source] - state[x]
                if arrivals <= ARRIVALS:
                    arrival = state[kinds.queue[x] + ARRIVALS - arrivals]
                    start[x] = max(start[x], np.int64(arrival))
    for c in range(c_count):
        if waiting[c] == 0:
            start[x_count + c] = -1


@compiled
def _take(kinds, weights, devices, prices, row, held, begun, x, start, paid):
    """Start an op in a state; return False where that is too late."""
    x_count, p = len(kinds.device), len(held)
    at_weights = x_count + p
    at_free = at_weights + len(weights.device)
    device = _device(kinds, weights, x)
    allocate = kinds.allocate[x] if x < x_count else 0
    free, moments = np.int64(row[at_free + device]), prices.start.shape[1]
    paid[0] += passed(kinds, weights, prices, row, device, free, start, held[device], -1)
    if start < moments:
        paid[0] += prices.start[x, start]
    # What had to wait may go on where it could not have been before this op for want of memory.
    for y in range(x_count):
        if kinds.device[y] != device or not (row[x_count + device] >> kinds.bit[y]) & 1:
            continue
        if held[device] + allocate + kinds.net[y] > devices.room[device]:
            row[x_count + device] ^= 1 << kinds.bit[y]
    if x >= x_count:
        row[at_weights + x - x_count] -= 1
        end = start + weights.ticks[x - x_count]
        row[at_free + device] = end
        paid[0] += passed(kinds, weights, prices, row, device, start, end, held[device], x)
        return True
    if start > kinds.latest[x, kinds.number[x] - row[x]]:
        return False
    if not begun[device] and start > devices.begin_by[device]:
        return False
    end = start + kinds.ticks[x]
    row[x] += 1
    row[at_free + device] = end
    paid[0] += passed(kinds, weights, prices, row, device, start, end, held[device] + allocate, x)
    target = kinds.target[x]
    if target >= 0 and kinds.queue[target] >= 0:
        queue = kinds.queue[target]
        arrival, gone = end + kinds.lag[target], np.int64(row[at_free + kinds.device[target]])
        if row[queue] > gone:
            paid[0] = -_NEVER  # What is not told apart any more may not have been paid for.
        gone = min(gone, prices.waiting.shape[1] - 1)
        if arrival < gone:
            paid[0] += prices.waiting[target, gone] - prices.waiting[target, arrival]
        for k in range(queue, queue + ARRIVALS - 1):
            row[k] = row[k + 1]
        row[queue + ARRIVALS - 1] = end + kinds.lag[target]
    return True


@compiled
def _settle(kinds, weights, devices, prices, row, left, head, paid):
    """Write a state in its one form; return False where it cannot end in time."""
    x_count, p, c_count = len(kinds.device), len(left), len(weights.device)
    at_weights = x_count + p
    at_free = at_weights + c_count
    left[:] = 0
    for x in range(x_count):
        left[kinds.device[x]] += (kinds.number[x] - row[x]) * kinds.ticks[x]
        left[kinds.device[x]] += kinds.number[x] * kinds.weight_ticks[x]
    for c in range(c_count):
        left[weights.device[c]] += row[at_weights + c] * weights.ticks[c]
    for device in range(p):
        if row[at_free + device] + left[device] > devices.deadline[device]:
            return False
    for x in range(x_count):
        if row[x] == kinds.number[x]:
            continue
        free, source = np.int64(row[at_free + kinds.device[x]]), kinds.source[x]
        if source < 0:
            head[x] = free
        elif row[source] == row[x]:
            head[x] = max(free, head[source] + kinds.ticks[source] + kinds.lag[x])
        else:
            head[x] = free
            if kinds.queue[x] >= 0:
                arrivals = row[source] - row[x]
                if arrivals <= ARRIVALS:
                    head[x] = max(free, np.int64(row[kinds.queue[x] + ARRIVALS - arrivals]))
        if head[x] > kinds.latest[x, kinds.number[x] - row[x]]:
            return False
    if not _last_in_time(kinds, row, left, at_free):
        return False
    waiting = row[at_weights:at_free].copy()
    first = np.full(p, _NEVER)
    for x in range(x_count):
        if kinds.weight_class[x] >= 0:
            waiting[kinds.weight_class[x]] += row[x]
        if row[x] < kinds.number[x]:
            first[kinds.device[x]] = min(first[kinds.device[x]], head[x])
    for c in range(c_count):
        device = weights.device[c]
        if first[device] == _NEVER:  # Its W's fit, and nobody waits for them.
            row[at_weights + c] = 0
        elif waiting[c] > 0:
            first[device] = row[at_free + device]
    for device in range(p):
        if first[device] == _NEVER:
            row[at_free + device] = 0
            row[x_count + device] = 0
        elif first[device] > row[at_free + device]:
            held = np.int64(0)
            for x in range(x_count):
                if kinds.device[x] == device:
                    held += row[x] * kinds.net[x]
            for c in range(c_count):
                if weights.device[c] == device:
                    held -= row[at_weights + c] * weights.net[c]
            free = np.int64(row[at_free + device])
            paid[0] += passed(kinds, weights, prices, row, device, free, first[device], held, -1)
            row[at_free + device] = first[device]
            if first[device] + left[device] > devices.deadline[device]:
                return False
    for x in range(x_count):
        if kinds.queue[x] >= 0:
            arrivals = row[kinds.source[x]] - row[x]
            for k in range(ARRIVALS):
                place = kinds.queue[x] + k
                if k < ARRIVALS - arrivals:
                    row[place] = 0
                else:
                    row[place] = max(row[place], row[at_free + kinds.device[x]])
    return True


@compiled
def _last_in_time(kinds, row, left, at_free):
    """Whether each device's last F and last gradient can end in time.

    Before they do the device runs all its work but what may be open then, as the bounds "tail" and
    "pass-through" have it.
    """
    p = len(left)
    here, fits = np.zeros(p, np.bool_), np.zeros(p, np.bool_)
    for group in (FORWARDS, GRADIENTS):
        here[:] = False
        fits[:] = False
        for x in range(len(kinds.device)):
            if kinds.last[x] == group and row[x] < kinds.number[x]:
                device = kinds.device[x]
                here[device] = True
                end = row[at_free + device] + max(kinds.ticks[x], left[device] - kinds.open[x])
                if end <= kinds.latest[x, 1] + kinds.ticks[x]:
                    fits[device] = True
        for device in range(p):
            if here[device] and not fits[device]:
                return False
    return True


@compiled
def _keep(layer, row, paid, size, x_count, p, parent, step):
    """Keep a state unless another is better; return how many there are, or _FULL."""
    key = np.uint64(1469598103934665603)
    for k in range(x_count):
        key = (key ^ np.uint64(row[k])) * np.uint64(1099511628211)
        key ^= key >> np.uint64(29)
    bucket = np.int64(key & np.uint64(BUCKETS - 1))
    other = layer.bucket[bucket]
    rows = layer.rows
    while other >= 0:
        if not layer.dead[other]:
            no_worse, no_better = _compare(rows, other, row, x_count, p)
            if no_worse:
                if no_better:  # The same goes on from both, so what either has paid counts.
                    layer.paid[other] = max(layer.paid[other], paid)
                return size
            if no_better:
                layer.dead[other] = True
        other = layer.link[other]
    if size == len(layer.dead):
        return _FULL
    layer.rows[size] = row
    layer.dead[size] = False
    layer.paid[size] = paid
    layer.parent[size] = parent
    layer.step[size] = step
    layer.link[size] = layer.bucket[bucket]
    layer.bucket[bucket] = size
    return size + 1


@compiled
def _compare(rows, one, other, x_count, p):
    """Return whether one of the rows is no worse than another row, and no better."""
    for k in range(x_count):
        if rows[one, k] != other[k]:
            return False, False
    no_worse, no_better = True, True
    for k in range(x_count, x_count + p):
        if rows[one, k] & ~other[k]:
            no_worse = False
        if other[k] & ~rows[one, k]:
            no_better = False
    for k in range(x_count + p, len(other)):
        if rows[one, k] > other[k]:
            no_worse = False
            if not no_better:
                break
        elif rows[one, k] < other[k]:
            no_better = False
            if not no_worse:
                break
    return no_worse, no_better
