"""Torch's numbers of stages, which its actions and the ranges of its profiler (``PP:5F0``) have.

Torch hands what a stage makes to the next number, and knows one chain. So stages are numbered along
their chains, one chain behind the other, and a number is left out between two chains: no stage then
has a neighbour by number that it has not in its chain. For one chain in ascending order, torch's
numbers are ours.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from bubbleproof.schedules.placement import Placement


def torch_numbers(placement: Placement) -> tuple[int, ...]:
    """Return for each stage its number in torch."""
    numbers = [0] * placement.stages
    first = 0
    for chain in placement.chains:
        for position, stage in enumerate(chain):
            numbers[stage] = first + position
        first += len(chain) + 1
    return tuple(numbers)


def chains_of_numbers(microbatches: Mapping[int, AbstractSet[int]]) -> tuple[tuple[int, ...], ...]:
    """Return the chains, in torch's numbers, of stages that passed these microbatches.

    A number that no stage has ends a chain if its neighbours have no microbatch in common; else its
    stage is missing. Overlapped pairs may be left out: the stages of a chain still have the
    microbatch in common whose forwards end first, since no backward is there to pair them with.

    Parameters
    ----------
    microbatches
        By torch's number of each stage, at least one each.

    Raises
    ------
    ValueError
        If a stage is missing.
    """
    chains: list[list[int]] = [[]]
    for number in range(max(microbatches) + 1):
        if number in microbatches:
            chains[-1].append(number)
            continue
        before, after = microbatches.get(number - 1), microbatches.get(number + 1)
        if before is None or after is None or not before.isdisjoint(after):
            raise ValueError(
                f"stage {number} is in no trace; give the traces of all ranks, one file for each"
            )
        chains.append([])
    return tuple(map(tuple, chains))
