"""Large neighbourhood search: CP-SAT on one window of a schedule after the other.

A window frees some ops and keeps the order of all others (``window_model.py``). Windows lie where
a schedule drains, where it fills, anywhere between, and on a few devices for longer. Each place
has a size of its own: it grows where windows are proven soon to hold nothing better, and shrinks
where time runs out (Shaw, Using constraint programming and local search methods to solve vehicle
routing problems, CP 1998). What a window finds is never worse; among equals it prefers what is
done sooner, so that room gathers until another window can use it.
"""

import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from time import monotonic
from typing import TypeAlias

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import Block, OpKind, Row, ops_of
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Starts
from bubbleproof.schedules.simulate import earliest_starts
from bubbleproof.solver.linear import Stop
from bubbleproof.solver.mirror import Mirror, is_own_image, mirror_of
from bubbleproof.solver.retime import objective_of
from bubbleproof.solver.scale import Scaled, horizon
from bubbleproof.solver.window import Cut, Window
from bubbleproof.solver.window_model import WindowModel

WINDOW_S = 4.0
"""The most that one window may take, in seconds."""

_FIRST_SIZE = 40
_LEAST_SIZE = 8
_GROWTH, _SHRINKAGE = 1.3, 0.8
_SOON = 0.5
"""A window proven within this share of its time was small."""

_REACH = 10
"""How many places apart in a row two ops may stand to be tried as a pair."""

Improved: TypeAlias = tuple[tuple[Row, ...], Starts]
"""A better order and its starts."""


class Place(StrEnum):
    """Where a window lies."""

    DRAIN = "drain"
    FILL = "fill"
    BETWEEN = "between"
    NARROW = "narrow"


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
    places: Sequence[Place] = tuple(Place),
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
    places
        Where windows may lie.
    window_s
        The most that one window may take, in seconds.
    """
    state = _State.of(problem, rows, starts, asymmetric=asymmetric)
    rng = random.Random(seed)
    sizes = dict.fromkeys(places, float(_FIRST_SIZE))
    turn = 0
    while not stop.asked and state.real > target:
        place = places[turn % len(places)]
        window = state.window(place, int(sizes[place]), rng)
        began = monotonic()
        model = state.model(window, target)
        stop.reaches(model.stop)
        if stop.asked:
            return
        found = model.solve(time_limit_s=window_s, workers=workers, seed=rng.randrange(2**31))
        better = found.rows is not None and state.take(found.rows, found.firsts)
        yield (state.rows, state.starts) if better else None
        if found.proven and model.free == state.ops:
            return
        if better:
            continue
        turn += 1
        if not found.proven:
            sizes[place] = max(_LEAST_SIZE, _SHRINKAGE * sizes[place])
        elif monotonic() - began < _SOON * window_s:
            sizes[place] *= _GROWTH


class _State:
    """The best order so far, in the exact model's times."""

    def __init__(
        self, scaled: Scaled, rows: tuple[Row, ...], firsts: Sequence[int], mirror: Mirror | None
    ) -> None:
        self._scaled, self._mirror = scaled, mirror
        self._devices = [
            device
            for device in range(scaled.problem.devices)
            if mirror is None or device <= mirror.device[device]
        ]
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

    def model(self, window: Window, target: int) -> WindowModel:
        """Return the model of a window."""
        problem = self._scaled.problem
        return WindowModel(
            Cut.of(problem, self.rows, self._begins, window),
            objective=objective_of(problem, self.rows, self._begins),
            least=target // self._scaled.unit * self._scaled.factor,
            horizon=horizon(problem, self.rows, self._begins),
            reach=_REACH,
            mirror=self._mirror,
        )

    def window(self, place: Place, size: int, rng: random.Random) -> Window:
        """Return a window with about so many ops."""
        devices = self._devices
        if place is Place.NARROW:
            width = rng.randint(1, max(1, len(devices) // 2))
            first = rng.randint(0, len(devices) - width)
            devices = devices[first : first + width]
        begins = sorted(
            begin
            for device in devices
            for block, begin in zip(self.rows[device], self._begins[device], strict=True)
            for _ in range(self._ops(block))
        )
        size = min(size, len(begins))
        match place:
            case Place.FILL:
                first = 0
            case Place.DRAIN:
                first = len(begins) - size
            case Place.BETWEEN | Place.NARROW:
                first = rng.randint(0, len(begins) - size)
        begin = begins[first]
        end = begins[first + size - 1] + 1
        if self._mirror is not None:
            devices = [*devices, *(self._mirror.device[device] for device in devices)]
        return Window(begin, end, frozenset(devices))

    def _ops(self, block: Block) -> int:
        """Return how many free ops a block may be: where the backward is free, a B is two."""
        backwards = sum(op.kind is OpKind.BACKWARD for op in ops_of(block))
        free = self._scaled.problem.backward is Backward.FREE
        return len(ops_of(block)) + (backwards if free else 0)
