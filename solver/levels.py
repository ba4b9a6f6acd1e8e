"""Memory limits as one number, a level, and the levels at which anything can change.

The level is the limit, in grains, of the device with the largest; the others' are in proportion
to the problem's limits, or equal where it has none. A device's peak is a sum of what its ops
allocate and free, so between two such sums a limit makes no difference.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.simulate import Timeline
from bubbleproof.solver.limits import least_limit

MOST_LEVELS = 20_000
"""Where a device's memory has more possible sums, as many evenly spaced ones stand for them."""


@dataclass(frozen=True)
class Levels:
    """The levels of a problem.

    Parameters
    ----------
    problem
        The problem.
    shares
        For each device its part of a level, out of the largest part; None for no limit.
    """

    problem: Problem
    shares: tuple[int | None, ...]

    @staticmethod
    def of(problem: Problem) -> "Levels":
        """Return the levels of a problem.

        Raises
        ------
        ValueError
            If a device that needs memory has a limit of 0, which no scaling raises.
        """
        limits = problem.memory.limit
        if all(limit is None for limit in limits):
            return Levels(problem, (1,) * problem.devices)
        for device, limit in enumerate(limits):
            if limit == 0 and least_limit(problem, device):
                raise ValueError(
                    f"memory.limit[{device}]: 0 stays 0 however the limits are scaled; "
                    "give the proportions that the devices have, or no limit"
                )
        return Levels(problem, limits)

    @cached_property
    def _whole(self) -> int:
        return max((share for share in self.shares if share is not None), default=0) or 1

    def limited(self, level: int) -> Problem:
        """Return the problem with the limits of a level."""
        limits = tuple(
            None if share is None else share * level // self._whole for share in self.shares
        )
        return replace(self.problem, memory=replace(self.problem.memory, limit=limits))

    def needed_by(self, timeline: Timeline) -> int:
        """Return the least level that a schedule keeps."""
        return self._needed([max(grains for _, grains in curve) for curve in timeline.memory])

    def _needed(self, amounts: Sequence[int]) -> int:
        """Return the least level at which each device may hold its amount, in grains."""
        return max(
            (
                self._level(share, amount)
                for share, amount in zip(self.shares, amounts, strict=True)
                if share
            ),
            default=0,
        )

    def _level(self, share: int, amount: int) -> int:
        return -(-amount * self._whole // share)

    @cached_property
    def _sums(self) -> list[tuple[int, tuple[int, ...] | None]]:
        """For each device with a limit its share, and the sums of its memory, static included."""
        problem = self.problem
        return [
            (share, _sums(problem.static(d), _started(problem, d), _held(problem, d)))
            for d, share in enumerate(self.shares)
            if share
        ]

    @property
    def exact(self) -> bool:
        """Whether nothing can change between two levels of ``all``."""
        return all(sums is not None for _, sums in self._sums)

    @cached_property
    def all(self) -> tuple[int, ...]:
        """The levels at which something can change, rising.

        The first is the least that has a schedule; with the last all microbatches may be held.
        """
        problem = self.problem
        devices = range(problem.devices)
        least = self._needed([least_limit(problem, device) for device in devices])
        most = max(least, self._needed([problem.static(d) + _most(problem, d) for d in devices]))
        if not self.exact:
            step = -(-(most - least) // MOST_LEVELS)
            return (*range(least, most, step), most)
        found = {self._level(share, amount) for share, sums in self._sums for amount in sums or ()}
        return tuple(sorted({least, most, *(level for level in found if least < level < most)}))

    def after(self, level: int) -> int:
        """Return the least limit above a level at which something can change."""
        place = bisect_right(self.all, level)
        return self.all[place] if self.exact and place < len(self.all) else level + 1


def _started(problem: Problem, device: int) -> frozenset[int]:
    """Return what the blocks of a device allocate when they start."""
    stages = problem.placement.stages_of_device[device]
    allows, memory = problem.backward.allows, problem.memory
    single = {memory.of(kind)[stage][0] for kind in OpKind if allows(kind) for stage in stages}
    if problem.cost.pair[device] is None or not allows(OpKind.BACKWARD):
        return frozenset(single)
    return frozenset(single | {memory.F[s][0] + memory.B[t][0] for s in stages for t in stages})


def _held(problem: Problem, device: int) -> tuple[tuple[int, int], ...]:
    """Return what microbatches may hold between ops on a device: amount, and how many may."""
    return tuple(
        (amount, len(problem.microbatches_of_stage(stage)))
        for stage in problem.placement.stages_of_device[device]
        for amount in sorted({*_kept(problem, stage)} - {0})
    )


def _kept(problem: Problem, stage: int) -> tuple[int, int]:
    """Return what a microbatch holds on a stage between F and backward, and between I and W."""
    memory = problem.memory
    kept = memory.F[stage][0] - memory.F[stage][1]
    return kept, kept + memory.I[stage][0] - memory.I[stage][1]


def _most(problem: Problem, device: int) -> int:
    """Return what a device holds at most if all its microbatches are there at once."""
    return max(_started(problem, device), default=0) + sum(
        max(_kept(problem, stage)) * len(problem.microbatches_of_stage(stage))
        for stage in problem.placement.stages_of_device[device]
    )


@lru_cache(maxsize=1024)
def _sums(
    static: int, started: frozenset[int], held: tuple[tuple[int, int], ...]
) -> tuple[int, ...] | None:
    """Return what a device may hold at a peak; None where that is too much to tell."""
    sums = {static}
    for amount, count in held:
        taken = 1
        while count:
            taken = min(taken, count)
            sums |= {held_before + taken * amount for held_before in sums}
            if len(sums) > MOST_LEVELS:
                return None
            count, taken = count - taken, 2 * taken
    return tuple({before + amount for before in sums for amount in started})
