"""The component orders of all pairs that a problem's devices may run, alike ones together."""

from dataclasses import dataclass, replace

from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.streams import require_components
from bubbleproof.solver.pair import BlockOrder, block_order, published_order


@dataclass(frozen=True, slots=True)
class PairOrder:
    """The order of a pair's components, and where it holds.

    Parameters
    ----------
    order
        The best order.
    published_ticks
        What the published order of issue takes.
    where
        For each pair that runs in this order: device, stage of the F, stage of the B.
    """

    order: BlockOrder
    published_ticks: int
    where: tuple[tuple[int, int, int], ...]


def pair_orders(problem: Problem) -> tuple[PairOrder, ...]:
    """Return the orders of all pairs: for each device any F of its stages with any B.

    Raises
    ------
    ValueError
        If the problem has no components.
    """
    components = require_components(problem)
    found: dict[tuple[BlockOrder, int], list[tuple[int, int, int]]] = {}
    for device, stages in enumerate(problem.placement.stages_of_device):
        for forward in stages:
            for backward in stages:
                order = block_order(components, forward=forward, backward=backward)
                published = published_order(components, forward=forward, backward=backward)
                alike = (replace(order, forward=None, backward=None), published.ticks)
                found.setdefault(alike, []).append((device, forward, backward))
    return tuple(
        PairOrder(replace(order, forward=where[0][1], backward=where[0][2]), ticks, tuple(where))
        for (order, ticks), where in found.items()
    )
