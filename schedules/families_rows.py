"""What the schedule families share: their forms, their refusals, and how a row is written.

A family makes its rows in its own form, out of F, B, I, W and pairs. Writing them for a problem
replaces a B by I and W, and a pair by its two ops in sequence. Both keep an order that runs
running: a block's ops stay where the block stood, each waits for no more than the block did, and
each hands on its result no later. A circle of waits in the new order would be one in the old.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import Block, Op, OpKind, Pair, Row
from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Schedule

F, I, W, B = OpKind.FORWARD, OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT, OpKind.BACKWARD  # noqa: E741


class Form(StrEnum):
    """How a family runs its backwards: as B, as I and W, or some of each."""

    FUSED = "fused"
    SPLIT = "split"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Family:
    """What there is to know about a family before it is built.

    Parameters
    ----------
    name
        As ``build`` and the command line take it.
    title
        As its paper calls it.
    placement
        The placement that it needs, as a problem file writes it (V: any number of chunks).
    condition
        What it asks of the devices p and the microbatches n; empty where it takes all.
    source
        Paper and section.
    form
        How it runs its backwards. A fused one fits every problem, the others need I and W.
    copies
        How many copies of the weights the devices hold together.
    """

    name: str
    title: str
    placement: str
    condition: str
    source: str
    form: Form
    copies: int = 1


def require_placement(problem: Problem, name: str, needed: Placement, words: str) -> None:
    """Refuse a problem whose stages are not where the family needs them.

    Raises
    ------
    ValueError
        If the stages are on other devices, or are passed in another order.
    """
    has = problem.placement
    if (has.device_of_stage, has.chains) != (needed.device_of_stage, needed.chains):
        raise ValueError(f'{name} needs placement "{words}"; the problem has {_quoted(has)}')


def require_split(problem: Problem, name: str) -> None:
    """Refuse a problem that excludes I and W.

    Raises
    ------
    ValueError
        If the problem's backward is fused.
    """
    if problem.backward is Backward.FUSED:
        raise ValueError(
            f'{name}: backward is "fused", but the family runs I and W apart; '
            '"split" and "free" are accepted'
        )


def require_even_devices(problem: Problem, name: str) -> None:
    """Refuse an odd number of devices.

    Raises
    ------
    ValueError
        If the number is odd.
    """
    if problem.devices % 2:
        raise ValueError(
            f"{name}: devices is {problem.devices}, but it must be even; "
            f"{problem.devices + 1} is accepted"
        )


def written(problem: Problem, name: str, rows: Iterable[Sequence[Block]]) -> Schedule:
    """Write a family's own rows as a schedule for a problem."""
    return Schedule(
        problem=problem,
        rows=tuple(tuple(_row(problem, device, row)) for device, row in enumerate(rows)),
        source=name,
    )


def numbered(plan: Iterable[Block], first: Mapping[int, int]) -> Row:
    """Give the ops of a plan their microbatches.

    Parameters
    ----------
    plan
        Blocks whose stages and kinds count, and whose microbatches do not.
    first
        For each stage its first microbatch. Every stage takes its microbatches in order; a W
        takes the oldest that its stage has run as I.
    """
    forward, backward = dict(first), dict(first)
    waiting: defaultdict[int, deque[int]] = defaultdict(deque)

    def number(op: Op) -> Op:
        if op.kind is W:
            return Op(op.stage, W, waiting[op.stage].popleft())
        turn = forward if op.kind is F else backward
        microbatch = turn[op.stage]
        turn[op.stage] += 1
        if op.kind is I:
            waiting[op.stage].append(microbatch)
        return Op(op.stage, op.kind, microbatch)

    return tuple(
        number(block)
        if isinstance(block, Op)
        else Pair(number(block.forward), number(block.backward))
        for block in plan
    )


def _row(problem: Problem, device: int, row: Sequence[Block]) -> Iterator[Block]:
    whole = problem.backward is not Backward.SPLIT
    pairs = whole and problem.cost.pair[device] is not None
    for block in row:
        ops = (block,) if isinstance(block, Op) or pairs else (block.forward, block.backward)
        for part in ops:
            if isinstance(part, Pair) or part.kind is not B or whole:
                yield part
            else:
                yield Op(part.stage, I, part.microbatch)
                yield Op(part.stage, W, part.microbatch)


def _quoted(placement: Placement) -> str:
    text = str(placement)
    return text if placement.name == "explicit" else f'"{text}"'
