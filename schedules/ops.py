"""Ops and pairs, in the text form of torch's schedule files."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from bubbleproof.schedules.quantity import shown


class OpKind(StrEnum):
    """What an op computes; the value is the letter that torch writes."""

    FORWARD = "F"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    BACKWARD = "B"


@dataclass(frozen=True, slots=True, order=True)
class Op:
    """One computation of one stage on one microbatch; prints as ``2F0``."""

    stage: int
    kind: OpKind
    microbatch: int

    def __str__(self) -> str:
        """``{stage}{kind}{microbatch}``."""
        return f"{self.stage}{self.kind.value}{self.microbatch}"


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """A forward and a backward of two microbatches that one device runs as one block."""

    forward: Op
    backward: Op

    def __str__(self) -> str:
        """``(2F3;5B1)OVERLAP_F_B``."""
        return f"({self.forward};{self.backward})OVERLAP_F_B"


Block: TypeAlias = Op | Pair
"""What takes one place in a device's row."""

Row: TypeAlias = tuple[Block, ...]
"""The blocks of one device in the order in which it runs them."""

_OP = re.compile(r"(0|[1-9][0-9]*)([FIWB])(0|[1-9][0-9]*)")
_PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
_DIGITS_AT_MOST = 9


def ops_of(block: Block) -> tuple[Op, ...]:
    """Return the ops that run in a block: one, or a pair's two."""
    return (block.forward, block.backward) if isinstance(block, Pair) else (block,)


def has_pairs(rows: Iterable[Row]) -> bool:
    """Whether any block of some rows is a pair."""
    return any(isinstance(block, Pair) for row in rows for block in row)


def parse_op(text: str) -> Op:
    """Read ``2F0``; the whole text must be the op, nothing more.

    Raises
    ------
    ValueError
        If the text is not an op, with an accepted form in the message.
    """
    match = _OP.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{shown(text)} is not an op; write stage, kind (F, I, W or B), microbatch, as 2F0"
        )
    stage, kind, microbatch = match.groups()
    if max(len(stage), len(microbatch)) > _DIGITS_AT_MOST:
        raise ValueError(f"{shown(text)} has a number above {10**_DIGITS_AT_MOST - 1}")
    return Op(int(stage), OpKind(kind), int(microbatch))


def parse_block(text: str) -> Block:
    """Read an op, or a pair written ``(2F3;5B1)OVERLAP_F_B``.

    Raises
    ------
    ValueError
        If the text is neither, or if the pair is not one forward and one full backward.
    """
    match = _PAIR.fullmatch(text)
    if match is None:
        return parse_op(text)
    forward, backward = (parse_op(part) for part in match.groups())
    if forward.kind is not OpKind.FORWARD or backward.kind is not OpKind.BACKWARD:
        raise ValueError(f"{shown(text)}: a pair is an F and then a B, as (2F3;5B1)OVERLAP_F_B")
    return Pair(forward, backward)
