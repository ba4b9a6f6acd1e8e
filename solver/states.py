"""Exact search among the states of a schedule in the making, for few devices or little memory.

All microbatches of a chain are alike, so every kind of op (the F's or the backwards of a stage)
takes its inputs in the order in which they arrive, and a schedule in the making is known by how
many ops of each kind have started, when each device is free, and when the inputs on their way
arrive. Of two such states with the same numbers one is enough if nothing in it is later, no device
has run fewer W's, and no op is kept from running that the other one may run. What is left is
searched in layers, by how many F's and backwards have started; only two layers are in memory.

What is asked is whether all can end within a time, so that a state from which something must come
too late is dropped. The steps from a state are those of Giffler and Thompson (Operations Research
8, 1960): of all ops that could be next, take the one that can end first. What starts next on its
device starts before that end, or the op could run before it. That does no harm where the op frees
no less than it allocates; any other op, as an F, may have to stay behind for its memory, so it is
also kept back, until an op runs on the device with which it would not have fitted. In the schedule
within the time whose starts have the least sum nothing could run earlier, so it is found.

For the span each device has its own window, which begins with its first op. Some chain's first
device begins at 0; for the others a range of beginnings is taken at once, each device being given
all the time from the earliest to the end of the latest window. Where that has many states, the
range of a device is halved, for nearer deadlines; and a schedule found that does not keep its
windows divides it between what is too early and what is too late for this schedule.

Simplifications: no pairs, no choice between B and I + W, no W that allocates anything.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd
from time import monotonic
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import Op, OpKind, Row
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Starts
from bubbleproof.schedules.simulate import earliest_starts
from bubbleproof.solver.limits import room
from bubbleproof.solver.retime import least_span_starts, objective_of
from bubbleproof.solver.state_kernel import (
    AFTER,
    ARRIVALS,
    BUCKETS,
    NO_LAYER,
    NOW,
    Devices,
    Ints,
    Kinds,
    Layer,
    Weights,
    expand,
)

MOST_BYTES = 600_000_000
"""What two layers, and what is kept of those before, may take."""

_MOST_BITS = 30
_MOST_TICKS = 2**29
_CHUNK = 1_000
_NO_ROOM = 2**60
_RETIMING_S = 1.0
_PART = 1_000
"""States of half a window, which is halved again where it has more."""


def has_states(problem: Problem) -> bool:
    """Whether a problem is one that can be searched like this."""
    fused = problem.backward is Backward.FUSED
    return (
        problem.backward is not Backward.FREE
        and not (fused and any(ticks is not None for ticks in problem.cost.pair))
        and (fused or not any(allocate for allocate, _ in problem.memory.W))
        and all(2 * len(held) <= _MOST_BITS for held in problem.placement.stages_of_device)
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """What a search among states says of a time.

    Parameters
    ----------
    rows, starts
        A schedule within the time; None where none was found.
    complete
        Whether all states were looked at: then, without a schedule, there is none.
    expanded
        From how many states steps were taken.
    """

    rows: tuple[Row, ...] | None
    starts: Starts | None
    complete: bool
    expanded: int


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The same of one window; the order may need more time than its window gives."""

    rows: tuple[Row, ...] | None
    complete: bool
    expanded: int


@dataclass(frozen=True, slots=True)
class Window:
    """For each device when it may begin, in units: at the earliest and at the latest."""

    earliest: tuple[int, ...]
    latest: tuple[int, ...]


class Steps(NamedTuple):
    """How the states of a layer were reached."""

    parent: NDArray[np.int32]
    step: NDArray[np.int16]


