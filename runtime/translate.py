"""Our programs in torch's words: its numbers of stages and its actions.

Torch hands what a stage makes to the next number, and knows one chain. So stages are numbered along
their chains, one chain behind the other, and a number is left out between two chains: no stage then
has a neighbour by number that it has not in its chain. For one chain in ascending order, torch's
numbers are ours.
"""

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
