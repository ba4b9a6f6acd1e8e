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

Fewer states are left with prices (``prices``): a linear program tells how much all schedules within
the time lose together, by idle time and the like, and a state that has lost more is dropped, since
nothing that follows it can end in time. What was lost need not be compared between states: if what
follows one can follow a better one, too, that one has not lost too much either.

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
from time import monotonic
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bubbleproof.schedules.ops import Op, OpKind, Row
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Starts
from bubbleproof.schedules.simulate import earliest_starts
from bubbleproof.solver.background import Stop
from bubbleproof.solver.limits import room
from bubbleproof.solver.prices import Prices, no_prices
from bubbleproof.solver.retime import least_span_starts, objective_of
from bubbleproof.solver.state_kernel import AFTER, BUCKETS, NO_LAYER, NOW, Devices, Layer, expand
from bubbleproof.solver.state_problem import NO_ROOM, Arrays, ints
from bubbleproof.solver.tolls import Tolls

MOST_BYTES = 600_000_000
"""What two layers, and what is kept of those before, may take."""

_MOST_TICKS = 2**29
_CHUNK = 1_000
_RETIMING_S = 1.0
_PART = 1_000
"""States of half a window, which is halved again where it has more."""


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
    """For each device when it may begin, in units: at the earliest and at the latest.

    Attributes
    ----------
    anchor
        The device that begins at 0; None where all do, and all must end in time.
    """

    earliest: tuple[int, ...]
    latest: tuple[int, ...]
    anchor: int | None


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
        self._arrays = Arrays(problem)
        self.unit = self._arrays.unit
        self._tolls: dict[int | None, Tolls] = {}
        self._priced: dict[tuple[int, int | None], Prices | None] = {}

    def price(self, known: int, *, time_limit_s: float, stop: Stop) -> None:
        """Look for prices that tell of states that they cannot end in time, to search less.

        Parameters
        ----------
        known
            A bound that is known, in units: prices matter where they give as much.
        """
        until = monotonic() + time_limit_s
        for window in self._windows(known):
            ratio = self.unit // (tolls := Tolls(self._problem, window.anchor)).unit
            tolls.find(known * ratio - 1, until - monotonic(), stop)
            self._tolls[window.anchor] = tolls
        self._priced.clear()

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

    # Windows

    def _windows(self, time: int) -> Iterator[Window]:
        """Yield what beginnings are possible, so that some chain's first device begins at 0.

        For the span all ends are within twice the span for each chain (verify/SPEC.md, Horizon).
        """
        problem, devices = self._problem, self._problem.devices
        nothing = (0,) * devices
        if problem.objective is Objective.MAKESPAN:
            yield Window(nothing, nothing, None)
            return
        far = 2 * time * len(problem.microbatches)
        device_of = problem.placement.device_of_stage
        busy = [chain for chain, number in enumerate(problem.microbatches) if number]
        for device in sorted({device_of[problem.placement.chains[chain][0]] for chain in busy}):
            latest = tuple(0 if d == device else far for d in range(devices))
            yield Window(nothing, latest, device)

    def _narrowed(self, time: int, window: Window) -> tuple[list[int], list[list[int]]]:
        """Return when devices must have begun, and kinds of ops, for all to end in time."""
        problem = self._problem
        begin_by = list(window.latest)
        if problem.objective is Objective.MAKESPAN:
            return [time] * problem.devices, self._arrays.latest([time] * problem.devices)
        while True:
            latest = self._arrays.latest([time + by for by in begin_by])
            narrower = list(begin_by)
            for x, number in enumerate(self._arrays.number):
                if number:
                    device = self._arrays.device[x]
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
        earliest = [max(pair) for pair in zip(window.earliest, self._arrays.soonest, strict=True)]
        width, device = max(
            (by - first, device)
            for device, (by, first) in enumerate(zip(begin_by, earliest, strict=True))
        )
        if 2 * width <= time - self._arrays.work[device]:
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
        kinds = self._arrays.kinds._replace(latest=ints(latest))
        rooms = [room(problem, device) for device in range(problem.devices)]
        devices = Devices(
            room=ints([NO_ROOM if limit is None else limit for limit in rooms]),
            deadline=ints(deadline),
            begin_by=ints(begin_by),
        )
        prices = self._prices(time, window.anchor)
        if prices is None:
            return _Outcome(None, complete=True, expanded=0)
        now, after = _layer(self._arrays.width), _layer(self._arrays.width)
        at_free = len(self._arrays.ops) + problem.devices + len(self._arrays.classes)
        now.rows[0, at_free : at_free + problem.devices] = window.earliest
        size, expanded = 1, 0
        steps: list[Steps] = []
        for _ in range(sum(self._arrays.number)):
            index = size_after = 0
            while index < size:
                if expanded >= effort or stopped():
                    return _Outcome(None, complete=False, expanded=expanded)
                index, size, size_after, more, full = expand(
                    kinds,
                    self._arrays.weights,
                    devices,
                    prices,
                    now,
                    after,
                    index,
                    _CHUNK,
                    size,
                    size_after,
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

    def _prices(self, time: int, anchor: int | None) -> Prices | None:
        """Return what may be paid in a time and for what; None where even a fluid pays more."""
        arrays = self._arrays
        tolls = self._tolls.get(anchor)
        if tolls is None:
            return no_prices(self._problem.devices, len(arrays.ops) + len(arrays.classes))
        if (time, anchor) not in self._priced:
            unit, classes = self.unit // tolls.unit, arrays.stages_of_classes()
            self._priced[time, anchor] = tolls.prices(time * unit, arrays.ops, classes, unit)
        return self._priced[time, anchor]

    def _rows(self, layers: Sequence[Steps]) -> tuple[Row, ...]:
        """Return the order in which the first state of the last layer was reached."""
        taken: list[int] = []
        layer, state = len(layers) - 1, 0
        while layer or state:
            step = int(layers[layer].step[state])
            taken.append(step)
            state = int(layers[layer].parent[state])
            layer -= step < len(self._arrays.ops)
        problem = self._problem
        rows: list[list[Op]] = [[] for _ in range(problem.devices)]
        done = [0] * len(self._arrays.ops)
        waiting: list[deque[Op]] = [deque() for _ in self._arrays.classes]
        """The W's of each class whose I has started."""
        for step in reversed(taken):
            if step >= len(self._arrays.ops):
                number = step - len(self._arrays.ops)
                rows[self._arrays.classes[number][0]].append(waiting[number].popleft())
                continue
            stage, kind = self._arrays.ops[step]
            microbatch = problem.microbatches_of_stage(stage).start + done[step]
            done[step] += 1
            rows[self._arrays.device[step]].append(Op(stage, kind, microbatch))
            if self._arrays.follows_weight(step):
                weight = Op(stage, OpKind.BACKWARD_WEIGHT, microbatch)
                waiting[self._arrays.classes.index(self._arrays.class_of(step))].append(weight)
        for (device, _, _), left in zip(self._arrays.classes, waiting, strict=True):
            rows[device].extend(left)
        return tuple(map(tuple, rows))


def _layer(width: int, states: int = 64) -> Layer:
    return Layer(
        rows=np.zeros((states, width), np.int32),
        dead=np.zeros(states, np.bool_),
        link=np.full(states, -1, np.int32),
        bucket=np.full(BUCKETS, -1, np.int32),
        paid=np.zeros(states, np.int64),
        parent=np.zeros(states, np.int32),
        step=np.zeros(states, np.int16),
    )


def _grown(layer: Layer) -> Layer:
    """Return a layer with the same states and room for as many more."""
    old, new = len(layer.dead), _layer(layer.rows.shape[1], 2 * len(layer.dead))
    new.rows[:old], new.dead[:old], new.link[:old] = layer.rows, layer.dead, layer.link
    new.paid[:old], new.parent[:old], new.step[:old] = layer.paid, layer.parent, layer.step
    return new._replace(bucket=layer.bucket)


def _bytes(now: Layer, after: Layer, *steps: Steps) -> int:
    """Return what is taken once one of the layers has grown, at most."""
    kept = sum(layer.parent.nbytes + layer.step.nbytes for layer in steps)
    return 2 * (now.rows.nbytes + after.rows.nbytes) + kept
