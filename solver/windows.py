"""Large neighbourhood search: CP-SAT on one window of a schedule after the other.

A window frees some ops and keeps the order of all others (``window_model.py``). It lies in some
part of the time, on all devices or on a few for longer. Each part has a size of its own, which
grows where windows are proven soon to hold nothing better and shrinks where time runs out, and is
taken the oftener the more it gave for its time; at first, the more devices wait in it (Shaw, Using
constraint programming and local search methods to solve vehicle routing problems, CP 1998). What a
window finds is never worse; among equals it prefers what is done sooner on devices that are drawn
by lot, so that room gathers until another window can use it.
"""

import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TypeAlias

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import Block, OpKind, Row, ops_of
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Starts
from bubbleproof.schedules.simulate import earliest_starts
from bubbleproof.solver.background import Stop
from bubbleproof.solver.mirror import Mirror, is_own_image, mirror_of
from bubbleproof.solver.retime import objective_of
from bubbleproof.solver.scale import Scaled, horizon
from bubbleproof.solver.window import Cut, Window
from bubbleproof.solver.window_model import WindowModel

WINDOW_S = 4.0
"""The most that one window may take, in seconds."""

_PARTS = 8
_FIRST_SIZE = 60
_LEAST_SIZE = 8
_GROWTH, _SHRINKAGE = 1.3, 0.8
_SPREAD = (0.7, 1.4)
_GAIN, _MOST_WORTH = 2.0, 8.0
_LOSS, _LEAST_WORTH = 0.8, 0.05
"""By what the worth of a part changes with a better schedule, and with a window's time without."""

_MOST_WEIGHT = 3
"""Among schedules of one objective each window prefers others: a device counts 0 to so much."""

_SOON = 0.5
"""A window proven within this share of its time was small."""

_REACH = 10
"""How many places apart in a row two ops may stand to be tried as a pair."""

Improved: TypeAlias = tuple[tuple[Row, ...], Starts]
"""A better order and its starts."""


@dataclass(slots=True)
class _Part:
    """A part of the time, on all devices or on a few.

    Attributes
    ----------
    number, narrow
        Which of the parts of equal length it is, and whether its windows are on a few devices.
    size
        How many ops its windows have.
    worth
        How often it is taken, compared to others.
    """

    number: int
    narrow: bool
    size: float
    worth: float

    def learn(self, *, better: bool, proven: bool, seconds: float, window_s: float) -> None:
        """Take into account what a window gave that took so long."""
        if better:
            self.worth = min(_MOST_WORTH, _GAIN * self.worth)
            return
        self.worth = max(_LEAST_WORTH, self.worth * _LOSS ** (seconds / window_s))
        if not proven:
            self.size = max(_LEAST_SIZE, _SHRINKAGE * self.size)
        elif seconds < _SOON * window_s:
            self.size *= _GROWTH


def improved(
    problem: Problem,
    rows: tuple[Row, ...],
    *,
    starts: Starts | None = None,
    workers: int,
    seed: int,
    target: int,
    stop: Stop,
    asymmetric: bool = False,
    window_s: float = WINDOW_S,
) -> Iterator[Improved | None]:
    """Yield better and better orders, or None after a window without one, until told to stop.

    It ends by itself where the target is reached, and where one window is all and is searched.

    Parameters
    ----------
    problem
        A feasible problem.
    rows
        A valid order, each stage and kind in the order of the microbatches.
    starts
        Its starts, where devices are better to start late for the span; None: the earliest.
    workers
        Search threads.
    seed
        For what is random.
    target
        A bound in ticks.
    stop
        Ends the search soon, from any thread.
    asymmetric
        Whether to search all orders also where the problem and the order are their own image.
    window_s
        The most that one window may take, in seconds.
    """
    state = _State.of(problem, rows, starts, asymmetric=asymmetric)
    rng = random.Random(seed)
    parts = state.parts()
    while not stop.asked and state.real > target:
        (part,) = rng.choices(parts, [part.worth for part in parts])
        model = state.model(state.window(part, rng), target, rng)
        stop.reaches(model.stop)
        if stop.asked:
            return
        began = monotonic()
        found = model.solve(time_limit_s=window_s, workers=workers, seed=rng.randrange(2**31))
        better = found.rows is not None and state.take(found.rows, found.firsts)
        yield (state.rows, state.starts) if better else None
        if found.proven and model.free == state.ops:
            return
        seconds = monotonic() - began
        part.learn(better=better, proven=found.proven, seconds=seconds, window_s=window_s)


