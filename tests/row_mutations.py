"""Ways to spoil the rows of a schedule, one function each.

``mutations`` has them in its table, with what verify may then say. Each changes rows in place and
leaves them as they are where it finds nothing to change.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import TypeAlias, TypeVar

from bubbleproof.schedules.ops import Block, Op, OpKind, Pair

Rows: TypeAlias = list[list[Block]]
RowMutation: TypeAlias = Callable[[Rows, Random], None]
T = TypeVar("T")

F, I, W, B = OpKind.FORWARD, OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT, OpKind.BACKWARD  # noqa: E741


def places(rows: Rows) -> list[tuple[int, int]]:
    """Return device and position of the ops that stand alone."""
    return [(d, i) for d, i, _ in _ops(rows)]


def drop(rows: Rows, random: Random) -> None:
    """Leave an op out."""
    for device, position, _ in _any_op(rows, random):
        del rows[device][position]


def drop_microbatch(rows: Rows, random: Random) -> None:
    """Leave a microbatch out on one device, as an order for fewer of them does."""
    for device, _, chosen in _any_op(rows, random):
        rows[device] = [
            block
            for block in rows[device]
            if not (isinstance(block, Op) and block.microbatch == chosen.microbatch)
        ]


def duplicate(rows: Rows, random: Random) -> None:
    """Run an op a second time somewhere in its row."""
    for device, _, op in _any_op(rows, random):
        rows[device].insert(random.randint(0, len(rows[device])), op)


def duplicate_elsewhere(rows: Rows, random: Random) -> None:
    """Run an op a second time, on another device."""
    for device, _, op in _any_op(rows, random):
        for other in _other(rows, device, random):
            rows[other].insert(random.randint(0, len(rows[other])), op)


def move_away(rows: Rows, random: Random) -> None:
    """Run an op on another device."""
    for device, position, op in _any_op(rows, random):
        for other in _other(rows, device, random):
            rows[other].insert(random.randint(0, len(rows[other])), op)
            del rows[device][position]


def exchange(rows: Rows, random: Random) -> None:
    """Exchange two ops of a row."""
    row = random.choice([row for row in rows if row])
    one, other = random.randrange(len(row)), random.randrange(len(row))
    row[one], row[other] = row[other], row[one]


def exchange_neighbours(rows: Rows, random: Random) -> None:
    """Exchange an op with the one behind it."""
    row = random.choice([row for row in rows if row])
    at = random.randrange(len(row))
    row[at : at + 2] = reversed(row[at : at + 2])


def exchange_rows(rows: Rows, random: Random) -> None:
    """Give two devices each other's rows."""
    filled = [d for d, row in enumerate(rows) if row]
    if len(filled) > 1:
        one, other = random.sample(filled, 2)
        rows[one], rows[other] = rows[other], rows[one]


def exchange_microbatches(rows: Rows, random: Random) -> None:
    """Exchange the microbatches of two ops of one row, one kind and one stage."""
    for device, position, op in _any_op(rows, random):
        alike = [at for at in _alike(rows[device], op) if at != position]
        if alike:
            at = random.choice(alike)
            rows[device][position], rows[device][at] = rows[device][at], op


def reverse_microbatches(rows: Rows, random: Random) -> None:
    """Run the ops of one kind and stage in the opposite order of microbatches."""
    for device, _, op in _any_op(rows, random):
        row, alike = rows[device], _alike(rows[device], op)
        for at, block in zip(alike, [row[at] for at in reversed(alike)], strict=True):
            row[at] = block


def reverse_row(rows: Rows, random: Random) -> None:
    """Run a row from its end."""
    random.choice(rows).reverse()


def hurry(rows: Rows, random: Random) -> None:
    """Run an op before all else of its row."""
    for device, position, op in _any_op(rows, random):
        del rows[device][position]
        rows[device].insert(0, op)


def postpone(rows: Rows, random: Random) -> None:
    """Run an op after all else of its row."""
    for device, position, op in _any_op(rows, random):
        del rows[device][position]
        rows[device].append(op)


def rename_microbatch(rows: Rows, random: Random) -> None:
    """Write another number on one op."""
    for device, position, op in _any_op(rows, random):
        rows[device][position] = replace(op, microbatch=op.microbatch + random.choice([-1, 1]))


