"""The least memory with which a device can run at all.

Theorem: a problem has a schedule if and only if every device's limit is at least its static
memory plus, for each chain, the least peak of one microbatch passing the device alone.
Necessary: leave all other microbatches out of any schedule, and no device ever holds more (what a
microbatch holds is never negative). Sufficient: run one microbatch after the other, each device
in an order that has the least peak; that order exists whatever the other devices do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.memory import Memory
from bubbleproof.schedules.ops import OpKind, Row
from bubbleproof.schedules.problem import Problem


@dataclass(frozen=True, slots=True)
class Shortage:
    """A device whose limit is too low for any schedule, in grains."""

    device: int
    limit: int
    least: int


def room(problem: Problem, device: int) -> int | None:
    """Return what a device may hold beside its static memory, in grains; None for no limit."""
    limit = problem.memory.limit[device]
    return None if limit is None else limit - problem.static(device)


def shortages(problem: Problem) -> list[Shortage]:
    """Return the devices whose limits make the problem infeasible; none if it is feasible."""
    return [
        Shortage(device=device, limit=limit, least=least_limit(problem, device))
        for device, limit in enumerate(problem.memory.limit)
        if limit is not None and limit < least_limit(problem, device)
    ]


def within_limits(problem: Problem, rows: Sequence[Row]) -> bool:
    """Whether every device's order keeps its memory limit."""
    for device, row in enumerate(rows):
        limit = room(problem, device)
        held = 0
        if limit is None:
            continue
        for block in row:
            allocate, free = problem.change(block)
            if held + allocate > limit:
                return False
            held += allocate - free
    return True


def least_limit(problem: Problem, device: int) -> int:
    """Return the least limit with which a device has any order, in grains."""
    return problem.static(device) + max(
        least_peak(
            problem.memory, problem.backward, Remainder.of(stages_on(problem, device, chain))
        )
        for chain, microbatches in enumerate(problem.microbatches)
        if microbatches
    )


def alone(problem: Problem, device: int, chain: int) -> list[tuple[int, OpKind]]:
    """Return the order with the least peak of one microbatch's ops on a device."""
    remainder = Remainder.of(stages_on(problem, device, chain))
    peak = least_peak(problem.memory, problem.backward, remainder)
    order = _order_within(problem.memory, problem.backward, remainder, peak)
    if order is None:
        raise AssertionError(f"device {device} has no order at its least peak")
    return order


def stages_on(problem: Problem, device: int, chain: int) -> tuple[int, ...]:
    """Return a chain's stages on a device, in chain order."""
    device_of = problem.placement.device_of_stage
    return tuple(s for s in problem.placement.chains[chain] if device_of[s] == device)


@dataclass(frozen=True, slots=True)
class Remainder:
    """What one microbatch has still to run on one device, as stages in order of running."""

    weights: tuple[int, ...]
    """Stages whose I has run and whose W has not."""
    forwards: tuple[int, ...]
    backwards: tuple[int, ...]

    @staticmethod
    def of(stages: tuple[int, ...]) -> "Remainder":
        """Return all the ops of a microbatch that passes these stages in this order."""
        return Remainder((), stages, stages[::-1])


@lru_cache(maxsize=65536)
def least_peak(memory: Memory, backward: Backward, remainder: Remainder) -> int:
    """Return the least memory that finishing one microbatch takes above what is held now."""
    stages = {*remainder.weights, *remainder.forwards, *remainder.backwards}
    high = sum(memory.of(kind)[stage][0] for stage in stages for kind in OpKind)
    low = -1
    while high - low > 1:
        middle = (low + high) // 2
        if _order_within(memory, backward, remainder, middle) is None:
            low = middle
        else:
            high = middle
    return high


def _order_within(
    memory: Memory, backward: Backward, remainder: Remainder, peak: int
) -> list[tuple[int, OpKind]] | None:
    """Return an order of a microbatch's remaining ops with at most a given peak, or None.

    Greedy and exact: a W never raises what is held after it, so running every W that fits is
    never wrong; a B leaves less behind than an I, so it is taken where it fits and is allowed.
    """
    order: list[tuple[int, OpKind]] = []
    pending = list(remainder.weights)
    level = 0

    def run(stage: int, kind: OpKind) -> bool:
        nonlocal level
        allocate, free = memory.of(kind)[stage]
        if level + allocate > peak:
            return False
        level += allocate - free
        order.append((stage, kind))
        return True

    def run_weights() -> None:
        progress = True
        while progress:
            progress = False
            for stage in list(pending):
                if run(stage, OpKind.BACKWARD_WEIGHT):
                    pending.remove(stage)
                    progress = True

    run_weights()
    for stage in remainder.forwards:
        if not run(stage, OpKind.FORWARD):
            return None
    for stage in remainder.backwards:
        if not (backward.allows(OpKind.BACKWARD) and run(stage, OpKind.BACKWARD)):
            split = backward.allows(OpKind.BACKWARD_INPUT)
            if not (split and run(stage, OpKind.BACKWARD_INPUT)):
                return None
            pending.append(stage)
        run_weights()
    return None if pending else order
