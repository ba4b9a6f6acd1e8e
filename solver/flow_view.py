"""What a fluid is looked at for: the span of one device, or the makespan, seen on some devices."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from math import gcd

from bubbleproof.schedules.problem import Problem
from bubbleproof.solver.flow_kinds import Event, Kind, kinds
from bubbleproof.solver.mirror import Mirror, mirror_of
from bubbleproof.solver.times import LeastTimes

_OF_DEVICE = ("exclusive", "memory", "time", "busy at least", "busy at most")
"""The laws of one device; the others are of stages."""


@dataclass(frozen=True)
class View:
    """A relaxation of a problem to some of its devices.

    Parameters
    ----------
    target
        The device whose span is bounded; None for the makespan.
    devices
        The devices that are looked at.
    from_begin
        Whether nothing at all was done before time 0; then no images are made use of.
    """

    problem: Problem
    target: int | None
    devices: tuple[int, ...]
    from_begin: bool = False

    @cached_property
    def times(self) -> LeastTimes:
        """The problem's least times."""
        return LeastTimes(self.problem)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """All kinds of blocks of the devices."""
        return tuple(kind for device in self.devices for kind in kinds(self.problem, device))

    @cached_property
    def unit(self) -> int:
        """What divides every time of the problem, in ticks."""
        cost, lag = self.problem.cost, self.problem.lag
        ticks = [*cost.F, *cost.I, *cost.W, *cost.B]
        ticks += [pair for pair in cost.pair if pair is not None]
        for chain in self.problem.placement.chains:
            ticks += [time for a, b in pairwise(chain) for time in (lag(a, b), lag(b, a))]
        return gcd(*ticks) or 1

    @cached_property
    def way(self) -> int:
        """The longest least way of a microbatch forth and back, in units; at least 1."""
        chains = self.problem.placement.chains
        return max(1, *(self.times.turnaround(chain[0]) // self.unit for chain in chains if chain))

    @cached_property
    def mirror(self) -> Mirror | None:
        """The mirror in which what is looked at is its own image; None where there is none."""
        alike = self.target is None and not self.from_begin
        mirror = mirror_of(self.problem) if alike else None
        if mirror is None or {mirror.device[d] for d in self.devices} != set(self.devices):
            return None
        return mirror

    @cached_property
    def chains(self) -> tuple[tuple[int, ...], ...]:
        """For each chain with microbatches its stages that are seen; of two images one."""
        placement = self.problem.placement
        seen = tuple(
            tuple(s for s in chain if placement.device_of_stage[s] in self.devices)
            for chain, microbatches in zip(placement.chains, self.problem.microbatches, strict=True)
            if microbatches
        )
        return seen if self.mirror is None else seen[:1]

    @cached_property
    def early(self) -> frozenset[tuple[int, Event]]:
        """What may have been done before the target's first start."""
        if self.target is None or self.from_begin:
            return frozenset()
        return frozenset(self._before(self.target))

    def _before(self, target: int) -> Iterator[tuple[int, Event]]:
        for number, chain in enumerate(self.problem.placement.chains):
            first = self.times.first_on(target, number)
            if first is None:
                yield from product(chain, Event)
            else:
                yield from ((stage, Event.FORWARD) for stage in chain[: chain.index(first)])

    def image(self, does: tuple[tuple[int, Event], ...]) -> tuple[tuple[int, Event], ...]:
        """Return what the image of a kind does."""
        if self.mirror is None:
            return does
        return tuple((self.mirror.stage[stage], event) for stage, event in does)

    def law_image(self, law: str) -> str:
        """Return the name of a law's image."""
        mirror = self.mirror
        if mirror is None:
            return law
        name, _, where = law.rpartition(" ")
        if name in _OF_DEVICE:
            return f"{name} {mirror.device[int(where)]}"
        return re.sub(r"\d+", lambda stage: str(mirror.stage[int(stage[0])]), law)
