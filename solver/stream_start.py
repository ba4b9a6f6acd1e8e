"""A schedule of blocks as starts of its components: where a search over streams begins."""

from collections.abc import Iterator, Mapping

from bubbleproof.schedules.components import Components, Place
from bubbleproof.schedules.ops import Block, OpKind, Pair
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.simulate import earliest_starts
from bubbleproof.schedules.streams import Component, require_components
from bubbleproof.solver.block_order import BlockOrder, block_order


def starts_of_blocks(schedule: Schedule) -> dict[Component, int]:
    """Return when each component starts if blocks start as scheduled, each in its best order.

    Its problem's costs must be those of ``with_component_costs``. Each part of a stage then is in
    the order of microbatches, which changes neither precedences nor memory.
    """
    problem = schedule.problem
    components = require_components(problem)
    begins = earliest_starts(problem, schedule.rows)
    if schedule.starts is not None:
        begins = schedule.starts
    starts: dict[Component, int] = {}
    for row, begun in zip(schedule.rows, begins, strict=True):
        for block, start in zip(row, begun, strict=True):
            for component, offset in _offsets(components, block):
                starts[component] = start + offset
    return _in_order_of_microbatches(starts)


def _offsets(components: Components, block: Block) -> Iterator[tuple[Component, int]]:
    """Yield the components of a block, each with its start in the block."""
    if isinstance(block, Pair):
        forward, backward = block.forward, block.backward
        order = block_order(components, forward=forward.stage, backward=backward.stage)
        for (part, layer), start in _times(order):
            op = forward if part.kind is OpKind.FORWARD else backward
            yield Component(op.stage, part, op.microbatch, layer), start
    elif block.kind is OpKind.BACKWARD:
        for (part, layer), start in _times(block_order(components, backward=block.stage)):
            yield Component(block.stage, part, block.microbatch, layer), start
    else:
        offset = 0
        for part, layer in components.places(block.stage, block.kind):
            yield Component(block.stage, part, block.microbatch, layer), offset
            offset += components.of(part)[block.stage]


def _times(order: BlockOrder) -> Iterator[tuple[Place, int]]:
    return zip(order.places, order.starts, strict=True)


def _in_order_of_microbatches(starts: Mapping[Component, int]) -> dict[Component, int]:
    alike: dict[tuple[int, Place], list[Component]] = {}
    for component in sorted(starts, key=lambda c: c.microbatch):
        alike.setdefault((component.stage, (component.part, component.layer)), []).append(component)
    return {
        component: start
        for group in alike.values()
        for component, start in zip(group, sorted(starts[c] for c in group), strict=True)
    }
