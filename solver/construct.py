"""Schedules without search: one microbatch after the other, and list scheduling within memory."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from time import monotonic

from bubbleproof.schedules.ops import Block, Op, OpKind, Row
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.solver.banker import Banker
from bubbleproof.solver.limits import alone
from bubbleproof.solver.times import LeastTimes


def one_by_one(problem: Problem) -> Schedule:
    """Run one microbatch after the other: slow, but within any limits that can be kept."""
    rows: list[list[Block]] = [[] for _ in range(problem.devices)]
    for chain in range(len(problem.microbatches)):
        orders = [alone(problem, device, chain) for device in range(problem.devices)]
        for microbatch in problem.microbatches_of(chain):
            for row, order in zip(rows, orders, strict=True):
                row.extend(Op(stage, kind, microbatch) for stage, kind in order)
    return Schedule(problem, tuple(map(tuple, rows)), source="one microbatch at a time")


AHEAD: tuple[float | None, ...] = (1.0, None, 1.5, 2.0)
"""How far ahead forwards may be, the most promising first: see ``Policy``."""


class First(StrEnum):
    """What a device prefers when both could start."""

    BACKWARD = "backward"
    FORWARD = "forward"


class Weights(StrEnum):
    """When a W runs while something else could come."""

    EAGER = "eager"
    FILL = "fill"
    LAZY = "lazy"


@dataclass(frozen=True, slots=True)
class Policy:
    """How list scheduling chooses.

    Parameters
    ----------
    first
        Whether a ready backward or a ready forward goes first.
    weights
        ``eager``: at once. ``fill``: when no other op is ready before it would end. ``lazy``:
        when the memory is needed; as ``fill`` once all forwards of the device are done.
    ahead
        Forwards in flight on a stage, as a multiple of what hides one turnaround; None: as many
        as memory allows.
    deep
        Whether the forward that is farthest along its chain goes first, else the oldest.
    fused
        Whether backwards run as B.
    """

    first: First
    weights: Weights
    ahead: float | None
    deep: bool
    fused: bool

    def __str__(self) -> str:
        """The policy's choices, for a schedule's source."""
        parts = [
            f"{self.first.value} first",
            "fused" if self.fused else f"{self.weights.value} W",
            "memory-bound" if self.ahead is None else f"{self.ahead:g} turnarounds ahead",
        ]
        return ", ".join([*parts, "deepest first"] if self.deep else parts)


def policies(problem: Problem) -> Iterator[Policy]:
    """Yield the policies worth trying on a problem, the most promising first."""
    several = any(len(stages) > 1 for stages in problem.placement.stages_of_device)
    allows = problem.backward.allows
    forms = [fused for fused in (False, True) if allows(_backward_kind(fused))]
    for ahead in AHEAD:
        for first in First:
            for deep in (True, False) if several else (True,):
                for fused in forms:
                    for weights in (Weights.FILL,) if fused else Weights:
                        yield Policy(first, weights, ahead, deep, fused)


def list_schedule(problem: Problem, policy: Policy, deadline: float) -> Schedule | None:
    """Return a schedule by list scheduling; None if the deadline (``time.monotonic``) passes."""
    rows = _Run(problem, policy).rows_until(deadline)
    if rows is None:
        return None
    return Schedule(problem, rows, source=f"list scheduling ({policy})")


def _backward_kind(fused: bool) -> OpKind:
    return OpKind.BACKWARD if fused else OpKind.BACKWARD_INPUT


class _Run:
    """One run of list scheduling: as time goes on, each free device takes its best ready op."""

    def __init__(self, problem: Problem, policy: Policy) -> None:
        self.problem, self.policy = problem, policy
        self.memory = [Banker(problem, device) for device in range(problem.devices)]
        self.rows: list[list[Block]] = [[] for _ in range(problem.devices)]
        self.free = [0] * problem.devices
        self.backward = _backward_kind(policy.fused)
        first = [problem.microbatches_of_stage(stage).start for stage in range(problem.stages)]
        self.end = [problem.microbatches_of_stage(stage).stop for stage in range(problem.stages)]
        self.next = {kind: list(first) for kind in OpKind}
        """For each kind and stage its next microbatch."""
        self.first = first
        self.arrival: dict[Op, int] = {}
        """When the last input of an op is there, for ops whose inputs are computed."""
        self.events: list[tuple[int, int]] = []
        """(tick, device): when a device may have something new to start."""
        self.expected: list[list[int]] = [[] for _ in range(problem.devices)]
        """For each device the ticks of arrivals to come."""
        self.position = [0] * problem.stages
        for chain in problem.placement.chains:
            for position, stage in enumerate(chain):
                self.position[stage] = position
        self.most_in_flight = most_in_flight(problem, policy.ahead)

    def rows_until(self, deadline: float) -> tuple[Row, ...] | None:
        """Return the rows; None if the deadline passes or the policy's order gets stuck."""
        problem = self.problem
        for chain, stages in enumerate(problem.placement.chains):
            for microbatch in problem.microbatches_of(chain):
                self.arrival[Op(stages[0], OpKind.FORWARD, microbatch)] = 0
            heapq.heappush(self.events, (0, problem.placement.device_of_stage[stages[0]]))
        steps = 0
        while self.events or self._force_weights():
            time, device = heapq.heappop(self.events)
            if self.free[device] > time:
                continue
            op = self._choose(device, time)
            if op is not None:
                self._start(op, device, time)
            steps += 1
            if steps % 256 == 0 and monotonic() > deadline:
                return None
        stuck = any(self.next[self.backward][s] < self.end[s] for s in range(problem.stages))
        return None if stuck else tuple(map(tuple, self.rows))

    def _force_weights(self) -> bool:
        """Run the W's that the policy holds back once nothing else is to come."""
        for device in range(self.problem.devices):
            weight = self._next_weight(device)
            if weight is not None:
                self._start(weight, device, self.free[device])
        return bool(self.events)

    def _choose(self, device: int, time: int) -> Op | None:
        weight = self._next_weight(device)
        if weight is not None and self.policy.weights is Weights.EAGER:
            return weight
        ready = self._ready(device, time)
        fitting = [op for op in ready if self.memory[device].fits(op)]
        if fitting:
            return min(fitting, key=self._rank)
        if weight is None or len(ready) > len(fitting):
            return weight
        if self.policy.weights is Weights.LAZY and self._forwards_left(device):
            return None
        expected = self.expected[device]
        while expected and expected[0] <= time:
            heapq.heappop(expected)
        in_the_way = bool(expected) and expected[0] < time + self.problem.duration(weight)
        return None if in_the_way else weight

    def _ready(self, device: int, time: int) -> list[Op]:
        ready: list[Op] = []
        for stage in self.problem.placement.stages_of_device[device]:
            in_flight = self.next[OpKind.FORWARD][stage] - self.next[self.backward][stage]
            for kind in (OpKind.FORWARD, self.backward):
                op = Op(stage, kind, self.next[kind][stage])
                most = self.most_in_flight[stage]
                if kind is OpKind.FORWARD and most is not None and in_flight >= most:
                    continue
                if self.arrival.get(op, time + 1) <= time:
                    ready.append(op)
        return ready

    def _rank(self, op: Op) -> tuple[bool, int, int]:
        """Order ready ops by the policy; the least goes first."""
        forward = op.kind is OpKind.FORWARD
        index, position = op.microbatch - self.first[op.stage], -self.position[op.stage]
        later = forward is (self.policy.first is First.BACKWARD)
        return (later, position, index) if self.policy.deep else (later, index, position)

    def _next_weight(self, device: int) -> Op | None:
        if self.policy.fused:
            return None
        done = self.next[OpKind.BACKWARD_WEIGHT]
        waiting = [
            (done[stage] - self.first[stage], stage)
            for stage in self.problem.placement.stages_of_device[device]
            if done[stage] < self.next[self.backward][stage]
        ]
        if not waiting:
            return None
        _, stage = min(waiting)
        return Op(stage, OpKind.BACKWARD_WEIGHT, done[stage])

    def _forwards_left(self, device: int) -> bool:
        stages = self.problem.placement.stages_of_device[device]
        return any(self.next[OpKind.FORWARD][stage] < self.end[stage] for stage in stages)

    def _start(self, op: Op, device: int, time: int) -> None:
        self.rows[device].append(op)
        self.memory[device].run(op)
        self.next[op.kind][op.stage] += 1
        end = time + self.problem.duration(op)
        self.free[device] = end
        heapq.heappush(self.events, (end, device))
        placement = self.problem.placement
        match op.kind:
            case OpKind.FORWARD:
                target = placement.following[op.stage]
                if target is None:
                    self._announce(Op(op.stage, self.backward, op.microbatch), op.stage, end)
                else:
                    self._announce(Op(target, OpKind.FORWARD, op.microbatch), op.stage, end)
            case OpKind.BACKWARD | OpKind.BACKWARD_INPUT:
                target = placement.previous[op.stage]
                if target is not None:
                    self._announce(Op(target, self.backward, op.microbatch), op.stage, end)
            case OpKind.BACKWARD_WEIGHT:
                pass

    def _announce(self, op: Op, source: int, end: int) -> None:
        device = self.problem.placement.device_of_stage[op.stage]
        arrival = end + self.problem.lag(source, op.stage)
        self.arrival[op] = arrival
        heapq.heappush(self.expected[device], arrival)
        heapq.heappush(self.events, (arrival, device))


def most_in_flight(problem: Problem, ahead: float | None) -> list[int | None]:
    """Return for each stage how many forwards may be ahead of their backwards; None: all.

    ``ahead`` is a multiple of what hides one turnaround, as in ``Policy``.
    """
    times = LeastTimes(problem)
    period = max(
        sum(times.forward[stage] + times.backward[stage] for stage in stages)
        for stages in problem.placement.stages_of_device
    )
    if ahead is None or not period:
        return [None] * problem.stages
    return [
        max(1, ceil(ahead * times.turnaround(stage) / period)) for stage in range(problem.stages)
    ]
