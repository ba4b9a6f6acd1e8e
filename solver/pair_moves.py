"""Moves in orders with overlapped pairs, compiled: shift, pair, take apart, split and fuse.

An order is [first or second op, device, place], -1 for none; ``dispatch`` says how ops are written.
Each move tells whether it has changed anything.
"""
# pyright: basic
# numba compiles these functions and has no types of its own.

from bubbleproof.solver.compiled import compiled
from bubbleproof.solver.dispatch import FORWARD, FULL, INPUT, WEIGHT

REACH = 8
"""How many places away a block may be shifted, or a partner be looked for."""


@compiled
def _place_of(order, device, length, code):
    for place in range(length[device]):
        if order[0, device, place] == code or order[1, device, place] == code:
            return place
    return -1


@compiled
def _bound(one, two, most, stages):
    """Whether two ops have to keep their order: of one microbatch, or two of one kind."""
    if one < 0 or two < 0 or one // most % stages != two // most % stages:
        return False
    kind, other = one // most // stages, two // most // stages
    if one % most == two % most or kind == other:
        return True
    return kind in (INPUT, FULL) and other in (INPUT, FULL)


@compiled
def _shift(order, length, device, place, distance, most, stages):
    """Move a block in its row until it would pass one that it is bound to; return its place."""
    step = 1 if distance > 0 else -1
    for _ in range(abs(distance)):
        near = place + step
        if near < 0 or near >= length[device]:
            break
        for one in range(2):
            for two in range(2):
                if _bound(order[one, device, place], order[two, device, near], most, stages):
                    return place
        for member in range(2):
            kept = order[member, device, place]
            order[member, device, place] = order[member, device, near]
            order[member, device, near] = kept
        place = near
    return place


@compiled
def shift_op(order, length, device, code, distance, most, stages):
    """Move the block of an op in its row as far as what it is bound to lets it."""
    place = _place_of(order, device, length, code)
    if place < 0:
        return False
    return _shift(order, length, device, place, distance, most, stages) != place


@compiled
def _insert(order, length, device, place, code):
    for member in range(2):
        for back in range(length[device], place, -1):
            order[member, device, back] = order[member, device, back - 1]
    order[0, device, place], order[1, device, place] = code, -1
    length[device] += 1


@compiled
def _remove(order, length, device, place):
    length[device] -= 1
    for member in range(2):
        for back in range(place, length[device]):
            order[member, device, back] = order[member, device, back + 1]
        order[member, device, length[device]] = -1


@compiled
def pair_ops(order, length, device, forward, backward, stays, most, stages):
    """Make a forward and a backward, neither of them in a pair, one block."""
    kind = backward // most // stages
    if kind not in (INPUT, FULL) or forward // most // stages != FORWARD:
        return False
    if forward % most == backward % most and forward // most % stages == backward // most % stages:
        return False
    here = _place_of(order, device, length, forward)
    there = _place_of(order, device, length, backward)
    if here < 0 or there < 0 or order[1, device, here] >= 0 or order[1, device, there] >= 0:
        return False
    apart = there - here - 1 if there > here else there - here + 1
    if apart and stays:
        there = _shift(order, length, device, there, -apart, most, stages)
    elif apart:
        here = _shift(order, length, device, here, apart, most, stages)
    if abs(there - here) != 1:
        return True  # It has been shifted all the same.
    full = (FULL * stages + backward // most % stages) * most + backward % most
    order[1, device, here] = full
    _remove(order, length, device, there)
    if kind == INPUT:
        weight = (WEIGHT * stages + backward // most % stages) * most + backward % most
        _remove(order, length, device, _place_of(order, device, length, weight))
    return True


@compiled
def part(order, length, device, code, split, ahead, most, stages):
    """Take a pair apart, its backward whole or split, and ahead of the forward or behind it."""
    place = _place_of(order, device, length, code)
    if place < 0 or order[1, device, place] < 0:
        return False
    backward = order[1, device, place]
    rest = backward % most + backward // most % stages * most
    order[1, device, place] = -1
    behind = place if ahead else place + 1
    if split:
        _insert(order, length, device, behind, INPUT * stages * most + rest)
        _insert(order, length, device, max(place, behind) + 1, WEIGHT * stages * most + rest)
    else:
        _insert(order, length, device, behind, backward)
    return True


@compiled
def split_or_fuse(order, length, device, code, draw, most, stages):
    """Run a backward as I and, some places later, W; or as one, where it was two."""
    kind, rest = code // most // stages, code % (stages * most)
    if kind == FORWARD:
        return False
    full, first = FULL * stages * most + rest, INPUT * stages * most + rest
    weight = WEIGHT * stages * most + rest
    place = _place_of(order, device, length, full)
    if place >= 0:
        if order[1, device, place] >= 0:
            return False
        order[0, device, place] = first
        later = min(length[device], place + 1 + int(draw * REACH))
        _insert(order, length, device, later, weight)
        return True
    place = _place_of(order, device, length, first)
    if place < 0:
        return False
    order[0, device, place] = full
    _remove(order, length, device, _place_of(order, device, length, weight))
    return True
