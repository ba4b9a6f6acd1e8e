"""A problem in arrays, as the search among states takes it: see ``states`` and ``state_kernel``."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.problem import Problem
from bubbleproof.solver.times import LeastTimes

Ints = NDArray[np.int64]

ARRIVALS = 4
"""How many arrivals of an input are told apart; older ones count as there, which is less strict."""

NO_ROOM = 2**60
"""More than any limit or time."""

_MOST_BITS = 30


FORWARDS, GRADIENTS = range(2)
"""Of which ops one is the last on a device."""


class Kinds(NamedTuple):
    """Kinds of ops, F and backward of each stage; each after the one that gives its input."""

    device: Ints
    ticks: Ints
    number: Ints
    """How many ops there are of the kind."""
    source: Ints
    """The kind that gives the input; -1 for none."""
    target: Ints
    """The kind that the output goes to; -1 for none."""
    lag: Ints
    """Ticks from the end of the source to the arrival."""
    queue: Ints
    """The place of its arrivals in a state; -1 where the input comes from the same device."""
    bit: Ints
    """Its bit among those of its device."""
    allocate: Ints
    net: Ints
    """What it allocates less what it frees."""
    weight_class: Ints
    """The class of the W that it makes possible; -1 for none."""
    weight_ticks: Ints
    """The time of that W."""
    latest: Ints
    """By how many are left: when the first of them must have started."""
    last: Ints
    """Of FORWARDS or GRADIENTS where one of the kind may be the last on its device, else -1."""
    open: Ints
    """The most of the device's work that is open when that one has ended."""


class Weights(NamedTuple):
    """Classes of W's: those of a device that take the same time and free the same."""

    device: Ints
    ticks: Ints
    net: Ints


def has_states(problem: Problem) -> bool:
    """Whether a problem is one that can be searched like this."""
    fused = problem.backward is Backward.FUSED
    return (
        problem.backward is not Backward.FREE
        and not (fused and any(ticks is not None for ticks in problem.cost.pair))
        and (fused or not any(allocate for allocate, _ in problem.memory.W))
        and all(2 * len(held) <= _MOST_BITS for held in problem.placement.stages_of_device)
    )