class _State:
    """The best order so far, in the exact model's times."""

    def __init__(
        self, scaled: Scaled, rows: tuple[Row, ...], firsts: Sequence[int], mirror: Mirror | None
    ) -> None:
        self._scaled, self._mirror = scaled, mirror
        self._devices = [
            device
            for device, row in enumerate(rows)
            if row and (mirror is None or device <= mirror.device[device])
        ]
        """Those that are searched: what is idle has nothing to move."""
        self.rows = rows
        self._begins = earliest_starts(scaled.problem, rows, release=firsts)
        self.starts = self._real_starts(self._begins)
        self.real = objective_of(scaled.original, rows, self.starts)

    @staticmethod
    def of(
        problem: Problem, rows: tuple[Row, ...], starts: Starts | None, *, asymmetric: bool
    ) -> "_State":
        scaled = Scaled.of(problem)
        mirror = None if asymmetric else mirror_of(problem)
        if mirror is not None and not is_own_image(problem, mirror, rows):
            mirror = None
        firsts = [0] * problem.devices
        if starts is not None and problem.objective is Objective.SPAN:
            firsts = [
                begins[0] // scaled.unit * scaled.factor if begins else 0 for begins in starts
            ]
        return _State(scaled, rows, firsts, mirror)

    @property
    def ops(self) -> int:
        """How many ops there are to search, as a window counts them."""
        return sum(self._ops(block) for device in self._devices for block in self.rows[device])

    def _real_starts(self, begins: Starts) -> Starts:
        return tuple(tuple(map(self._scaled.real_start, each)) for each in begins)

    def take(self, rows: tuple[Row, ...], firsts: Sequence[int]) -> bool:
        """Go on from an order if it is not worse, and tell whether it is better."""
        begins = earliest_starts(self._scaled.problem, rows, release=firsts)
        starts = self._real_starts(begins)
        real = objective_of(self._scaled.original, rows, starts)
        if real > self.real:
            return False
        better = real < self.real
        self.rows, self._begins, self.starts, self.real = rows, begins, starts, real
        return better

    def model(self, window: Window, target: int, rng: random.Random) -> WindowModel:
        """Return the model of a window."""
        problem = self._scaled.problem
        return WindowModel(
            Cut.of(problem, self.rows, self._begins, window),
            objective=objective_of(problem, self.rows, self._begins),
            least=target // self._scaled.unit * self._scaled.factor,
            horizon=horizon(problem, self.rows, self._begins),
            reach=_REACH,
            weights=[rng.randint(0, _MOST_WEIGHT) for _ in range(problem.devices)],
            mirror=self._mirror,
        )

    def parts(self) -> list[_Part]:
        """Return the parts of the time, of more worth where devices wait longer."""
        problem, end = self._scaled.problem, self._end
        waits = [0.0] * _PARTS
        for device in self._devices:
            free = 0
            row, begins = self.rows[device], self._begins[device]
            for begin, busy in (
                *zip(begins, map(problem.duration, row), strict=True),
                (end, 0),
            ):
                for number in range(_PARTS):
                    first, last = end * number / _PARTS, end * (number + 1) / _PARTS
                    waits[number] += max(0.0, min(begin, last) - max(free, first))
                free = begin + busy
        most = max(waits) or 1.0
        return [
            _Part(number, narrow, _FIRST_SIZE, _LEAST_WORTH + waited / most)
            for number, waited in enumerate(waits)
            for narrow in ((False, True) if len(self._devices) > 1 else (False,))
        ]

    @property
    def _end(self) -> int:
        """The last end of all blocks."""
        return max(
            begins[-1] + self._scaled.problem.duration(row[-1])
            for row, begins in zip(self.rows, self._begins, strict=True)
            if row
        )

    def window(self, part: _Part, rng: random.Random) -> Window:
        """Return a window in a part of the time, with about as many ops as it is to have."""
        devices = list(self._devices)
        if part.narrow:
            width = rng.randint(1, max(1, len(devices) // 2))
            first = rng.randint(0, len(devices) - width)
            devices = devices[first : first + width]
        begins = sorted(
            begin
            for device in devices
            for block, begin in zip(self.rows[device], self._begins[device], strict=True)
            for _ in range(self._ops(block))
        )
        near = bisect_left(begins, self._end * (part.number + rng.random()) / _PARTS)
        size = min(max(1, int(part.size * rng.uniform(*_SPREAD))), len(begins))
        first = min(max(0, near - rng.randint(0, size)), len(begins) - size)
        begin, end = begins[first], begins[first + size - 1] + 1
        if self._mirror is not None:
            devices += [self._mirror.device[device] for device in devices]
        return Window(begin, end, frozenset(devices))

    def _ops(self, block: Block) -> int:
        """Return how many free ops a block may be: where the backward is free, a B is two."""
        backwards = sum(op.kind is OpKind.BACKWARD for op in ops_of(block))
        free = self._scaled.problem.backward is Backward.FREE
        return len(ops_of(block)) + (backwards if free else 0)
