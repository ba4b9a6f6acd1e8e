"""A program: what each device executes, with its messages and its handling of weights.

The text forms are torch's (``torch.distributed.pipelining``, compute_comms files). A SEND_F goes
to the next stage of the chain and a SEND_B to the previous one; RECV_F comes from the previous
stage and RECV_B from the next.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

import msgspec

from bubbleproof.schedules.ops import Block, Op, Pair, Row, parse_block
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Schedule


class ActionKind(StrEnum):
    """What an action does beside computing; the value is torch's word."""

    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    REDUCE_GRAD = "REDUCE_GRAD"

    @property
    def is_message(self) -> bool:
        """Whether it is one end of a transfer, and so belongs to a microbatch."""
        return self in _MESSAGES


_MESSAGES = (ActionKind.SEND_F, ActionKind.RECV_F, ActionKind.SEND_B, ActionKind.RECV_B)


class Action(msgspec.Struct, frozen=True, order=True, gc=False):
    """One end of a message, or a step on a stage's weights; prints as ``0SEND_F1``, ``2UNSHARD``.

    The microbatch is None for what concerns the stage as a whole. A large program has a million of
    these: as a msgspec Struct, frozen and slotted like the dataclasses beside it, one is made in a
    tenth of the time, and the garbage collector does not look at it.
    """

    stage: int
    kind: ActionKind
    microbatch: int | None = None

    def __str__(self) -> str:
        """``{stage}{kind}{microbatch}``."""
        return f"{self.stage}{self.kind.value}{'' if self.microbatch is None else self.microbatch}"


class Group(msgspec.Struct, frozen=True):
    """Messages that a device posts together; prints as ``{0SEND_F1 0RECV_B0}``."""

    messages: tuple[Action, ...]

    def __str__(self) -> str:
        """Return the messages with spaces between, in braces."""
        return "{" + " ".join(map(str, self.messages)) + "}"


Step: TypeAlias = Block | Action | Group
"""What takes one place in a device's program."""


@dataclass(frozen=True, slots=True)
class Program:
    """The steps of all devices for a problem.

    Parameters
    ----------
    problem
        What the program is for.
    rows
        For each device its steps in order.
    source
        How it was made.
    """

    problem: Problem
    rows: tuple[tuple[Step, ...], ...]
    source: str = ""

    def __str__(self) -> str:
        """One line of steps per device."""
        return "\n".join(" ".join(map(str, row)) for row in self.rows)


def blocks_of(steps: Iterable[Step]) -> Row:
    """Return what is computed in the steps of a device."""
    return tuple([step for step in steps if isinstance(step, (Op, Pair))])


def ungrouped(program: Program) -> Program:
    """Return a program with the messages of its groups one after the other."""
    rows: list[tuple[Step, ...]] = []
    for row in program.rows:
        flat: list[Step] = []
        for step in row:
            if isinstance(step, Group):
                flat += step.messages
            else:
                flat.append(step)
        rows.append(tuple(flat))
    return replace(program, rows=tuple(rows))


def schedule_of(program: Program) -> Schedule:
    """Return a program's computations alone, as a schedule without times."""
    return Schedule(
        problem=program.problem,
        rows=tuple(map(blocks_of, program.rows)),
        source=program.source,
    )


_ACTION = re.compile(
    r"(0|[1-9][0-9]{0,8})(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)"
    r"(0|[1-9][0-9]{0,8})?"
)

_BLOCK = re.compile(r"\(|[0-9]*[FIWB](?![A-Z_])")
"""How the text of an op or a pair begins."""


def parse_step(text: str) -> Step:
    """Read an op, a pair, an action as ``0SEND_F1``, or a group as ``{0SEND_F1 0RECV_B0}``.

    Raises
    ------
    ValueError
        If the text is none of them, with an accepted form in the message.
    """
    if text.startswith("{") and text.endswith("}"):
        messages = tuple(_parse_action(part) for part in text[1:-1].split())
        if not messages or not all(message.kind.is_message for message in messages):
            raise ValueError(f"{_shown(text)}: a group holds messages, as {{0SEND_F1 0RECV_B0}}")
        return Group(messages)
    return parse_block(text) if _BLOCK.match(text) else _parse_action(text)


def _parse_action(text: str) -> Action:
    match = _ACTION.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{_shown(text)} is no action; write stage, kind and microbatch, as 0SEND_F1, "
            "or stage and kind, as 0UNSHARD"
        )
    stage, kind, microbatch = int(match[1]), ActionKind(match[2]), match[3]
    if kind.is_message and microbatch is None:
        raise ValueError(f"{_shown(text)}: a message needs its microbatch, as {text}0")
    if not kind.is_message and microbatch is not None:
        raise ValueError(f"{_shown(text)}: {kind.value} is for a whole stage, as {stage}{kind}")
    return Action(stage, kind, None if microbatch is None else int(microbatch))


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:37] + "...")
