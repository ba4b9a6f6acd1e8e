"""The best order of one block's components on a device's two streams, with proof.

A block is a forward, a whole backward, or a pair of both, of two microbatches that do not wait for
each other. It begins when both streams are free and ends when all its components have ended: that
is what a block of a schedule means, and what the pair cost of a problem stands for. Blocks whose
components take the same times have the same order, which is searched once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from bubbleproof.schedules.components import Components, Part, Place, Stream
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.stream_graph import within
from bubbleproof.schedules.streams import require_components
from bubbleproof.solver.shop import Load, Shop, Task, in_turn, load_bound, makespan_of, solve_shop

PUBLISHED = (
    Part.COMBINE_B,
    Part.ATTN_F,
    Part.MLP_B,
    Part.DISPATCH_F,
    Part.DISPATCH_B,
    Part.MLP_W,
    Part.MLP_F,
    Part.ATTN_B,
    Part.ATTN_W,
    Part.COMBINE_F,
)
"""The order in which DualPipe's pair issues the parts of one layer (DeepSeek's profile-data)."""

_STREAMS = tuple(Stream)


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """The order of one block's components.

    Parameters
    ----------
    forward, backward
        The stages whose F and B it runs; None for neither.
    places
        What it runs, in the order of starts: issued in this order, each stream runs its part in
        turn.
    starts, ends
        In ticks, from the start of the block.
    ticks
        How long it takes.
    load
        A bound on any order, from the work of one stream or one chain.
    searched
        What a search has proven: no order takes less; 0 where none was needed.
    """

    forward: int | None
    backward: int | None
    places: tuple[Place, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    ticks: int
    load: Load
    searched: int = 0

    @property
    def bound(self) -> int:
        """No order takes less, in ticks."""
        return max(self.load.ticks, self.searched)

    @property
    def bound_in_words(self) -> str:
        """What the bound follows from."""
        if self.searched > self.load.ticks:
            return "all orders searched"
        if self.load.machine is None:
            return "one component with what must come before and behind it"
        return f"the work of the {_STREAMS[self.load.machine]} stream"

    @property
    def optimal(self) -> bool:
        """Whether no order takes less."""
        return self.bound == self.ticks


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


def published_order(
    components: Components, *, forward: int | None = None, backward: int | None = None
) -> BlockOrder:
    """Return a block in DeepSeek's issue order, the forward's layers beside the backward's.

    The first layer of the forward is issued with the last of the backward, and so on; sends last.
    """
    places, shop = _shop(components, forward, backward)
    return _order(forward, backward, places, shop, in_turn(shop, _published(components, places)))


@lru_cache(maxsize=4096)
def best_order(
    components: Components,
    *,
    forward: int | None = None,
    backward: int | None = None,
    time_limit_s: float = 10.0,
) -> BlockOrder:
    """Return the order of a block that takes least, proven unless the time limit ends the search.

    Parameters
    ----------
    components
        Durations.
    forward, backward
        The stages whose F and B are run; at least one.
    time_limit_s
        Of the search.
    """
    places, shop = _shop(components, forward, backward)
    hint = in_turn(shop, _published(components, places))
    least = load_bound(shop).ticks
    if makespan_of(shop, hint) == least:
        return _order(forward, backward, places, shop, hint)
    solved = solve_shop(shop, hint, time_limit_s=time_limit_s, workers=1, least=least)
    return _order(forward, backward, places, shop, solved.starts, searched=solved.bound)


def block_order(
    components: Components, *, forward: int | None = None, backward: int | None = None
) -> BlockOrder:
    """Return the best order of a block, searched once for all stages with the same times."""
    stages = [stage for stage in (forward, backward) if stage is not None]
    own = Components(
        tuple(components.layers[stage] for stage in stages),
        tuple(tuple(times[stage] for stage in stages) for times in components.times),
    )
    order = best_order(
        own,
        forward=None if forward is None else 0,
        backward=None if backward is None else len(stages) - 1,
    )
    return replace(order, forward=forward, backward=backward)


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


def with_block_costs(problem: Problem) -> Problem:
    """Return a problem whose blocks take what their components' best orders take.

    Derived is what a problem with components leaves open: the pair of each device, as the most
    that any of its pairs takes, where the backward may be a B and no pair cost is given; and B
    where it is I + W. Any other problem is returned as it is.
    """
    cost, components = problem.cost, problem.cost.components
    if components is None or not problem.backward.allows(OpKind.BACKWARD):
        return problem
    both = tuple(i + w for i, w in zip(cost.I, cost.W, strict=True))
    if both == cost.B:
        fused = _fused(components)
        cost = replace(cost, B=tuple(min(b, i) for b, i in zip(fused, both, strict=True)))
    if not any(ticks is not None for ticks in cost.pair):
        cost = replace(cost, pair=_paired(problem, components))
    return replace(problem, cost=cost)


def with_component_costs(problem: Problem) -> Problem:
    """Return a problem whose blocks all take what their components take, whatever was given."""
    components = require_components(problem)
    stages = range(problem.stages)
    return replace(
        problem,
        cost=replace(
            problem.cost,
            F=tuple(components.ticks(stage, OpKind.FORWARD) for stage in stages),
            I=tuple(components.ticks(stage, OpKind.BACKWARD_INPUT) for stage in stages),
            W=tuple(components.ticks(stage, OpKind.BACKWARD_WEIGHT) for stage in stages),
            B=_fused(components),
            pair=_paired(problem, components),
        ),
    )


def _fused(components: Components) -> tuple[int, ...]:
    stages = range(len(components.layers))
    return tuple(block_order(components, backward=stage).ticks for stage in stages)


def _paired(problem: Problem, components: Components) -> tuple[int | None, ...]:
    return tuple(
        max(
            (block_order(components, forward=f, backward=b).ticks for f in stages for b in stages),
            default=None,
        )
        for stages in problem.placement.stages_of_device
    )


def _shop(
    components: Components, forward: int | None, backward: int | None
) -> tuple[tuple[Place, ...], Shop]:
    """Return what a block runs, and the shop in which that is done."""
    tasks: list[Task] = []
    places: list[Place] = []
    index: dict[Place, int] = {}
    for stage, kind in ((forward, OpKind.FORWARD), (backward, OpKind.BACKWARD)):
        if stage is None:
            continue
        before = within(components, stage)
        for place in components.places(stage, kind):
            earlier = before[place]
            index[place] = len(tasks)
            places.append(place)
            tasks.append(
                Task(
                    machine=_STREAMS.index(place[0].stream),
                    ticks=components.of(place[0])[stage],
                    after=() if earlier is None else ((index[earlier], 0),),
                )
            )
    return tuple(places), Shop(tuple(tasks))


def _published(components: Components, places: Sequence[Place]) -> list[int]:
    """Return the positions of places in the published order of issue."""
    forward = max((layer for part, layer in places if part.kind is OpKind.FORWARD), default=0)
    backward = max((layer for part, layer in places if part.kind is not OpKind.FORWARD), default=0)
    last = max(forward, backward)

    def turn(index: int) -> tuple[int, int]:
        part, layer = places[index]
        if part not in PUBLISHED:
            return last + 1, index
        layer_turn = layer if part.kind is OpKind.FORWARD else backward - layer
        return layer_turn, PUBLISHED.index(part)

    return sorted(range(len(places)), key=turn)


def _order(
    forward: int | None,
    backward: int | None,
    places: Sequence[Place],
    shop: Shop,
    starts: Sequence[int],
    *,
    searched: int = 0,
) -> BlockOrder:
    turns = sorted(range(len(places)), key=lambda i: (starts[i], i))
    return BlockOrder(
        forward=forward,
        backward=backward,
        places=tuple(places[i] for i in turns),
        starts=tuple(starts[i] for i in turns),
        ends=tuple(starts[i] + shop.tasks[i].ticks for i in turns),
        ticks=makespan_of(shop, starts),
        load=load_bound(shop),
        searched=searched,
    )
