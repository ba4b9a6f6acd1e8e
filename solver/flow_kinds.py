"""The kinds of blocks that a device may run, and what each does: what a fluid counts."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import product

from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.problem import Problem


class Event(Enum):
    """What a block does to a microbatch on a stage."""

    FORWARD = "F"
    GRADIENT = "G"
    WEIGHT = "W"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of block of a device; blocks of one kind are counted together.

    Attributes
    ----------
    ticks
        Its duration.
    does
        What it does, each for a stage.
    allocate, free
        What it takes at its start and gives back at its end, in grains.
    """

    device: int
    ticks: int
    does: tuple[tuple[int, Event], ...]
    allocate: int
    free: int

    @property
    def name(self) -> str:
        """What it does, as ``2F`` or ``2G2W``."""
        return "".join(f"{stage}{event.value}" for stage, event in self.does)


def kinds(problem: Problem, device: int) -> Iterator[Kind]:
    """Yield the kinds of blocks that a device may run."""
    cost, memory, backward = problem.cost, problem.memory, problem.backward
    stages = problem.placement.stages_of_device[device]
    for s in stages:
        forward, whole = ((s, Event.FORWARD),), ((s, Event.GRADIENT), (s, Event.WEIGHT))
        yield Kind(device, cost.F[s], forward, *memory.F[s])
        if backward.allows(OpKind.BACKWARD_INPUT):
            yield Kind(device, cost.I[s], whole[:1], *memory.I[s])
            yield Kind(device, cost.W[s], whole[1:], *memory.W[s])
        if backward.allows(OpKind.BACKWARD):
            yield Kind(device, cost.B[s], whole, *memory.B[s])
    ticks = cost.pair[device]
    if ticks is None or not backward.allows(OpKind.BACKWARD):
        return
    for f, b in product(stages, stages):
        does = ((f, Event.FORWARD), (b, Event.GRADIENT), (b, Event.WEIGHT))
        (first, second), (third, fourth) = memory.F[f], memory.B[b]
        yield Kind(device, ticks, does, first + third, second + fourth)
