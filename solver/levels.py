"""Memory limits as one number, a level, and the levels at which anything can change.

The level is the limit, in grains, of the device with the largest; the others' are in proportion
to the problem's limits, or equal where it has none. A device's peak is a sum of what its ops
allocate and free, so between two such sums a limit makes no difference.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd

from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.simulate import Timeline
from bubbleproof.solver.limits import least_limit

MOST_SUMS = 20_000
"""Where a device has more possible sums in grains, as many evenly spaced ones stand for them."""


@dataclass(frozen=True, slots=True)
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

    @property
    def _whole(self) -> int:
        return max((share for share in self.shares if share is not None), default=0) or 1

    def limited(self, level: int) -> Problem:
        """Return the problem with the limits of a level."""
        limits = tuple(
            None if share is None else share * level // self._whole for share in self.shares
        )
        return replace(self.problem, memory=replace(self.problem.memory, limit=limits))

    def needed(self, amounts: Sequence[int]) -> int:
        """Return the least level at which each device may hold its amount, in grains."""
        return max(
            (
                self._needed(device, amount)
                for device, amount in enumerate(amounts)
                if self.shares[device] is not None and amount
            ),
            default=0,
        )

    def _needed(self, device: int, amount: int) -> int:
        return -(-amount * self._whole // (self.shares[device] or 1))

    def needed_by(self, timeline: Timeline) -> int:
        """Return the least level that a schedule keeps."""
        return self.needed([max(grains for _, grains in curve) for curve in timeline.memory])

    def all(self) -> list[int]:
        """Return the levels at which something can change, rising.

        The first is the least that has a schedule; the last lets all microbatches be held.
        """
        problem = self.problem
        least = self.needed([least_limit(problem, device) for device in range(problem.devices)])
        found = {
            self._needed(device, problem.static(device) + held)
            for device, share in enumerate(self.shares)
            if share
            for held in _sums(problem, device)
        }
        return sorted({least, *(level for level in found if level > least)})


def _sums(problem: Problem, device: int) -> Iterator[int]:
    """Yield what a device may hold at a peak beside its static memory: sums of its amounts."""
    started = _started(problem, device)
    held = [
        (amount, len(problem.microbatches_of_stage(stage)))
        for stage in problem.placement.stages_of_device[device]
        for amount in _held(problem, stage)
        if amount
    ]
    grain = gcd(*started, *(amount for amount, _ in held))
    most = max(started, default=0) + sum(amount * count for amount, count in held)
    if not grain:
        return
    if most // grain > MOST_SUMS:
        step = -(-most // MOST_SUMS)
        yield from range(step, most + step, step)
        return
    reached = 1  # Bit k: k grains can be held.
    for amount, count in held:
        taken = 1
        while count:
            taken = min(taken, count)
            reached |= reached << taken * (amount // grain)
            count, taken = count - taken, 2 * taken
    peaks = 0
    for amount in started:
        peaks |= reached << amount // grain
    for place, bit in enumerate(reversed(f"{peaks:b}")):
        if bit == "1":
            yield place * grain


def _started(problem: Problem, device: int) -> set[int]:
    """Return what the blocks of a device allocate when they start."""
    stages = problem.placement.stages_of_device[device]
    allows = problem.backward.allows
    single = {
        problem.memory.of(kind)[stage][0] for kind in OpKind if allows(kind) for stage in stages
    }
    if problem.cost.pair[device] is None or not allows(OpKind.BACKWARD):
        return single
    memory = problem.memory
    return single | {memory.F[s][0] + memory.B[t][0] for s in stages for t in stages}


def _held(problem: Problem, stage: int) -> tuple[int, int]:
    """Return what a microbatch holds on a stage between F and backward, and between I and W."""
    memory = problem.memory
    kept = memory.F[stage][0] - memory.F[stage][1]
    return kept, kept + memory.I[stage][0] - memory.I[stage][1]
