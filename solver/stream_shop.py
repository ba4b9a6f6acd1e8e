"""A problem with components as a shop: tasks of all streams, precedences, what memory holds.

Microbatches of a chain are alike, so each stage runs each of its parts in their order without loss:
sort the starts of one part of one stage, and every precedence and memory level stays as it was. In
a mirrored shop there is one of the two chains of a bidirectional placement, on the devices of one
half; the other chain does the same on the other half.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bubbleproof.schedules.components import Stream
from bubbleproof.schedules.memory import Change
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.placement import bidirectional
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.stream_graph import KINDS, inputs_of_stage
from bubbleproof.schedules.streams import STREAMS, Component, StreamRow, require_components
from bubbleproof.solver.limits import room
from bubbleproof.solver.shop import Hold, Shop, Task


@dataclass(frozen=True, slots=True)
class StreamShop:
    """A shop and the components that its tasks are.

    Parameters
    ----------
    problem
        The problem.
    components
        For each task of the shop its component.
    shop
        The shop; machine 2d is the compute stream of device d, 2d + 1 its comm stream.
    mirrored
        Whether chain 0 stands for both chains.
    """

    problem: Problem
    components: tuple[Component, ...]
    shop: Shop
    mirrored: bool

    @staticmethod
    def of(problem: Problem, *, mirrored: bool = False) -> "StreamShop":
        """Build the shop of a problem; mirrored only where ``may_mirror``."""
        components = require_components(problem)
        device_of = problem.placement.device_of_stage
        needs = [inputs_of_stage(problem, stage) for stage in range(problem.stages)]
        order = tuple(_in_order(problem, 1 if mirrored else len(problem.placement.chains)))
        index = {component: position for position, component in enumerate(order)}

        def device(stage: int) -> int:
            holder = device_of[stage]
            return min(holder, problem.devices - 1 - holder) if mirrored else holder

        tasks: list[Task] = []
        for component in order:
            stage, part, microbatch, layer = (
                component.stage,
                component.part,
                component.microbatch,
                component.layer,
            )
            after = [
                (index[Component(other, place[0], microbatch, place[1])], lag)
                for other, place, lag in needs[stage][part, layer]
            ]
            before = index.get(Component(stage, part, microbatch - 1, layer))
            if before is not None:
                after.append((before, 0))
            tasks.append(
                Task(
                    machine=2 * device(stage) + STREAMS.index(part.stream),
                    ticks=components.of(part)[stage],
                    after=tuple(after),
                )
            )
        devices = (problem.devices + 1) // 2 if mirrored else problem.devices
        shop = Shop(
            tasks=tuple(tasks),
            holds=tuple(_holds(problem, order, index, device)),
            limits=tuple(room(problem, device) for device in range(devices)),
        )
        return StreamShop(problem, order, shop, mirrored)

    def starts_of(self, starts: Mapping[Component, int]) -> tuple[int, ...]:
        """Return the starts of the tasks, each part of a stage in the order of microbatches."""
        return tuple(starts[component] for component in self.components)

    def mirror(self, starts: Sequence[int]) -> dict[Component, int]:
        """Return the starts of both chains, of which this shop has one."""
        half, stages = self.problem.microbatches[0], self.problem.devices
        begun = dict(zip(self.components, starts, strict=True))
        return begun | {
            Component(c.stage + stages, c.part, c.microbatch + half, c.layer): start
            for c, start in begun.items()
        }

    def rows(
        self, starts: Sequence[int]
    ) -> tuple[tuple[tuple[StreamRow, ...], ...], tuple[tuple[tuple[int, ...], ...], ...]]:
        """Return rows and starts of all devices and streams, of a shop that is not mirrored."""
        problem = self.problem
        held: list[dict[Stream, list[tuple[int, Component]]]] = [
            {stream: [] for stream in STREAMS} for _ in range(problem.devices)
        ]
        for component, start in zip(self.components, starts, strict=True):
            device = problem.placement.device_of_stage[component.stage]
            held[device][component.part.stream].append((start, component))
        ordered = [[sorted(streams[stream]) for stream in STREAMS] for streams in held]
        return (
            tuple(tuple(tuple(c for _, c in row) for row in device) for device in ordered),
            tuple(tuple(tuple(start for start, _ in row) for row in device) for device in ordered),
        )


def may_mirror(problem: Problem) -> bool:
    """Whether the two directions of a bidirectional problem are alike."""
    p, placement, cost, memory = problem.devices, problem.placement, problem.cost, problem.memory
    if placement != bidirectional(p) or p % 2 or len(set(problem.microbatches)) > 1:
        return False
    components = require_components(problem)
    per_stage: list[Sequence[object]] = [components.layers, *components.times, memory.static]
    per_stage += [memory.of(kind) for kind in KINDS]
    return (
        all(tuple(each[:p]) == tuple(each[p:]) for each in per_stage)
        and memory.limit == memory.limit[::-1]
        and all(
            problem.transfer(a, b) == problem.transfer(p - 1 - a, p - 1 - b)
            for a in range(p)
            for b in (a - 1, a + 1)
            if 0 <= b < p
        )
        and bool(cost.components)
    )


def _in_order(problem: Problem, chains: int) -> Iterator[Component]:
    """Yield the components of the first chains, each behind what it waits for."""
    components = require_components(problem)
    for number, chain in enumerate(problem.placement.chains[:chains]):
        for microbatch in problem.microbatches_of(number):
            for kinds, stages in ((KINDS[:1], chain), (KINDS[1:], chain[::-1])):
                for stage in stages:
                    for kind in kinds:
                        for part, layer in components.places(stage, kind):
                            yield Component(stage, part, microbatch, layer)


def held_by(changes: Sequence[Change]) -> Iterator[tuple[int, int, int]]:
    """Yield amounts, each with the numbers of the op that allocates and of the op that frees it.

    First in, first out: what the ops F, I, W free is what the earliest of them allocated. What I
    frees was allocated by F or I, so that W's start and I's end may come in any order.
    """
    left = [allocate for allocate, _ in changes]
    for frees, (_, free) in enumerate(changes):
        for allocates in range(len(changes)):
            amount = min(left[allocates], free)
            if amount:
                yield amount, allocates, frees
                left[allocates] -= amount
                free -= amount


def _holds(
    problem: Problem,
    order: Sequence[Component],
    index: Mapping[Component, int],
    device: Callable[[int], int],
) -> Iterator[Hold]:
    components = require_components(problem)
    done: set[tuple[int, int]] = set()
    for component in order:
        stage, microbatch = component.stage, component.microbatch
        if (stage, microbatch) in done:
            continue
        done.add((stage, microbatch))
        tasks = [
            tuple(
                index[Component(stage, part, microbatch, layer)]
                for part, layer in components.places(stage, kind)
            )
            for kind in KINDS
        ]
        changes = [problem.memory.of(kind)[stage] for kind in KINDS]
        for amount, allocates, frees in held_by(changes):
            yield Hold(
                device=device(stage),
                amount=amount,
                first=_edge(tasks[allocates], KINDS[allocates], 0),
                last=_edge(tasks[frees], KINDS[frees], -1),
            )


def _edge(tasks: tuple[int, ...], kind: OpKind, at: int) -> tuple[int, ...]:
    """Return the tasks of which one is the first or last: F's and I's run one after the other."""
    return tasks if kind is OpKind.BACKWARD_WEIGHT else (tasks[at],)
