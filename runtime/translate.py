# pyright: reportPrivateUsage=false
# Torch keeps its actions private; this is the only module that makes them.
"""Our programs as torch's actions."""

from collections.abc import Sequence

from torch.distributed.pipelining.schedules import _Action, _ComputationType

from bubbleproof.schedules.ops import Op, Pair
from bubbleproof.schedules.program import Action, Group, Program
from bubbleproof.schedules.torch_numbers import torch_numbers


def torch_actions(program: Program) -> dict[int, list[_Action]]:
    """Return for each device what torch executes; the messages of a group one after the other."""
    numbers = torch_numbers(program.problem.placement)
    return {
        device: [
            _action(part, numbers)
            for step in row
            for part in (step.messages if isinstance(step, Group) else (step,))
        ]
        for device, row in enumerate(program.rows)
    }


def _action(step: Op | Pair | Action, numbers: Sequence[int]) -> _Action:
    if isinstance(step, Pair):
        halves = (_action(step.forward, numbers), _action(step.backward, numbers))
        return _Action(-1, _ComputationType.OVERLAP_F_B, None, halves)
    # Torch writes each kind with the same letters.
    return _Action(numbers[step.stage], _ComputationType(step.kind.value), step.microbatch)
