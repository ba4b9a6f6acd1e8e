"""That a problem has no schedule at all: a device cannot hold even one microbatch.

The theorem and its proof are in SPEC.md, "No schedule at all".
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.memory import Memory
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.quantity import Number, in_unit
from bubbleproof.verify.certificate import RULE, Certificate, Standing
from bubbleproof.verify.report import Violation

MOST_STATES = 20_000
"""States of one microbatch on one device that are looked through."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """A device whose memory limit no schedule can keep.

    Parameters
    ----------
    device
        The device.
    limit, least
        Its limit, and the least with which one microbatch can pass alone, in grains.
    """

    device: int
    limit: int
    least: int


def certify_infeasible(problem: Problem, device: int, least: Number) -> Certificate:
    """Judge the claim that a problem has no schedule, from the problem alone.

    Parameters
    ----------
    problem
        The problem.
    device
        The device whose limit is said to be too low.
    least
        The least limit that is said to do on this device, in the problem's unit.
    """
    if not 0 <= device < problem.devices:
        return _refused(f"there is no device {device}; the devices are 0..{problem.devices - 1}")
    memory = problem.memory
    unit = f" {memory.unit}" if memory.unit else ""
    limit, needed = memory.limit[device], _least(problem, device)
    if limit is None:
        return _refused(f"device {device} has no limit", device)
    if needed is None:
        return Certificate(
            Standing.WORD,
            f"one microbatch has too many orders on device {device} to look through them",
        )
    recomputed = in_unit(needed, memory.grains_per_unit)
    if limit >= needed:
        return _refused(
            f"one microbatch passes device {device} with {recomputed}{unit}, which is within its "
            "limit",
            device,
        )
    if recomputed != least:
        return _refused(
            f"the least that would do is given as {least}{unit}, but recomputed it is "
            f"{recomputed}{unit}",
            device,
        )
    return Certificate(
        Standing.CONFIRMED,
        f"one microbatch alone needs {recomputed}{unit} on device {device}, recomputed: no "
        "schedule keeps its limit",
    )


def _refused(message: str, device: int | None = None) -> Certificate:
    return Certificate(Standing.REFUSED, message, (Violation(RULE, message, device),))


def shortages(problem: Problem) -> tuple[Shortage, ...]:
    """Return the devices whose limits prove that a problem has no schedule.

    None where every device can hold its microbatches one at a time. A device with so many stages
    that its orders are too many to look through is left out: nothing is proven of it.
    """
    found: list[Shortage] = []
    for device, limit in enumerate(problem.memory.limit):
        if limit is None:
            continue
        least = _least(problem, device)
        if least is not None and limit < least:
            found.append(Shortage(device, limit, least))
    return tuple(found)


def _least(problem: Problem, device: int) -> int | None:
    """Return what a device must be able to hold; None where that is not proven."""
    placement, memory = problem.placement, problem.memory
    own = [stage for stage, holder in enumerate(placement.device_of_stage) if holder == device]
    peaks = [0]
    for chain, microbatches in zip(placement.chains, problem.microbatches, strict=True):
        stages = [stage for stage in chain if placement.device_of_stage[stage] == device]
        if microbatches and stages:
            peak = _least_peak(memory, problem.backward, stages)
            if peak is None:
                return None
            peaks.append(peak)
    return sum(memory.static[stage] for stage in own) + max(peaks)


def _least_peak(memory: Memory, backward: Backward, stages: list[int]) -> int | None:
    """Return the least peak over all orders of one microbatch's ops; None where they are too many.

    A state is how many F's and backwards have run and which W's wait. The states that a peak
    allows are searched, for the least peak with which the end is among them.
    """
    peak = 0
    while True:
        blocked: list[int] = []
        reached = {(0, frozenset[int](), 0)}
        left = list(reached)
        while left:
            state = left.pop()
            if state[0] == 2 * len(stages) and not state[1]:
                return peak
            for needed, following in _moves(memory, backward, stages, state):
                if needed > peak:
                    blocked.append(needed)
                elif following not in reached:
                    if len(reached) == MOST_STATES:
                        return None
                    reached.add(following)
                    left.append(following)
        # No order ends with this peak: the least that lets another op run is the next to try.
        peak = min(blocked)


def _moves(
    memory: Memory, backward: Backward, stages: list[int], state: tuple[int, frozenset[int], int]
) -> Iterator[tuple[int, tuple[int, frozenset[int], int]]]:
    """Yield what can run next: what is held while it runs, and the state after it."""
    done, waiting, held = state
    for stage in waiting:
        allocated, freed = memory.W[stage]
        yield held + allocated, (done, waiting - {stage}, held + allocated - freed)
    if done < len(stages):
        allocated, freed = memory.F[stages[done]]
        yield held + allocated, (done + 1, waiting, held + allocated - freed)
    elif done < 2 * len(stages):
        stage = stages[2 * len(stages) - 1 - done]
        if backward is not Backward.FUSED:
            allocated, freed = memory.I[stage]
            after = held + allocated - freed
            yield held + allocated, (done + 1, waiting | {stage}, after)
        if backward is not Backward.SPLIT:
            allocated, freed = memory.B[stage]
            yield held + allocated, (done + 1, waiting, held + allocated - freed)
