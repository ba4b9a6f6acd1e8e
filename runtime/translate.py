# pyright: reportPrivateUsage=false
# Torch keeps its actions private; this is the only module that makes them.
"""Our programs in torch's words: its numbers of stages and its actions.

Torch hands what a stage makes to the next number, and knows one chain. So stages are numbered along
their chains, one chain behind the other, and a number is left out between two chains: no stage then
has a neighbour by number that it has not in its chain. For one chain in ascending order, torch's
numbers are ours; else the names in torch's profiles (``PP:5F0``) have torch's.
"""

from collections.abc import Sequence

from torch.distributed.pipelining.schedules import _Action, _ComputationType

from bubbleproof.schedules.ops import Op, Pair
from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.program import Action, Group, Program


def torch_numbers(placement: Placement) -> tuple[int, ...]:
    """Return for each stage its number in torch."""
    numbers = [0] * placement.stages
    first = 0
    for chain in placement.chains:
        for position, stage in enumerate(chain):
            numbers[stage] = first + position
        first += len(chain) + 1
    return tuple(numbers)


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
