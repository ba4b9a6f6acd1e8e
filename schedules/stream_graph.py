"""What each component waits for.

F's and I's components run one after the other. The first of F waits for all of F on the stage
before; the first of I for the last of its own F but the send, and for all of I on the stage behind.
A weight part waits for the part of I that it belongs to. A component that takes no time is not run,
and what would wait for it waits for what it would have waited for.
"""

from collections.abc import Iterator
from itertools import pairwise

from bubbleproof.schedules.components import (
    BACKWARD_INPUT,
    SENDS,
    WEIGHT_AFTER,
    Components,
    Place,
)
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.streams import Component, require_components

KINDS = (OpKind.FORWARD, OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT)
"""The ops that components belong to."""

_ORDER_IN_LAYER = {part: index for index, part in enumerate(BACKWARD_INPUT)}
_BEFORE = {weight: part for part, weight in WEIGHT_AFTER.items()}


def instances(problem: Problem) -> Iterator[Component]:
    """Yield all components that a problem's schedules run, stage by stage."""
    components = require_components(problem)
    for stage in range(problem.stages):
        for kind in KINDS:
            for part, layer in components.places(stage, kind):
                for microbatch in problem.microbatches_of_stage(stage):
                    yield Component(stage, part, microbatch, layer)


def within(components: Components, stage: int) -> dict[Place, Place | None]:
    """Return for each place of a stage what it waits for in its own op; for a W in its I.

    None for the first of F and the first of I, and for a weight part before which nothing of I
    takes time: that waits for what I waits for.
    """
    before: dict[Place, Place | None] = {}
    for kind in (OpKind.FORWARD, OpKind.BACKWARD_INPUT):
        places = components.places(stage, kind)
        before[places[0]] = None
        before |= {place: earlier for earlier, place in pairwise(places)}
    backward = [
        place for place in components.places(stage, OpKind.BACKWARD_INPUT) if place[0] not in SENDS
    ]
    for part, layer in components.places(stage, OpKind.BACKWARD_WEIGHT):
        made = (-layer, _ORDER_IN_LAYER[_BEFORE[part]])
        ready = [place for place in backward if (-place[1], _ORDER_IN_LAYER[place[0]]) <= made]
        before[part, layer] = ready[-1] if ready else None
    return before


def inputs_of_stage(
    problem: Problem, stage: int
) -> dict[Place, tuple[tuple[int, Place, int], ...]]:
    """Return for each place of a stage what it waits for: stage, place, and lag in ticks."""
    components = require_components(problem)
    placement = problem.placement
    previous, following = placement.previous[stage], placement.following[stage]
    of_forward: list[tuple[int, Place, int]] = []
    if previous is not None:
        last = components.places(previous, OpKind.FORWARD)[-1]
        of_forward.append((previous, last, problem.lag(previous, stage)))
    own = [p for p in components.places(stage, OpKind.FORWARD) if p[0] not in SENDS][-1]
    of_backward = [(stage, own, 0)]
    if following is not None:
        last = components.places(following, OpKind.BACKWARD_INPUT)[-1]
        of_backward.append((following, last, problem.lag(following, stage)))
    return {
        place: ((stage, earlier, 0),)
        if earlier is not None
        else tuple(of_forward if place[0].kind is OpKind.FORWARD else of_backward)
        for place, earlier in within(components, stage).items()
    }