class Arrays:
    """A problem that ``has_states`` in arrays; all times in units.

    Attributes
    ----------
    unit
        The ticks that all times are multiples of.
    ops
        Stage and kind of each kind of op, each behind the one that gives its input.
    device, number, ticks
        For each kind of op its device, how many there are, and its time.
    classes
        For each class of W's its device, their time, and what they free less what they allocate.
    work, soonest
        For each device the time of all that it runs, and how soon it can begin.
    kinds, weights
        The arrays; when the first of a kind must have started is left out.
    width
        How many numbers a state has.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, self._times = problem, LeastTimes(problem)
        fused = problem.backward is Backward.FUSED
        self._backward = OpKind.BACKWARD if fused else OpKind.BACKWARD_INPUT
        self.ops = [
            (stage, kind)
            for chain in problem.placement.chains
            for stages, kind in ((chain, OpKind.FORWARD), (chain[::-1], self._backward))
            for stage in stages
        ]
        ticks = [problem.cost.of(kind)[stage] for stage, kind in self.ops]
        weights = [0 if fused else problem.cost.W[stage] for stage, _ in self.ops]
        lags = [0] * len(self.ops)
        for chain in self._chains():
            for before, after in pairwise(chain):
                lags[after] = problem.lag(self.ops[before][0], self.ops[after][0])
        self.unit = gcd(*ticks, *weights, *lags) or 1
        self.ticks = [t // self.unit for t in ticks]
        self._weight_ticks = [
            w // self.unit if kind is self._backward else 0
            for w, (_, kind) in zip(weights, self.ops, strict=True)
        ]
        self._lags = [lag // self.unit for lag in lags]
        self.device = [problem.placement.device_of_stage[stage] for stage, _ in self.ops]
        self.number = [len(problem.microbatches_of_stage(stage)) for stage, _ in self.ops]
        self.classes = sorted(
            {self.class_of(x) for x in range(len(self.ops)) if self.follows_weight(x)}
        )
        self.soonest = self._least_begins()
        self.work = [0] * problem.devices
        for x, device in enumerate(self.device):
            self.work[device] += self.number[x] * (self.ticks[x] + self._weight_ticks[x])
        self.kinds = self._kinds()
        self.weights = Weights(
            device=ints([device for device, _, _ in self.classes]),
            ticks=ints([ticks for _, ticks, _ in self.classes]),
            net=ints([net for _, _, net in self.classes]),
        )

    def stages_of_classes(self) -> list[list[int]]:
        """Return for each class of W's its stages."""
        stages: list[list[int]] = [[] for _ in self.classes]
        for x, (stage, _) in enumerate(self.ops):
            if self.follows_weight(x):
                stages[self.classes.index(self.class_of(x))].append(stage)
        return stages

    def _chains(self) -> Iterator[list[int]]:
        """Yield for each chain its kinds of ops in the order in which a microbatch passes them."""
        first = 0
        for chain in self._problem.placement.chains:
            yield list(range(first, first + 2 * len(chain)))
            first += 2 * len(chain)

    def follows_weight(self, x: int) -> bool:
        """Whether an op of a kind makes a W possible."""
        return self._backward is OpKind.BACKWARD_INPUT and self.ops[x][1] is self._backward

    def class_of(self, x: int) -> tuple[int, int, int]:
        """Return the class of the W's behind a kind of op."""
        free = self._problem.memory.W[self.ops[x][0]][1]
        return self.device[x], self._weight_ticks[x], -free

    def _kinds(self) -> Kinds:
        problem, count = self._problem, len(self.ops)
        source, target = [-1] * count, [-1] * count
        for chain in self._chains():
            for before, after in pairwise(chain):
                source[after], target[before] = before, after
        place = count + 2 * problem.devices + len(self.classes)
        queue = [-1] * count
        for x in range(count):
            if source[x] >= 0 and self.device[source[x]] != self.device[x]:
                queue[x], place = place, place + ARRIVALS
        self.width = place
        bits = [0] * problem.devices
        bit: list[int] = []
        for device in self.device:
            bit.append(bits[device])
            bits[device] += 1
        changes = [problem.memory.of(kind)[stage] for stage, kind in self.ops]
        lasts = [self._last(x) for x in range(count)]
        return Kinds(
            device=ints(self.device),
            ticks=ints(self.ticks),
            number=ints(self.number),
            source=ints(source),
            target=ints(target),
            lag=ints(self._lags),
            queue=ints(queue),
            bit=ints(bit),
            allocate=ints([allocate for allocate, _ in changes]),
            net=ints([allocate - free for allocate, free in changes]),
            weight_class=ints(
                [
                    self.classes.index(self.class_of(x)) if self.follows_weight(x) else -1
                    for x in range(count)
                ]
            ),
            weight_ticks=ints(self._weight_ticks),
            latest=ints([]),
            last=ints([group for group, _ in lasts]),
            open=ints([ticks // self.unit for _, ticks in lasts]),
        )

    def _last(self, x: int) -> tuple[int, int]:
        """Return of which ops of a device one of a kind may be the last, and what is open then."""
        stage, kind = self.ops[x]
        times, device = self._times, self.device[x]
        for part in times.parts(device):
            if kind is OpKind.FORWARD and stage == part.stages[-1]:
                return FORWARDS, times.open_behind_last_forward(device, part)
            if kind is self._backward and stage == part.stages[0]:
                return GRADIENTS, times.open_behind_last_gradient(device, part)
        return -1, 0

    def _least_begins(self) -> list[int]:
        """Return for each device how long its first input is on its way, at least."""
        begins: dict[int, int] = {}
        for chain in self._chains():
            way = 0
            for before, x in pairwise([chain[0], *chain]):
                way += 0 if x == before else self.ticks[before] + self._lags[x]
                if self.number[x]:
                    begins[self.device[x]] = min(way, begins.get(self.device[x], way))
        return [begins.get(device, 0) for device in range(self._problem.devices)]

    def latest(self, deadline: Sequence[int]) -> list[list[int]]:
        """Return by how many are left when the first of a kind must have started."""
        latest = [[NO_ROOM] * (max(self.number) + 1) for _ in self.ops]
        for chain in self._chains():
            behind = [0] * self._problem.devices
            """What a microbatch has still to run on each device."""
            for place in range(len(chain) - 1, -1, -1):
                x = chain[place]
                device = self.device[x]
                behind[device] += self.ticks[x] + self._weight_ticks[x]
                for left in range(1, self.number[x] + 1):
                    times = [deadline[device] - left * behind[device]]
                    if left > 1:
                        times.append(latest[x][left - 1] - self.ticks[x])
                    if place + 1 < len(chain):
                        target = chain[place + 1]
                        gap = self.ticks[x] + self._lags[target]
                        times.append(latest[target][left] - gap)
                    latest[x][left] = min(times)
        return latest


def ints(values: Sequence[int] | Sequence[Sequence[int]]) -> Ints:
    """Return an array of whole numbers."""
    return np.array(values, np.int64)
