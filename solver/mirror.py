"""Mirror symmetry: two chains that pass the devices from both ends, and see the same.

Where DualPipe's placement has the same cost and memory from either end, every schedule has a
mirror image with the same objective. Searching only schedules that are their own image halves the
work, and may miss the best; so what is proven among them is no bound on all. For a relaxation
whose solutions may be averaged, as a linear program's, nothing is lost: the mean of a solution
and its image is its own image.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bubbleproof.schedules.ops import Block, Op, Pair, Row
from bubbleproof.schedules.problem import Problem
from bubbleproof.solver.limits import room


@dataclass(frozen=True, slots=True)
class Mirror:
    """Which device and which stage stands where another one does, seen from the other end.

    Parameters
    ----------
    device, stage
        For each the one that it changes places with; a device may stay in its place.
    """

    device: tuple[int, ...]
    stage: tuple[int, ...]


def mirror_of(problem: Problem) -> Mirror | None:
    """Return the mirror in which a problem is its own image; None where there is none."""
    placement = problem.placement
    if len(placement.chains) != 2 or len(set(problem.microbatches)) != 1:
        return None
    down, up = placement.chains
    if len(down) != len(up):
        return None
    stage, device = list(range(problem.stages)), list(range(problem.devices))
    for here, there in zip(down, up, strict=True):
        stage[here], stage[there] = there, here
        a, b = placement.device_of_stage[here], placement.device_of_stage[there]
        device[a], device[b] = b, a
    mirror = Mirror(tuple(device), tuple(stage))
    return mirror if _looks_the_same(problem, mirror) else None


def _looks_the_same(problem: Problem, mirror: Mirror) -> bool:
    """Whether places, times and memory are the same in the mirror."""
    cost, memory, device_of = problem.cost, problem.memory, problem.placement.device_of_stage
    stages, devices = range(problem.stages), range(problem.devices)
    per_stage = (cost.F, cost.I, cost.W, cost.B, memory.F, memory.I, memory.W, memory.B)
    per_device = (cost.pair, tuple(room(problem, device) for device in devices))
    return (
        all(device_of[mirror.stage[s]] == mirror.device[device_of[s]] for s in stages)
        and all(mirror.device[mirror.device[d]] == d for d in devices)
        and all(values[s] == values[mirror.stage[s]] for values in per_stage for s in stages)
        and all(values[d] == values[mirror.device[d]] for values in per_device for d in devices)
        and all(
            problem.transfer(a, b) == problem.transfer(mirror.device[a], mirror.device[b])
            for a in devices
            for b in devices
        )
    )


def is_own_image(problem: Problem, mirror: Mirror, rows: Sequence[Row]) -> bool:
    """Whether every device does what the image of another does."""
    return all(
        rows[there] == reflected(problem, mirror, rows[device])
        for device, there in enumerate(mirror.device)
    )


def reflected(problem: Problem, mirror: Mirror, row: Row) -> Row:
    """Return the image of a device's row."""
    return tuple(_block(problem, mirror, block) for block in row)


def image(problem: Problem, mirror: Mirror, op: Op) -> Op:
    """Return the op that an op changes places with."""
    stage = mirror.stage[op.stage]
    here = problem.microbatches_of_stage(op.stage).start
    there = problem.microbatches_of_stage(stage).start
    return replace(op, stage=stage, microbatch=op.microbatch - here + there)


def _block(problem: Problem, mirror: Mirror, block: Block) -> Block:
    if isinstance(block, Op):
        return image(problem, mirror, block)
    return Pair(image(problem, mirror, block.forward), image(problem, mirror, block.backward))