def rename_stage(rows: Rows, random: Random) -> None:
    """Write another stage on one op."""
    for device, position, op in _any_op(rows, random):
        rows[device][position] = replace(op, stage=op.stage + random.choice([-1, 1]))


def change_kind(rows: Rows, random: Random) -> None:
    """Write another kind on one op."""
    for device, position, op in _any_op(rows, random):
        kind = random.choice([kind for kind in OpKind if kind is not op.kind])
        rows[device][position] = replace(op, kind=kind)


def split_backward(rows: Rows, random: Random) -> None:
    """Write a B as I and W."""
    for device, position, op in _any_op(rows, random, B):
        rows[device][position : position + 1] = [replace(op, kind=I), replace(op, kind=W)]


def merge_backward(rows: Rows, random: Random) -> None:
    """Write an I as B and leave its W out."""
    for device, position, op in _any_op(rows, random, I):
        rows[device][position] = replace(op, kind=B)
        rows[device].remove(replace(op, kind=W))


def merge_backward_late(rows: Rows, random: Random) -> None:
    """Write a W as B and leave its I out, so that the gradient comes later."""
    for device, position, op in _any_op(rows, random, W):
        rows[device][position] = replace(op, kind=B)
        rows[device].remove(replace(op, kind=I))


def fuse_twice(rows: Rows, random: Random) -> None:
    """Write an I as B and keep its W."""
    for device, position, op in _any_op(rows, random, I):
        rows[device][position] = replace(op, kind=B)


def split_pair(rows: Rows, random: Random) -> None:
    """Run the ops of a pair one after the other, in either order."""
    for device, position, pair in _any_pair(rows, random):
        rows[device][position : position + 1] = random.sample([pair.forward, pair.backward], 2)


def turn_pair(rows: Rows, random: Random) -> None:
    """Write a pair's backward first."""
    for device, position, pair in _any_pair(rows, random):
        rows[device][position] = Pair(pair.backward, pair.forward)


def pair_with_itself(rows: Rows, random: Random) -> None:
    """Pair a forward with the backward of its own microbatch and stage."""
    for device, position, op in _any_op(rows, random, B):
        forward = replace(op, kind=F)
        if forward in rows[device]:
            rows[device][position] = Pair(forward, op)
            rows[device].remove(forward)


def pair_neighbours(rows: Rows, random: Random) -> None:
    """Run two neighbours as a pair, whatever they are."""
    found = [
        (d, i, one, other)
        for d, row in enumerate(rows)
        for i, (one, other) in enumerate(pairwise(row))
        if isinstance(one, Op) and isinstance(other, Op)
    ]
    for device, position, one, other in any_of(found, random):
        rows[device][position : position + 2] = [Pair(one, other)]


def drop_row(rows: Rows, random: Random) -> None:
    """Leave a device out."""
    del rows[random.randrange(len(rows))]


def add_row(rows: Rows, random: Random) -> None:
    """Add a device that does nothing."""
    rows.insert(random.randint(0, len(rows)), [])


def any_of(found: Sequence[T], random: Random) -> tuple[T, ...]:
    """Return one of what was found; nothing where nothing was."""
    return (random.choice(found),) if found else ()


def _ops(rows: Rows, kind: OpKind | None = None) -> list[tuple[int, int, Op]]:
    return [
        (d, i, block)
        for d, row in enumerate(rows)
        for i, block in enumerate(row)
        if isinstance(block, Op) and (kind is None or block.kind is kind)
    ]


def _any_op(
    rows: Rows, random: Random, kind: OpKind | None = None
) -> tuple[tuple[int, int, Op], ...]:
    """Return one op that stands alone, with its place."""
    return any_of(_ops(rows, kind), random)


def _any_pair(rows: Rows, random: Random) -> tuple[tuple[int, int, Pair], ...]:
    found = [
        (d, i, block)
        for d, row in enumerate(rows)
        for i, block in enumerate(row)
        if isinstance(block, Pair)
    ]
    return any_of(found, random)


def _other(rows: Rows, device: int, random: Random) -> tuple[int, ...]:
    return any_of([other for other in range(len(rows)) if other != device], random)


def _alike(row: Sequence[Block], op: Op) -> list[int]:
    """Return the places of a row's ops of one stage and kind."""
    return [
        at
        for at, block in enumerate(row)
        if isinstance(block, Op) and (block.stage, block.kind) == (op.stage, op.kind)
    ]
