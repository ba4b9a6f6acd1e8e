"""Least times and memory facts of a problem, prepared once for all bounds.

For stage s of a chain, *turnaround* is the least time from the start of F(s, m) to the start of
the backward of (s, m). Where a backward may be fused or split, or an op may be in a pair, every
time is the least that any choice takes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.solver.limits import room, stages_on


@dataclass(frozen=True, slots=True)
class Part:
    """The stages of one chain on one device, in chain order, with the chain's microbatches."""

    chain: int
    stages: tuple[int, ...]
    microbatches: int


class LeastTimes:
    """Least times of a problem.

    Attributes
    ----------
    forward
        For each stage the least time of an F.
    gradient
        For each stage the least time until its gradient is handed on, from the backward's start.
    weight
        For each stage the least time of what must follow once the gradient is handed on.
    backward, backward_or_pair
        For each stage the least time of its whole backward, outside a pair and anywhere.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        cost, backward = problem.cost, problem.backward
        fused = backward.allows(OpKind.BACKWARD)
        self._pair = [
            cost.pair[device] if fused else None for device in problem.placement.device_of_stage
        ]
        stages = range(problem.stages)
        match backward:
            case Backward.SPLIT:
                gradient = cost.I
                self.weight = cost.W
                self.backward = tuple(cost.I[s] + cost.W[s] for s in stages)
                self._longest_backward = self.backward
            case Backward.FUSED:
                gradient = cost.B
                self.weight = (0,) * problem.stages
                self.backward = self._longest_backward = cost.B
            case Backward.FREE:
                gradient = tuple(min(cost.I[s], cost.B[s]) for s in stages)
                self.weight = (0,) * problem.stages
                self.backward = tuple(min(cost.I[s] + cost.W[s], cost.B[s]) for s in stages)
                self._longest_backward = tuple(
                    max(cost.I[s] + cost.W[s], cost.B[s]) for s in stages
                )
        self.forward = tuple(self._or_pair(s, cost.F[s]) for s in stages)
        self.gradient = tuple(self._or_pair(s, gradient[s]) for s in stages)
        self.backward_or_pair = tuple(self._or_pair(s, self.backward[s]) for s in stages)
        self._position = {
            stage: place for chain in problem.placement.chains for place, stage in enumerate(chain)
        }
        self.through_work = cache(self._through_work)
        self.forced_weights = cache(self._forced_weights)
        self.until_last_forward = cache(self._until_last_forward)
        self.warm_idle = cache(self._warm_idle)
        self.cool_idle = cache(self._cool_idle)
        self._up = self._ways(self.forward, forth=True)
        self._down = self._ways(self.gradient, forth=False)
        self._parts = [
            tuple(
                Part(chain, on_device, microbatches)
                for chain, microbatches in enumerate(problem.microbatches)
                if microbatches and (on_device := stages_on(problem, device, chain))
            )
            for device in range(problem.devices)
        ]

    def _or_pair(self, stage: int, alone: int) -> int:
        pair = self._pair[stage]
        return alone if pair is None else min(alone, pair)

    def _ways(self, ticks: Sequence[int], *, forth: bool) -> list[int]:
        """Return for each stage the least time from its chain's first F to its own, or back."""
        way = [0] * self.problem.stages
        for chain in self.problem.placement.chains:
            for before, stage in pairwise(chain):
                if forth:
                    way[stage] = way[before] + ticks[before] + self.problem.lag(before, stage)
                else:
                    way[stage] = way[before] + ticks[stage] + self.problem.lag(stage, before)
        return way

    def parts(self, device: int) -> tuple[Part, ...]:
        """Return the device's stages by chain, of chains that have microbatches."""
        return self._parts[device]

    def parts_after(self, device: int, outer: int) -> tuple[Part, ...]:
        """Return the device's stages that come no earlier in their chain than the outer's first."""
        found: list[Part] = []
        for part in self._parts[device]:
            first = self.first_on(outer, part.chain)
            if first is not None:
                after = self._position[first]
                stages = tuple(s for s in part.stages if self._position[s] >= after)
                if stages == part.stages:
                    found.append(part)
                elif stages:
                    found.append(Part(part.chain, stages, part.microbatches))
        return tuple(found)

    def first_on(self, device: int, chain: int) -> int | None:
        """Return a chain's first stage on a device; None where it does not pass the device."""
        return next((part.stages[0] for part in self._parts[device] if part.chain == chain), None)

    def up(self, stage: int, later: int) -> int:
        """Return the least time from the start of an F to that of a later stage's."""
        return self._up[later] - self._up[stage]

    def down(self, later: int, stage: int) -> int:
        """Return the least time from a later stage's backward's start to an earlier one's."""
        return self._down[later] - self._down[stage]

    def first_in_chain(self, stage: int) -> int:
        """Return the first stage of a stage's chain."""
        return self.problem.placement.chain(stage)[0]

    def onward(self, stage: int) -> tuple[int, ...]:
        """Return the stages of the chain from this one on."""
        chain = self.problem.placement.chain(stage)
        return chain[chain.index(stage) :]

    def turnaround(self, stage: int) -> int:
        """Return the least time from the start of F(s, m) to the start of its backward."""
        last = self.problem.placement.chain(stage)[-1]
        return self.up(stage, last) + self.forward[last] + self.down(last, stage)

    def way_back(self, stage: int, outer: int | None) -> int:
        """Return the least time from a backward's end to the end of what must follow.

        That is the backward and W of the outer device's first stage in the chain; without an
        outer device, of any stage before.
        """
        chain = self.problem.placement.chain(stage)
        first = (
            None
            if outer is None
            else self.first_on(outer, self.problem.placement.chain_of_stage[stage])
        )
        targets = chain[: self._position[stage] + 1] if first is None else (first,)
        return max(
            self.down(stage, target)
            - self.gradient[stage]
            + self.gradient[target]
            + self.weight[target]
            for target in targets
        )

    def least_work(self, device: int) -> int:
        """Return the least time that a device is busy."""
        cost, parts = self.problem.cost, self.parts(device)
        alone = sum(
            part.microbatches * (cost.F[s] + self.backward[s])
            for part in parts
            for s in part.stages
        )
        return alone - self._saved(device, parts, cost.F, self.backward)

    def _through_work(self, device: int, parts: tuple[Part, ...]) -> int:
        """Return the least time that a device is busy with these stages' F's and gradients."""
        alone = sum(
            part.microbatches * (self.forward[s] + self.gradient[s])
            for part in parts
            for s in part.stages
        )
        return alone - self._saved(device, parts, self.forward, self.gradient)

    def _saved(
        self, device: int, parts: Sequence[Part], forward: Sequence[int], backward: Sequence[int]
    ) -> int:
        """Return the most time that pairs save; the first F and the last backward are in none."""
        stages = [stage for part in parts for stage in part.stages]
        pair = self._pair[stages[0]]
        if pair is None:
            return 0
        gain = max(forward[s] for s in stages) + max(backward[s] for s in stages) - pair
        count = sum(part.microbatches * len(part.stages) for part in parts)
        return max(0, gain) * (count - 1)

    def all_forwards_fit(self, device: int) -> bool:
        """Whether a device's memory may hold all its microbatches before the first backward."""
        limit = room(self.problem, device)
        return limit is None or limit >= sum(
            part.microbatches * self._kept(s) for part in self.parts(device) for s in part.stages
        )

    def _warm_idle(self, device: int) -> int:
        """Return the least idle time of a device before its first backward.

        Before it, the device waits for the first F of a second stage of its chains, for that of a
        third, and so on, each time with the F's of the stages before alone.
        """
        longest = max(len(part.stages) for part in self.parts(device))
        return max(0, *(self._idle_until(device, number) for number in range(1, longest + 1)))

    def _idle_until(self, device: int, number: int) -> int:
        """Return the least idle time until what follows the F's of a number of stages begins.

        That is a chain's next F on the device, or where there is none its first backward. The F's
        before it are held when it starts, beside what it allocates.
        """
        limit, memory = room(self.problem, device), self.problem.memory
        forwards: list[tuple[int, int, int]] = []
        until: list[int] = []
        allocates: list[int] = []
        for part in self.parts(device):
            forwards += [
                (self._kept(s), self.problem.cost.F[s], part.microbatches)
                for s in part.stages[:number]
            ]
            first, last = part.stages[0], part.stages[-1]
            if number < len(part.stages):
                until.append(self.up(first, part.stages[number]))
                allocates.append(memory.F[part.stages[number]][0])
            else:
                until.append(self.up(first, last) + self.turnaround(last))
                allocates.append(0)
        if limit is not None:
            limit -= min(allocates)
        return min(until) - most_time(forwards, limit)

    def until_backward(self, device: int) -> int:
        """Return the least time until a device's first backward.

        From the start of all; for the span from the device's own first start.
        """
        whole = self.problem.objective is Objective.MAKESPAN
        return min(
            self.up(self.first_in_chain(last) if whole else part.stages[0], last)
            + self.turnaround(last)
            for part in self.parts(device)
            for last in part.stages[-1:]
        )

    def late_forwards(self, device: int) -> int:
        """Return the least time that forwards add to backwards from a device's first one on.

        A forward alone adds its time; one in a pair what the pair takes longer than the longest
        whole backward at least.
        """
        stages = [(s, part.microbatches) for part in self.parts(device) for s in part.stages]
        pair = self._pair[stages[0][0]]
        in_pair = None if pair is None else max(0, pair - max(self.backward[s] for s, _ in stages))
        adds = {
            s: self.problem.cost.F[s] if in_pair is None else min(self.problem.cost.F[s], in_pair)
            for s, _ in stages
        }
        before = most_time(
            [(self._kept(s), adds[s], count) for s, count in stages], room(self.problem, device)
        )
        return max(0, sum(adds[s] * count for s, count in stages) - before)

    def home_idle(self, device: int) -> int:
        """Return the least that a device's last backward adds beyond its backwards' least times.

        That is idle time while those of the stages before run: it runs W's then, of what was split
        and is held. A W fills its time, but its I and W may take longer than the least backward.
        """
        cost = self.problem.cost
        split = self.problem.backward.allows(OpKind.BACKWARD_WEIGHT)
        waiting = [
            (
                self._pending(s),
                max(0, self.backward_or_pair[s] - cost.I[s]) if split else 0,
                part.microbatches,
            )
            for part in self.parts(device)
            for s in part.stages
        ]
        home = min(self._way_home(part.stages[0]) for part in self.parts(device))
        return max(0, home - most_time(waiting, room(self.problem, device)))

    def _way_home(self, stage: int) -> int:
        """Return the least time from a gradient's handing on until the backwards before it end."""
        chain = self.problem.placement.chain(stage)
        return max(
            (
                self.down(stage, before) - self.gradient[stage] + self.backward_or_pair[before]
                for before in chain[: self._position[stage]]
            ),
            default=0,
        )

    def _cool_idle(self, device: int) -> int:
        """Return the least idle time of a device after its last forward.

        The last F is of a chain's last stage s on the device, for its last microbatch m. Until
        the backward of (first stage, m) starts, only backwards and W's of what was held when
        F(s, m) started, and those of m itself, can run.
        """
        idle: list[int] = []
        for part in self.parts(device):
            own = sum(self._longest_backward[s] for s in part.stages[1:])
            others = most_time(
                [
                    item
                    for other in self.parts(device)
                    for s in other.stages
                    for item in (
                        (self._kept(s), self._longest_backward[s], other.microbatches),
                        (self._pending(s), self._weight_alone(s), other.microbatches),
                    )
                ],
                self._beside_last_forward(device, part),
            )
            idle.append(self._round_trip(part) - own - others)
        return max(0, min(idle))

    def _round_trip(self, part: Part) -> int:
        """Return the least time from the end of a part's last F to the start of its last backward.

        That is of one microbatch: from the part's last stage on, and back to its first.
        """
        first, last = part.stages[0], part.stages[-1]
        return self.turnaround(last) - self.forward[last] + self.down(last, first)

    def _beside_last_forward(self, device: int, part: Part) -> int | None:
        """Return what a device may hold of others when the F on a part's last stage starts."""
        limit = room(self.problem, device)
        if limit is None:
            return None
        own = sum(self._kept(s) for s in part.stages[:-1])
        return limit - own - self.problem.memory.F[part.stages[-1]][0]

    def may_pair(self, device: int) -> bool:
        """Whether ops of a device may overlap in pairs."""
        return any(self._pair[s] is not None for part in self.parts(device) for s in part.stages)

    def from_last_forward(self, part: Part) -> int:
        """Return the least time until a microbatch's gradient leaves a device for good.

        From the end of its F on the part's last stage to where the first stage hands it on.
        """
        return self._round_trip(part) + self.gradient[part.stages[0]]

    def _until_last_forward(self, device: int, part: Part) -> int:
        """Return the least work of a device until its last F ends, of a part's last stage."""
        forwards = sum(
            other.microbatches * self.problem.cost.F[s]
            for other in self.parts(device)
            for s in other.stages
        )
        left = self.open_behind_last_forward(device, part)
        return max(forwards, self.least_work(device) - left)

    def open_behind_last_forward(self, device: int, part: Part) -> int:
        """Return the most work of a device that is open when its last F has ended.

        That F is of a part's last stage. Open are the backwards of its own microbatch on the part
        and of what was held when it started; of a backward whose W is left, the I has run.
        """
        cost = self.problem.cost
        split = self.problem.backward.allows(OpKind.BACKWARD_WEIGHT)
        return sum(self.backward[s] for s in part.stages) + most_time(
            [
                item
                for other in self.parts(device)
                for s in other.stages
                for item in (
                    (self._kept(s), self.backward[s], other.microbatches),
                    (
                        self._pending(s),
                        max(0, self.backward[s] - cost.I[s]) if split else 0,
                        other.microbatches,
                    ),
                )
            ],
            self._beside_last_forward(device, part),
        )

    def open_behind_last_gradient(self, device: int, part: Part) -> int:
        """Return the most work of a device that is open when its last gradient was handed on.

        That gradient is of a part's first stage; open are W's: its own, and what is pending beside
        what it held.
        """
        limit, first = room(self.problem, device), part.stages[0]
        if limit is not None:
            limit -= self._kept(first) + self.problem.memory.I[first][0]
        waiting = [
            (self._pending(s), self.weight[s], other.microbatches)
            for other in self.parts(device)
            for s in other.stages
        ]
        return self.weight[first] + most_time(waiting, limit)

    def _forced_weights(self, device: int, parts: tuple[Part, ...]) -> int:
        """Return the time of the W's that must run before the last backward of these stages."""
        limit = room(self.problem, device)
        if limit is None or not any(self.weight):
            return 0
        firsts = [part.stages[0] for part in parts]
        free = limit - min(self._kept(s) + self.problem.memory.I[s][0] for s in firsts)
        stages = [(s, part.microbatches) for part in parts for s in part.stages]
        waiting = most_time([(self._pending(s), self.weight[s], n) for s, n in stages], free)
        everything = sum(self.weight[s] * n for s, n in stages)
        return max(0, everything - waiting - max(self.weight[s] for s in firsts))

    def held(self, stage: int) -> int:
        """Return the least memory x time that one microbatch takes of a stage, grains x ticks."""
        memory, cost = self.problem.memory, self.problem.cost
        allows = self.problem.backward.allows
        kept = self._kept(stage)
        backwards: list[int] = []
        if allows(OpKind.BACKWARD_INPUT):
            backwards.append(
                (kept + memory.I[stage][0]) * cost.I[stage]
                + (self._pending(stage) + memory.W[stage][0]) * cost.W[stage]
            )
        if allows(OpKind.BACKWARD):
            ticks = self._or_pair(stage, cost.B[stage])
            backwards.append((kept + memory.B[stage][0]) * ticks)
        between = self.turnaround(stage) - self.forward[stage]
        return memory.F[stage][0] * self.forward[stage] + kept * between + min(backwards)

    def _kept(self, stage: int) -> int:
        """Return what a microbatch holds between its F and its backward."""
        allocate, free = self.problem.memory.F[stage]
        return allocate - free

    def _pending(self, stage: int) -> int:
        """Return what a microbatch holds between its I and its W."""
        allocate, free = self.problem.memory.I[stage]
        return self._kept(stage) + allocate - free

    def _weight_alone(self, stage: int) -> int:
        split = self.problem.backward.allows(OpKind.BACKWARD_WEIGHT)
        return self.problem.cost.W[stage] if split else 0


