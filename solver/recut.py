"""The same model cut for another placement, so that placements can be compared.

The basis: the same devices, the same model, the same microbatches. A chain passes the whole model,
so on a placement with other chains each stage takes its equal share of it: of times, activations
and weights. What a device holds then follows; where two chains pass the same model in opposite
directions, each device holds twice the weights. A transfer takes as long on any placement.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from bubbleproof.schedules.cost import Cost
from bubbleproof.schedules.memory import Change, Memory
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.placement import Placement, parse_placement
from bubbleproof.schedules.problem import Problem

PLACEMENTS = ("linear", "loop:2", "v", "wave:4", "bidirectional")
"""Those that the published families need."""


def recut(problem: Problem, words: str) -> Problem:
    """Return the problem with its model cut for a placement, by name.

    On the problem's own placement nothing changes.

    Raises
    ------
    ValueError
        If stages are unequal, so that nothing is known of their parts.
    """
    placement = parse_placement(words, problem.devices)
    if replace(placement, name=problem.placement.name) == problem.placement:
        return problem
    _require_equal(problem)
    before, after = (len(each.chains[0]) for each in (problem.placement, placement))
    cost, memory = problem.cost, problem.memory
    transfer = cost.in_ticks(after * cost.ticks_per_unit).transfer
    times = {kind: (before * cost.of(kind)[0],) * placement.stages for kind in OpKind}
    amounts = {kind: (_times(memory.of(kind)[0], before),) * placement.stages for kind in OpKind}
    return Problem(
        devices=problem.devices,
        placement=placement,
        microbatches=problem.total_microbatches,
        cost=Cost(
            F=times[OpKind.FORWARD],
            I=times[OpKind.BACKWARD_INPUT],
            W=times[OpKind.BACKWARD_WEIGHT],
            B=times[OpKind.BACKWARD],
            pair=tuple(None if ticks is None else before * ticks for ticks in cost.pair),
            transfer=transfer,
            ticks_per_unit=after * cost.ticks_per_unit,
        ),
        memory=Memory(
            F=amounts[OpKind.FORWARD],
            I=amounts[OpKind.BACKWARD_INPUT],
            W=amounts[OpKind.BACKWARD_WEIGHT],
            B=amounts[OpKind.BACKWARD],
            static=(before * memory.static[0],) * placement.stages,
            limit=tuple(None if grains is None else after * grains for grains in memory.limit),
            unit=memory.unit,
            grains_per_unit=after * memory.grains_per_unit,
        ),
        backward=problem.backward,
        objective=problem.objective,
        name=problem.name,
        time_unit=problem.time_unit,
    )


def messages(problem: Problem) -> int:
    """Return how many activations and gradients go from one device to another in one step."""
    return sum(
        2 * microbatches * _crossings(problem.placement, chain)
        for chain, microbatches in zip(problem.placement.chains, problem.microbatches, strict=True)
    )


def _crossings(placement: Placement, chain: Sequence[int]) -> int:
    device_of = placement.device_of_stage
    return sum(device_of[a] != device_of[b] for a, b in pairwise(chain))


def _times(change: Change, factor: int) -> Change:
    return factor * change[0], factor * change[1]


def _require_equal(problem: Problem) -> None:
    cost, memory = problem.cost, problem.memory
    per_stage = [(f"cost.{kind.value}", cost.of(kind)) for kind in OpKind]
    per_stage += [(f"memory.{kind.value}", memory.of(kind)) for kind in OpKind]
    for where, values in [*per_stage, ("memory.static", memory.static), ("cost.pair", cost.pair)]:
        for place, value in enumerate(values):
            if value != values[0]:
                raise ValueError(
                    f"{where}[{place}]: differs from {where}[0], and unequal stages cannot be cut "
                    "for another placement; the same number for all can"
                )
    if len({len(chain) for chain in problem.placement.chains}) > 1:
        raise ValueError("placement.chains: of unequal length; chains of one length can be cut")
