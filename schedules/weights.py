"""Steps on weights: fetching sharded ones, letting them go, and reducing gradients.

UNSHARD, RESHARD and REDUCE_GRAD as torch's pipeline runtime executes them. A runtime without
sharded weights takes UNSHARD and RESHARD for nothing to do.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from bubbleproof.schedules.ops import Op, OpKind, Pair, Row, ops_of
from bubbleproof.schedules.program import Action, ActionKind, Group, Step


class Reduction(StrEnum):
    """When a device reduces a stage's gradients over its replicas in data parallelism."""

    STAGE = "stage"
    """Behind the stage's last W or B and what is sent of it: the memory is free the earliest."""
    END = "end"
    """Behind the device's last block: no other stage waits meanwhile."""


def with_weights(
    steps: Sequence[Step],
    row: Row,
    *,
    most_unsharded: int | None,
    reduction: Reduction | None,
    together: Mapping[int, int],
) -> tuple[Step, ...]:
    """Return a device's steps with those on weights between them.

    Parameters
    ----------
    steps
        Blocks and messages.
    row
        The blocks alone.
    most_unsharded
        A stage is fetched before its first use, so early that it and the next stages to be used,
        this many in all, are held; what is not among them goes first. None: weights stay whole.
    reduction
        When gradients are reduced; None: never.
    together
        The stages of the device whose gradients are reduced with those of another stage of the
        pipeline, and the number of the layers that both hold. They are reduced at the end in the
        order of these numbers, so that both devices come to them in the same order.
    """
    coming = None if most_unsharded is None else _coming(row, most_unsharded)
    last = {} if reduction is None else _last_backward(row)
    shared = sorted((stage for stage in last if stage in together), key=lambda s: together[s])
    alone = [stage for stage in last if stage not in together]
    over: dict[int, list[int]] = {}
    if reduction is Reduction.STAGE:
        for stage in alone:
            over.setdefault(last[stage], []).append(stage)
    held: tuple[int, ...] = ()
    reduced: list[int] = []
    woven: list[Step] = []
    position = 0
    for step in steps:
        if reduced and not _sends(step):
            woven += _on_weights(ActionKind.REDUCE_GRAD, reduced)
            reduced = []
        if isinstance(step, (Action, Group)):
            woven.append(step)
            continue
        if coming is not None and coming[position] is not held:
            soon = coming[position]
            woven += _on_weights(ActionKind.RESHARD, sorted(set(held) - set(soon)))
            woven += _on_weights(ActionKind.UNSHARD, [s for s in soon if s not in held])
            held = soon
        woven.append(step)
        if position in over:
            reduced += over[position]
        position += 1
    if reduction is Reduction.END:
        reduced = sorted(alone, key=lambda stage: last[stage])
    woven += _on_weights(ActionKind.REDUCE_GRAD, [*reduced, *shared])
    woven += _on_weights(ActionKind.RESHARD, sorted(held))
    return tuple(woven)


def _on_weights(kind: ActionKind, stages: Sequence[int]) -> list[Step]:
    return [Action(stage, kind) for stage in stages]


def _sends(step: Step) -> bool:
    messages = step.messages if isinstance(step, Group) else (step,)
    return any(
        isinstance(message, Action) and message.kind in (ActionKind.SEND_F, ActionKind.SEND_B)
        for message in messages
    )


def _coming(row: Row, most: int) -> list[tuple[int, ...]]:
    """Return for each block of a row the next stages to be used, its own first."""
    coming: list[tuple[int, ...]] = []
    soon: tuple[int, ...] = ()
    for block in reversed(row):
        own = (block.stage,) if isinstance(block, Op) else _stages(block)
        if len(own) > most:
            raise ValueError(
                f"{block} uses 2 stages at once, but at most {most} is unsharded; allow 2 or more"
            )
        if soon[: len(own)] != own:
            soon = (*own, *(stage for stage in soon if stage not in own))[:most]
        coming.append(soon)
    coming.reverse()
    return coming


def _stages(pair: Pair) -> tuple[int, ...]:
    return tuple(dict.fromkeys((pair.forward.stage, pair.backward.stage)))


def _last_backward(row: Row) -> dict[int, int]:
    """Return for each stage the position of its last W or B."""
    last: dict[int, int] = {}
    for position, block in enumerate(row):
        for op in ops_of(block):
            if op.kind in (OpKind.BACKWARD_WEIGHT, OpKind.BACKWARD):
                last[op.stage] = position
    return last