class States:
    """The states of a problem that ``has_states``.

    Attributes
    ----------
    unit
        The ticks that all times are multiples of; times below are in units.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        fused = problem.backward is Backward.FUSED
        self._backward = OpKind.BACKWARD if fused else OpKind.BACKWARD_INPUT
        self._ops = [
            (stage, kind)
            for chain in problem.placement.chains
            for stages, kind in ((chain, OpKind.FORWARD), (chain[::-1], self._backward))
            for stage in stages
        ]
        """Stage and kind of each kind of op, each behind the one that gives its input."""
        ticks = [problem.cost.of(kind)[stage] for stage, kind in self._ops]
        weights = [0 if fused else problem.cost.W[stage] for stage, _ in self._ops]
        lags = [0] * len(self._ops)
        for chain in self._chains():
            for before, after in pairwise(chain):
                lags[after] = problem.lag(self._ops[before][0], self._ops[after][0])
        self.unit = gcd(*ticks, *weights, *lags) or 1
        self._ticks = [t // self.unit for t in ticks]
        self._weight_ticks = [
            w // self.unit if kind is self._backward else 0
            for w, (_, kind) in zip(weights, self._ops, strict=True)
        ]
        self._lags = [lag // self.unit for lag in lags]
        self._device = [problem.placement.device_of_stage[stage] for stage, _ in self._ops]
        self._number = [len(problem.microbatches_of_stage(stage)) for stage, _ in self._ops]
        self._classes = sorted(
            {self._class_of(x) for x in range(len(self._ops)) if self._follows_weight(x)}
        )
        self._soonest = self._least_begins()
        self._work = [0] * problem.devices
        for x, device in enumerate(self._device):
            self._work[device] += self._number[x] * (self._ticks[x] + self._weight_ticks[x])
        self._kinds = self._arrays()
        self._weights = Weights(
            device=_ints([device for device, _, _ in self._classes]),
            ticks=_ints([ticks for _, ticks, _ in self._classes]),
            net=_ints([net for _, _, net in self._classes]),
        )

    def within(self, time: int, *, effort: int, stopped: Callable[[], bool]) -> Answer:
        """Look for a schedule whose objective is at most a time.

        Parameters
        ----------
        time
            In units.
        effort
            From how many states steps are taken at most.
        stopped
            Whether to give up.
        """
        windows = [(window, effort // 2) for window in self._windows(time)]
        expanded = 0
        while windows:
            window, share = windows.pop()
            halves = self._halved(time, window)
            most = min(effort - expanded, share if halves else effort)
            # Deadlines are nearer in parts of a range, so these may have fewer states together.
            outcome = self._search(time, window, most, stopped)
            expanded += outcome.expanded
            if outcome.rows is None:
                if outcome.complete:
                    continue
                if not halves or expanded >= effort or stopped():
                    return Answer(None, None, complete=False, expanded=expanded)
                windows.extend((half, _PART) for half in halves)
                continue
            starts = self._starts(time, window, outcome.rows)
            if objective_of(self._problem, outcome.rows, starts) <= time * self.unit:
                return Answer(outcome.rows, starts, complete=True, expanded=expanded)
            parts = self._divided(time, window, outcome.rows)
            if not parts:
                return Answer(None, None, complete=False, expanded=expanded)
            windows.extend((part, share) for part in parts)
        return Answer(None, None, complete=True, expanded=expanded)

    # The problem in arrays

    def _chains(self) -> Iterator[list[int]]:
        """Yield for each chain its kinds of ops in the order in which a microbatch passes them."""
        first = 0
        for chain in self._problem.placement.chains:
            yield list(range(first, first + 2 * len(chain)))
            first += 2 * len(chain)

    def _follows_weight(self, x: int) -> bool:
        return self._backward is OpKind.BACKWARD_INPUT and self._ops[x][1] is self._backward

    def _class_of(self, x: int) -> tuple[int, int, int]:
        free = self._problem.memory.W[self._ops[x][0]][1]
        return self._device[x], self._weight_ticks[x], -free

    def _arrays(self) -> Kinds:
        problem, count = self._problem, len(self._ops)
        source, target = [-1] * count, [-1] * count
        for chain in self._chains():
            for before, after in pairwise(chain):
                source[after], target[before] = before, after
        place = count + 2 * problem.devices + len(self._classes)
        queue = [-1] * count
        for x in range(count):
            if source[x] >= 0 and self._device[source[x]] != self._device[x]:
                queue[x], place = place, place + ARRIVALS
        self._width = place
        bits = [0] * problem.devices
        bit: list[int] = []
        for device in self._device:
            bit.append(bits[device])
            bits[device] += 1
        changes = [problem.memory.of(kind)[stage] for stage, kind in self._ops]
        return Kinds(
            device=_ints(self._device),
            ticks=_ints(self._ticks),
            number=_ints(self._number),
            source=_ints(source),
            target=_ints(target),
            lag=_ints(self._lags),
            queue=_ints(queue),
            bit=_ints(bit),
            allocate=_ints([allocate for allocate, _ in changes]),
            net=_ints([allocate - free for allocate, free in changes]),
            weight_class=_ints(
                [
                    self._classes.index(self._class_of(x)) if self._follows_weight(x) else -1
                    for x in range(count)
                ]
            ),
            weight_ticks=_ints(self._weight_ticks),
            latest=_ints([]),
        )

    def _least_begins(self) -> list[int]:
        """Return for each device how long its first input is on its way, at least."""
        begins: dict[int, int] = {}
        for chain in self._chains():
            way = 0
            for before, x in pairwise([chain[0], *chain]):
                way += 0 if x == before else self._ticks[before] + self._lags[x]
                if self._number[x]:
                    begins[self._device[x]] = min(way, begins.get(self._device[x], way))
        return [begins.get(device, 0) for device in range(self._problem.devices)]

    def _latest(self, deadline: Sequence[int]) -> list[list[int]]:
        """Return by how many are left when the first of a kind must have started."""
        latest = [[_NO_ROOM] * (max(self._number) + 1) for _ in self._ops]
        for chain in self._chains():
            behind = [0] * self._problem.devices
            """What a microbatch has still to run on each device."""
            for place in range(len(chain) - 1, -1, -1):
                x = chain[place]
                device = self._device[x]
                behind[device] += self._ticks[x] + self._weight_ticks[x]
                for left in range(1, self._number[x] + 1):
                    times = [deadline[device] - left * behind[device]]
                    if left > 1:
                        times.append(latest[x][left - 1] - self._ticks[x])
                    if place + 1 < len(chain):
                        target = chain[place + 1]
                        gap = self._ticks[x] + self._lags[target]
                        times.append(latest[target][left] - gap)
                    latest[x][left] = min(times)
        return latest

    # Windows

    def _windows(self, time: int) -> Iterator[Window]:
        """Yield what beginnings are possible, so that some chain's first device begins at 0.

        For the span all ends are within twice the span for each chain (verify/SPEC.md, Horizon).
        """
        problem, devices = self._problem, self._problem.devices
        nothing = (0,) * devices
        if problem.objective is Objective.MAKESPAN:
            yield Window(nothing, nothing)
            return
        far = 2 * time * len(problem.microbatches)
        device_of = problem.placement.device_of_stage
        busy = [chain for chain, number in enumerate(problem.microbatches) if number]
        for device in sorted({device_of[problem.placement.chains[chain][0]] for chain in busy}):
            yield Window(nothing, tuple(0 if d == device else far for d in range(devices)))

    def _narrowed(self, time: int, window: Window) -> tuple[list[int], list[list[int]]]:
        """Return when devices must have begun, and kinds of ops, for all to end in time."""
        problem = self._problem
        begin_by = list(window.latest)
        if problem.objective is Objective.MAKESPAN:
            return [time] * problem.devices, self._latest([time] * problem.devices)
        while True:
            latest = self._latest([time + by for by in begin_by])
            narrower = list(begin_by)
            for x, number in enumerate(self._number):
                if number:
                    device = self._device[x]
                    narrower[device] = min(narrower[device], latest[x][number])
            if narrower == begin_by or min(narrower) < 0:
                return begin_by, latest
            begin_by = narrower

    def _starts(self, time: int, window: Window, rows: tuple[Row, ...]) -> Starts:
        """Return starts for an order, with a span that is within a time if such were found."""
        if self._problem.objective is Objective.MAKESPAN:
            return earliest_starts(self._problem, rows)
        release = [self.unit * earliest for earliest in window.earliest]
        starts = earliest_starts(self._problem, rows, release=release)
        if objective_of(self._problem, rows, starts) <= time * self.unit:
            return starts
        until = monotonic() + _RETIMING_S
        return least_span_starts(self._problem, rows, bound=time * self.unit, deadline=until)

    def _divided(self, time: int, window: Window, rows: tuple[Row, ...]) -> list[Window]:
        """Divide a window so that an order which takes longer than the time is in no part.

        Of the device that takes longest, one part begins too early for its end, and the other too
        late for its begin. None where all devices keep their windows, as with more arrivals than
        are told apart.
        """
        release = [self.unit * earliest for earliest in window.earliest]
        starts = earliest_starts(self._problem, rows, release=release)
        begin_by, _ = self._narrowed(time, window)
        late: list[tuple[int, int, int]] = []
        for device, (row, begins) in enumerate(zip(rows, starts, strict=True)):
            if row:
                end = (begins[-1] + self._problem.duration(row[-1])) // self.unit
                over = end - time - begins[0] // self.unit
                if over > 0 and end - time <= begin_by[device]:
                    late.append((over, device, end - time))
        if not late:
            return []
        _, device, begin = max(late)
        earliest, latest = list(window.earliest), list(window.latest)
        earliest[device], latest[device] = begin, begin - 1
        return [
            replace(window, latest=tuple(latest)),
            replace(window, earliest=tuple(earliest)),
        ]

    def _halved(self, time: int, window: Window) -> list[Window]:
        """Divide the widest range of beginnings, the earlier half to be searched first.

        None where it is no wider than half of the time in which the device may be idle: then a
        nearer deadline leaves no fewer states.
        """
        if self._problem.objective is Objective.MAKESPAN:
            return []
        begin_by, _ = self._narrowed(time, window)
        earliest = [max(pair) for pair in zip(window.earliest, self._soonest, strict=True)]
        width, device = max(
            (by - first, device)
            for device, (by, first) in enumerate(zip(begin_by, earliest, strict=True))
        )
        if 2 * width <= time - self._work[device]:
            return []
        middle = begin_by[device] - (width + 1) // 2
        later, sooner = list(window.earliest), list(window.latest)
        later[device], sooner[device] = middle + 1, middle
        return [
            replace(window, earliest=tuple(later)),
            replace(window, latest=tuple(sooner)),
        ]

    # The search

    def _search(
        self, time: int, window: Window, effort: int, stopped: Callable[[], bool]
    ) -> _Outcome:
        """Look for an order that ends in time, as often as devices begin within their windows."""
        problem = self._problem
        begin_by, latest = self._narrowed(time, window)
        span = problem.objective is Objective.SPAN
        deadline = [time + by if span else time for by in begin_by]
        if max(deadline) > _MOST_TICKS:
            return _Outcome(None, complete=False, expanded=0)
        kinds = self._kinds._replace(latest=_ints(latest))
        rooms = [room(problem, device) for device in range(problem.devices)]
        devices = Devices(
            room=_ints([_NO_ROOM if limit is None else limit for limit in rooms]),
            deadline=_ints(deadline),
            begin_by=_ints(begin_by),
        )
        now, after = _layer(self._width), _layer(self._width)
        at_free = len(self._ops) + problem.devices + len(self._classes)
        now.rows[0, at_free : at_free + problem.devices] = window.earliest
        size, expanded = 1, 0
        steps: list[Steps] = []
        for _ in range(sum(self._number)):
            index = size_after = 0
            while index < size:
                if expanded >= effort or stopped():
                    return _Outcome(None, complete=False, expanded=expanded)
                index, size, size_after, more, full = expand(
                    kinds, self._weights, devices, now, after, index, _CHUNK, size, size_after
                )
                expanded += more
                if full != NO_LAYER:
                    if _bytes(now, after, *steps) > MOST_BYTES:
                        return _Outcome(None, complete=False, expanded=expanded)
                    now = _grown(now) if full == NOW else now
                    after = _grown(after) if full == AFTER else after
            if not size_after:
                return _Outcome(None, complete=True, expanded=expanded)
            steps.append(Steps(now.parent[:size].copy(), now.step[:size].copy()))
            now, after, size = after, now, size_after
            after.bucket[:] = -1
        steps.append(Steps(now.parent[:size], now.step[:size]))
        return _Outcome(self._rows(steps), complete=True, expanded=expanded)

    def _rows(self, layers: Sequence[Steps]) -> tuple[Row, ...]:
        """Return the order in which the first state of the last layer was reached."""
        taken: list[int] = []
        layer, state = len(layers) - 1, 0
        while layer or state:
            step = int(layers[layer].step[state])
            taken.append(step)
            state = int(layers[layer].parent[state])
            layer -= step < len(self._ops)
        problem = self._problem
        rows: list[list[Op]] = [[] for _ in range(problem.devices)]
        done = [0] * len(self._ops)
        waiting: list[deque[Op]] = [deque() for _ in self._classes]
        """The W's of each class whose I has started."""
        for step in reversed(taken):
            if step >= len(self._ops):
                number = step - len(self._ops)
                rows[self._classes[number][0]].append(waiting[number].popleft())
                continue
            stage, kind = self._ops[step]
            microbatch = problem.microbatches_of_stage(stage).start + done[step]
            done[step] += 1
            rows[self._device[step]].append(Op(stage, kind, microbatch))
            if self._follows_weight(step):
                weight = Op(stage, OpKind.BACKWARD_WEIGHT, microbatch)
                waiting[self._classes.index(self._class_of(step))].append(weight)
        for (device, _, _), left in zip(self._classes, waiting, strict=True):
            rows[device].extend(left)
        return tuple(map(tuple, rows))


def _layer(width: int, states: int = 64) -> Layer:
    return Layer(
        rows=np.zeros((states, width), np.int32),
        dead=np.zeros(states, np.bool_),
        link=np.full(states, -1, np.int32),
        bucket=np.full(BUCKETS, -1, np.int32),
        parent=np.zeros(states, np.int32),
        step=np.zeros(states, np.int16),
    )


def _grown(layer: Layer) -> Layer:
    """Return a layer with the same states and room for as many more."""
    old, new = len(layer.dead), _layer(layer.rows.shape[1], 2 * len(layer.dead))
    new.rows[:old], new.dead[:old], new.link[:old] = layer.rows, layer.dead, layer.link
    new.parent[:old], new.step[:old] = layer.parent, layer.step
    return new._replace(bucket=layer.bucket)


def _bytes(now: Layer, after: Layer, *steps: Steps) -> int:
    """Return what is taken once one of the layers has grown, at most."""
    kept = sum(layer.parent.nbytes + layer.step.nbytes for layer in steps)
    return 2 * (now.rows.nbytes + after.rows.nbytes) + kept


def _ints(values: Sequence[int] | Sequence[Sequence[int]]) -> Ints:
    return np.array(values, np.int64)
