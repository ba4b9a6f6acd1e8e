"""DualPipe and DualPipeV against the orders that their reference implementation runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest

import bubbleproof as bp
from bubbleproof.schedules.ops import Block, Op, Pair, ops_of, parse_block

ReferenceBlock: TypeAlias = list[str | int | list[int]]
"""``[kind, chain, microbatch]``, or ``["FB", [chain, microbatch], [chain, microbatch]]``."""


class Order(msgspec.Struct):
    """What the reference runs, device by device, for p devices and n microbatches."""

    schedule: str
    p: int
    n: int
    ops: list[list[ReferenceBlock]]


class Orders(msgspec.Struct):
    """All reference orders."""

    orders: list[Order]


ORDERS = msgspec.json.decode(
    (Path(__file__).parent / "data" / "dualpipe_orders.json").read_bytes(), type=Orders
).orders


def built(name: str, devices: int, microbatches: int) -> bp.Schedule:
    """Return a family's own form, with pairs allowed everywhere."""
    return bp.families.build(
        name,
        bp.Problem(
            devices=devices,
            placement=bp.families.describe(name).placement,
            microbatches=microbatches,
            cost={"F": 3, "I": 4, "W": 2, "pair": 7},
            backward="free",
        ),
    )


@pytest.mark.parametrize("order", ORDERS, ids=[f"{o.schedule}-{o.p}-{o.n}" for o in ORDERS])
def test_the_order_is_the_reference_implementations(order: Order) -> None:
    """Op for op what github.com/deepseek-ai/DualPipe runs."""
    name = {"dualpipe": "dualpipe", "dualpipev": "dualpipe_v"}[order.schedule]
    first = (0, order.n // 2 if name == "dualpipe" else 0)
    assert built(name, order.p, order.n).rows == tuple(
        tuple(_block(block, (device, 2 * order.p - 1 - device), first) for block in row)
        for device, row in enumerate(order.ops)
    )


def test_all_61_reference_orders_are_compared() -> None:
    """27 of DualPipe and 34 of DualPipeV, up to 16 devices."""
    assert sorted(order.schedule for order in ORDERS) == ["dualpipe"] * 27 + ["dualpipev"] * 34
    assert {order.p for order in ORDERS} == {1, 2, 3, 4, 5, 6, 8, 16}


@pytest.mark.parametrize(("p", "n"), [(2, 4), (4, 10), (8, 20), (10, 20)])
def test_dualpipe_is_mirror_symmetric(p: int, n: int) -> None:
    """Device d runs what device p-1-d runs, with the chains exchanged."""
    rows = built("dualpipe", p, n).rows
    stage = {s: (s + p) % (2 * p) for s in range(2 * p)}
    shift = {s: n // 2 if s < p else -(n // 2) for s in range(2 * p)}
    for device, row in enumerate(rows):
        assert tuple(_moved(block, stage, shift) for block in row) == rows[p - 1 - device]


@pytest.mark.parametrize(("p", "n"), [(2, 4), (4, 10), (8, 20), (10, 20)])
def test_half_of_dualpipe_is_dualpipe_v(p: int, n: int) -> None:
    """The first p/2 devices run DualPipeV with n/2 microbatches, chain 1 being the way back."""
    half = built("dualpipe_v", p // 2, n // 2).rows
    stage = {d: d for d in range(p // 2)} | {2 * p - 1 - d: p - 1 - d for d in range(p // 2)}
    shift = {s: -(n // 2) if s >= p else 0 for s in range(2 * p)}
    for device, row in enumerate(half):
        whole = built("dualpipe", p, n).rows[device]
        assert tuple(_moved(block, stage, shift) for block in whole) == row


def _moved(block: Block, stage: Mapping[int, int], shift: Mapping[int, int]) -> Block:
    ops = [Op(stage[op.stage], op.kind, op.microbatch + shift[op.stage]) for op in ops_of(block)]
    return Pair(*ops) if isinstance(block, Pair) else ops[0]


def _block(block: ReferenceBlock, stages: Sequence[int], first: Sequence[int]) -> Block:
    """Return a reference block in global numbers, by its text."""
    match block:
        case ["FB", [int(chain), int(forward)], [int(other), int(backward)]]:
            return parse_block(
                f"({stages[chain]}F{first[chain] + forward};"
                f"{stages[other]}B{first[other] + backward})OVERLAP_F_B"
            )
        case [str(kind), int(chain), int(microbatch)]:
            return parse_block(f"{stages[chain]}{kind}{first[chain] + microbatch}")
        case _:
            raise ValueError(f"{block} is no block of the reference")
