"""Steps on weights: fetching sharded ones, letting them go, and reducing gradients.

UNSHARD, RESHARD and REDUCE_GRAD as torch's pipeline runtime executes them. A runtime without
sharded weights takes UNSHARD and RESHARD for nothing to do.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum

from bubbleproof.schedules.ops import Op, OpKind, Pair, Row
from bubbleproof.schedules.program import Action, ActionKind, Group, Step

WITH_WEIGHTS = frozenset({OpKind.BACKWARD_WEIGHT, OpKind.BACKWARD})


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
    blocks = [index for index, step in enumerate(steps) if isinstance(step, (Op, Pair))]
    inserted: defaultdict[int, list[Step]] = defaultdict(list)
    last = {} if reduction is None else _last_backward(row)
    # A copy that no microbatch passes has no gradient of its own, but gets the others' sum.
    shared = [] if reduction is None else sorted(together, key=lambda stage: together[stage])
    for stage in sorted(last.keys() - together.keys(), key=lambda s: last[s]):
        index = len(steps)
        if reduction is Reduction.STAGE:
            index = blocks[last[stage]] + 1
            while index < len(steps) and _sends(steps[index]):
                index += 1
        inserted[index].append(Action(stage, ActionKind.REDUCE_GRAD))
    inserted[len(steps)] += _on_weights(ActionKind.REDUCE_GRAD, shared)
    held: tuple[int, ...] = ()
    for position, soon in [] if most_unsharded is None else _coming(row, most_unsharded):
        index = blocks[position] if position < len(blocks) else len(steps)
        inserted[index] += _on_weights(ActionKind.RESHARD, sorted(set(held) - set(soon)))
        inserted[index] += _on_weights(ActionKind.UNSHARD, [s for s in soon if s not in held])
        held = soon
    woven: list[Step] = []
    done = 0
    for index in sorted(inserted):
        woven += steps[done:index]
        woven += inserted[index]
        done = index
    woven += steps[done:]
    return tuple(woven)


def _on_weights(kind: ActionKind, stages: Sequence[int]) -> list[Step]:
    return [Action(stage, kind) for stage in stages]


def _sends(step: Step) -> bool:
    messages = step.messages if isinstance(step, Group) else (step,)
    return any(
        isinstance(message, Action) and message.kind in (ActionKind.SEND_F, ActionKind.SEND_B)
        for message in messages
    )


def _coming(row: Row, most: int) -> list[tuple[int, tuple[int, ...]]]:
    """Return the next stages to be used, the first of them first, wherever these are others.

    Each with the position of the block ahead of which it is so; none are behind the last block.
    """
    coming: list[tuple[int, tuple[int, ...]]] = []
    soon: set[int] = set()
    # For each stage twice the position of its next use; one more for a pair's second stage.
    following: dict[int, int] = {}
    for position in range(len(row) - 1, -1, -1):
        block = row[position]
        stages = (block.stage,) if isinstance(block, Op) else _stages(block)
        if not soon.issuperset(stages):
            if len(stages) > most:
                raise ValueError(
                    f"{block} uses 2 stages at once, but at most {most} is unsharded; "
                    "allow 2 or more"
                )
            coming.append((position + 1, tuple(sorted(soon, key=following.__getitem__))))
            soon.update(stages)
        following[stages[-1]] = 2 * position + 1
        following[stages[0]] = 2 * position
        while len(soon) > most:
            soon.remove(max(soon, key=following.__getitem__))
    coming.append((0, tuple(sorted(soon, key=following.__getitem__))))
    coming.reverse()
    return coming


def _stages(pair: Pair) -> tuple[int, ...]:
    return tuple(dict.fromkeys((pair.forward.stage, pair.backward.stage)))


def _last_backward(row: Row) -> dict[int, int]:
    """Return for each stage the position of its last W or B."""
    last: dict[int, int] = {}
    for position, block in enumerate(row):
        op = block if isinstance(block, Op) else block.backward
        if op.kind in WITH_WEIGHTS:
            last[op.stage] = position
    return last
