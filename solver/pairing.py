"""Orders with overlapped pairs made from others: pair what stands together, let weights wait.

Published orders with pairs run some forwards and backwards apart that could be a pair, and some
full backwards on the way that the next device waits for. Both can be had from the order alone:
neighbours in a row become a pair, full backwards become I and W, and each W moves to where its
device would be idle anyway, or where memory asks for it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import Block, Op, OpKind, Pair, Row, ops_of
from bubbleproof.schedules.problem import Problem
from bubbleproof.solver.limits import room

GAPS = (0.0, 0.25, 0.5, 0.75, 1.0, 2.0)
"""How long an idle time must be for a W to run in it, in multiples of the W's own time."""


def variants(problem: Problem, rows: Sequence[Row]) -> Iterator[tuple[Row, ...]]:
    """Yield orders made from a valid one; some may be worse than it.

    Only where the problem's backward is free can weights wait for a backward that a pair fuses.
    """
    paired = tuple(joined(problem, row) for row in rows)
    for order in dict.fromkeys((tuple(rows), paired)):
        yield order
        if problem.backward is Backward.FREE:
            for gap in GAPS:
                late = with_late_weights(problem, order, gap=gap)
                if late is not None:
                    yield late


def joined(problem: Problem, row: Row) -> Row:
    """Return a row in which a forward and a full backward that stand together are a pair.

    The first two of a run are; a microbatch is not paired with itself, nor where its device allows
    no pair. The order may not run any more, where one of the two led to what the other waits for.
    """
    found: list[Block] = []
    for block in row:
        before = found[-1] if found else None
        if isinstance(block, Op) and isinstance(before, Op):
            pair = _pair(problem, before, block)
            if pair is not None:
                found[-1] = pair
                continue
        found.append(block)
    return tuple(found)


def _pair(problem: Problem, first: Op, second: Op) -> Pair | None:
    device = problem.placement.device_of_stage[first.stage]
    kinds = {first.kind: first, second.kind: second}
    if problem.cost.pair[device] is None or set(kinds) != {OpKind.FORWARD, OpKind.BACKWARD}:
        return None
    if first.microbatch == second.microbatch:
        return None
    return Pair(kinds[OpKind.FORWARD], kinds[OpKind.BACKWARD])


def with_late_weights(
    problem: Problem, rows: Sequence[Row], *, gap: float
) -> tuple[Row, ...] | None:
    """Return the order with every backward outside a pair split, and W's where devices wait.

    Parameters
    ----------
    problem
        A problem whose backward is free.
    rows
        A valid order.
    gap
        How long an idle time must be for a W to run in it, in multiples of the W's time.

    Returns
    -------
    tuple or None
        None where memory lets the order run no further.
    """
    return _LateWeights(problem, rows, gap).order()


class _LateWeights:
    """Devices run their blocks in order and in the order of time, with W's in between."""

    def __init__(self, problem: Problem, rows: Sequence[Row], gap: float) -> None:
        self._problem, self._gap = problem, gap
        self._coming = [deque(_without_weights(row)) for row in rows]
        self._waiting: list[deque[Op]] = [deque() for _ in rows]
        self._rows: list[list[Block]] = [[] for _ in rows]
        self._free = [0] * len(rows)
        self._rooms = [room(problem, device) for device in range(len(rows))]
        self._held = [0] * len(rows)
        self._ends: dict[tuple[int, bool, int], int] = {}
        """By stage, whether it is a backward, and microbatch."""

    def order(self) -> tuple[Row, ...] | None:
        """Return the order; None where no device can go on."""
        devices = range(len(self._rows))
        while any(self._coming) or any(self._waiting):
            choices = [choice for d in devices if (choice := self._next(d)) is not None]
            if not choices:
                return None
            start, device, block = min(choices, key=lambda choice: choice[:2])
            self._run(device, block, start)
        return tuple(map(tuple, self._rows))

    def _next(self, device: int) -> tuple[int, int, Block] | None:
        """Return what a device would run next, and when; None where it has to wait for others."""
        free, coming, waiting = self._free[device], self._coming[device], self._waiting[device]
        start = self._ready(coming[0]) if coming and self._fits(device, coming[0]) else None
        weight = waiting[0] if waiting and self._fits(device, waiting[0]) else None
        if start is not None:
            start = max(start, free)
            if weight is None or start - free <= self._gap * self._problem.duration(weight):
                return start, device, coming[0]
        return None if weight is None else (free, device, weight)

    def _fits(self, device: int, block: Block) -> bool:
        limit = self._rooms[device]
        return limit is None or self._held[device] + self._problem.change(block)[0] <= limit

    def _ready(self, block: Block) -> int | None:
        """Return when the inputs of a block are there; None where they are not known yet."""
        arrivals = [self._arrival(op) for op in ops_of(block)]
        known = [arrival for arrival in arrivals if arrival is not None]
        return max(known) if len(known) == len(arrivals) else None

    def _arrival(self, op: Op) -> int | None:
        placement, forward = self._problem.placement, op.kind is OpKind.FORWARD
        near = placement.previous[op.stage] if forward else placement.following[op.stage]
        own = None if forward else self._ends.get((op.stage, False, op.microbatch))
        if near is None:
            return 0 if forward else own
        end = self._ends.get((near, not forward, op.microbatch))
        if end is None or (own is None and not forward):
            return None
        return max(end + self._problem.lag(near, op.stage), own or 0)

    def _run(self, device: int, block: Block, start: int) -> None:
        end = start + self._problem.duration(block)
        allocate, free = self._problem.change(block)
        self._held[device] += allocate - free
        self._free[device] = end
        self._rows[device].append(block)
        if isinstance(block, Op) and block.kind is OpKind.BACKWARD_WEIGHT:
            self._waiting[device].popleft()
            return
        self._coming[device].popleft()
        for op in ops_of(block):
            self._ends[op.stage, op.kind is not OpKind.FORWARD, op.microbatch] = end
            if op.kind is OpKind.BACKWARD_INPUT:
                self._waiting[device].append(replace(op, kind=OpKind.BACKWARD_WEIGHT))


def _without_weights(row: Row) -> Iterator[Block]:
    """Yield a row with every backward outside a pair as I, and no W."""
    for block in row:
        if isinstance(block, Pair):
            yield block
        elif block.kind is OpKind.BACKWARD:
            yield replace(block, kind=OpKind.BACKWARD_INPUT)
        elif block.kind is not OpKind.BACKWARD_WEIGHT:
            yield block
