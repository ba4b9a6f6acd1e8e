"""All unrollings of a periodic schedule at once, by induction over its kernel.

The theorem, its proof and the words used here are in SPEC.md, "For every n".
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from bubbleproof.schedules.ops import Block, Op, OpKind, Pair, Row
from bubbleproof.schedules.periodic import Periodic
from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.program import Program
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.verify.report import Report
from bubbleproof.verify.rules import verify

Key: TypeAlias = tuple[int, OpKind, int]
"""What an op makes, whichever microbatch of a class it is of: stage, F, I (of I and B) or W, and
the microbatch modulo the step."""

Node: TypeAlias = int
"""A block of the kernels, or what is posted in them, counted through all devices."""

Plan: TypeAlias = Schedule | Program
"""What is judged."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A block of kernel copy j waits for one of copy j + distance."""

    block: Node
    source: Node
    distance: int


@dataclass(frozen=True, slots=True)
class EveryN:
    """The verdict on all unrollings.

    Parameters
    ----------
    first, period
        The unrollings have first, first + period, first + 2 x period, ... microbatches.
    unrolled
        How many were judged one by one, from no repetition on.
    cycle
        Blocks of the kernel, as text, that wait for each other once there are enough
        repetitions; empty where there are none.
    failing
        The least number of microbatches at which a rule is broken; None where none is.
    report
        The verdict there; of the last unrolling that was judged where all are valid.
    judged
        The schedule or program of that verdict.
    """

    first: int
    period: int
    unrolled: int
    cycle: tuple[str, ...]
    failing: int | None
    report: Report
    judged: Plan

    @property
    def valid(self) -> bool:
        """Whether every unrolling breaks no rule."""
        return self.failing is None


def verify_every_n(periodic: Periodic) -> EveryN:
    """Return whether all unrollings of a periodic schedule are valid, for every n.

    The rules are judged on the unrollings up to a number of repetitions from which on nothing new
    can happen; that there is such a number needs waits in the kernel that lead back only.

    Raises
    ------
    ValueError
        If an unrolling that has to be looked at is larger than a problem may be.
    """

    def judged(repetitions: int) -> tuple[Schedule, Report]:
        schedule = _unrolled(periodic, repetitions)
        return schedule, verify(schedule)

    return by_induction(periodic, judged, lambda: enough(periodic))


def by_induction(
    periodic: Periodic,
    judged: Callable[[int], tuple[Plan, Report]],
    last: Callable[[], tuple[int, tuple[str, ...]]],
) -> EveryN:
    """Judge unrollings one by one up to a number of repetitions that decides for all.

    Parameters
    ----------
    periodic
        What is unrolled.
    judged
        Returns for a number of repetitions the unrolling, with the verdict on it.
    last
        Returns how many repetitions decide, and a cycle of the kernel if it has one; asked only
        where no repetition and one are valid, so that each op and its inputs are there once.
    """
    plan, report = judged(0)
    repetitions, most = 0, 1
    cycle: tuple[str, ...] = ()
    while report.valid and repetitions < most:
        repetitions += 1
        plan, report = judged(repetitions)
        if repetitions == 1 and report.valid:
            most, cycle = last()
    if report.valid and cycle:
        raise AssertionError(f"{', '.join(cycle)} wait for each other, but every rule holds")
    return EveryN(
        first=sum(periodic.problem.microbatches),
        period=sum(periodic.step),
        unrolled=repetitions + 1,
        cycle=cycle,
        failing=None if report.valid else sum(plan.problem.microbatches),
        report=report,
        judged=plan,
    )


def _unrolled(periodic: Periodic, repetitions: int) -> Schedule:
    """Write out prologue, copies of the kernel and epilogue, with global microbatch numbers."""
    problem = periodic.problem
    counts = [
        base + repetitions * step
        for base, step in zip(problem.microbatches, periodic.step, strict=True)
    ]
    chain_of = {s: c for c, chain in enumerate(problem.placement.chains) for s in chain}
    firsts = [sum(counts[:chain]) for chain in range(len(counts))]

    def op(each: Op, copy: int) -> Op:
        chain = chain_of.get(each.stage)
        if chain is None:
            return each
        number = each.microbatch + firsts[chain] + copy * periodic.step[chain]
        return Op(each.stage, each.kind, number)

    def blocks(row: Row, copy: int) -> Iterator[Block]:
        for block in row:
            if isinstance(block, Pair):
                yield Pair(op(block.forward, copy), op(block.backward, copy))
            else:
                yield op(block, copy)

    rows: list[Row] = []
    for device in range(problem.devices):
        row = list(blocks(periodic.prologue[device], 0))
        for copy in range(repetitions):
            row.extend(blocks(periodic.kernel[device], copy))
        row.extend(blocks(periodic.epilogue[device], repetitions))
        rows.append(tuple(row))
    return Schedule(replace(problem, microbatches=counts), tuple(rows), source=periodic.source)


def enough(periodic: Periodic) -> tuple[int, tuple[str, ...]]:
    """Return how many repetitions have to be judged, and a cycle that all of them cannot avoid.

    Where there is a cycle, so many repetitions hold all of it.
    """
    kernel = Kernel(periodic)
    climbs, closed = longest(len(kernel.blocks), kernel.waits)
    if closed:
        return copies_that_hold(closed), tuple(str(kernel.blocks[wait.block]) for wait in closed)
    climb = max(climbs, default=0)
    ahead = max((wait.distance for wait in kernel.waits), default=0)
    from_prologue = max(
        (copy for row in periodic.prologue for block in row for copy in kernel.copies(block)),
        default=0,
    )
    return max(0, from_prologue) + climb + max(1, ahead), ()