def most_time(items: Iterable[tuple[int, int, int]], limit: int | None) -> int:
    """Return the most time of items (memory, time, how many there are) that fit in memory.

    Exact for up to two kinds of item; with more kinds, the value of the relaxation in which the
    last item may be cut, which is never less.
    """
    kinds: dict[tuple[int, int], int] = {}
    time = 0
    for memory, ticks, count in items:
        if memory <= 0 or limit is None:
            time += ticks * count
        elif ticks:
            kinds[memory, ticks] = kinds.get((memory, ticks), 0) + count
    if limit is None or limit <= 0 or not kinds:
        return time
    order = sorted(kinds, key=lambda kind: (-Fraction(kind[1], kind[0]), kind))
    if len(order) == 1:
        ((memory, ticks),) = order
        return time + ticks * min(kinds[order[0]], limit // memory)
    if len(order) == 2:
        (memory, ticks), (other_memory, other_ticks) = order
        return time + max(
            count * ticks
            + other_ticks * min(kinds[order[1]], (limit - count * memory) // other_memory)
            for count in range(min(kinds[order[0]], limit // memory) + 1)
        )
    for memory, ticks in order:
        count = min(kinds[memory, ticks], limit // memory)
        time += count * ticks
        limit -= count * memory
        if count < kinds[memory, ticks]:
            return time + limit * ticks // memory
    return time