class Kernel:
    """The kernels of all devices: their blocks, and which waits for which how many copies on."""

    def __init__(self, periodic: Periodic) -> None:
        self._step = steps_of_stages(periodic)
        self._before, self._after = neighbours(periodic.problem.placement)
        self.blocks: list[Block] = [block for row in periodic.kernel for block in row]
        self._place: dict[Key, tuple[Node, int]] = {}
        for node, block in enumerate(self.blocks):
            for op in _ops(block):
                self._place[self._key(op.stage, _makes(op.kind), op.microbatch)] = (
                    node,
                    op.microbatch,
                )
        self.waits = [
            *_rows(periodic.kernel),
            *(
                Wait(node, source, distance)
                for node, block in enumerate(self.blocks)
                for source, distance in self._sources(block)
                if (source, distance) != (node, 0)
            ),
        ]

    def copies(self, block: Block) -> Iterator[int]:
        """Yield for each input of a block the copy that makes it.

        Below 0 it is the prologue that does; from the number of repetitions on the epilogue.
        """
        for _, copy in self._sources(block):
            yield copy

    def _sources(self, block: Block) -> Iterator[tuple[Node, int]]:
        for op in _ops(block):
            for stage, kind in self._inputs(op):
                node, number = self._place[self._key(stage, kind, op.microbatch)]
                yield node, (op.microbatch - number) // self._step[stage]

    def _inputs(self, op: Op) -> Iterator[tuple[int, OpKind]]:
        match op.kind:
            case OpKind.FORWARD:
                if op.stage in self._before:
                    yield self._before[op.stage], OpKind.FORWARD
            case OpKind.BACKWARD_WEIGHT:
                yield op.stage, OpKind.BACKWARD_INPUT
            case OpKind.BACKWARD_INPUT | OpKind.BACKWARD:
                yield op.stage, OpKind.FORWARD
                if op.stage in self._after:
                    yield self._after[op.stage], OpKind.BACKWARD_INPUT

    def _key(self, stage: int, kind: OpKind, microbatch: int) -> Key:
        return stage, kind, microbatch % self._step[stage]


def _rows(kernel: Sequence[Row]) -> Iterator[Wait]:
    """Yield the wait of each block for the one before it: for the first, the last of copy - 1."""
    first = 0
    for row in kernel:
        end = first + len(row)
        for node in range(first, end):
            yield Wait(node, node - 1, 0) if node > first else Wait(node, end - 1, -1)
        first = end


def steps_of_stages(periodic: Periodic) -> list[int]:
    """Return for each stage how many microbatches a repetition adds to its chain."""
    placement = periodic.problem.placement
    steps = [0] * len(placement.device_of_stage)
    for step, chain in zip(periodic.step, placement.chains, strict=True):
        for stage in chain:
            steps[stage] = step
    return steps


def neighbours(placement: Placement) -> tuple[dict[int, int], dict[int, int]]:
    """Return the stage before and the stage after each stage in its chain, where there is one."""
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    for chain in placement.chains:
        for one, other in pairwise(chain):
            before[other], after[one] = one, other
    return before, after


def _ops(block: Block) -> tuple[Op, ...]:
    return (block.forward, block.backward) if isinstance(block, Pair) else (block,)


def _makes(kind: OpKind) -> OpKind:
    return OpKind.BACKWARD_INPUT if kind is OpKind.BACKWARD else kind


def longest(nodes: int, waits: Sequence[Wait]) -> tuple[list[int], list[Wait]]:
    """Return for each node how far on a way of waits to it leads at most, or a cycle.

    The cycle is one whose distances add up to 0 or more. A way is longer the farther on it leads
    and, at one distance, the more waits it has: with a factor above the number of waits of any
    cycle that visits no node twice, such a cycle is one that makes a way longer without end.
    """
    factor = nodes + 1
    length = [0] * nodes
    last: list[Wait | None] = [None] * nodes
    changed = -1
    for _ in range(nodes + 1):
        changed = -1
        for wait in waits:
            way = length[wait.block] + factor * wait.distance + 1
            if way > length[wait.source]:
                length[wait.source] = way
                last[wait.source] = wait
                changed = wait.source
        if changed < 0:
            return [each // factor for each in length], []
    return [], _cycle_at(changed, last)


def _cycle_at(node: Node, last: Sequence[Wait | None]) -> list[Wait]:
    """Follow the waits back from a node that is behind or on a cycle of them."""
    seen: dict[Node, int] = {}
    way: list[Wait] = []
    while node not in seen:
        seen[node] = len(way)
        wait = last[node]
        if wait is None:
            raise AssertionError("a way that grows without end has a wait before each node")
        way.append(wait)
        node = wait.block
    return way[seen[node] :][::-1]


def copies_that_hold(cycle: Sequence[Wait]) -> int:
    """Return how many copies hold a cycle, closed by the way back along a row."""
    copy = lowest = highest = 0
    for wait in cycle:
        copy += wait.distance
        lowest, highest = min(lowest, copy), max(highest, copy)
    return highest - lowest + 1
