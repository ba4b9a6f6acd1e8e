"""What a schedule in the making may lose: prices of idle time and of all else that laws forbid.

The multipliers of a fluid's laws (``flow_rows``) are prices. For every schedule that ends within
the horizon, what is left of each law times its multiplier, and what each column costs, add up to
one number, the allowance (``LinearProgram.allowance``), and no part of it is below 0. So something
is paid while a device is idle, memory unused, an input waiting, an op not started, and for starting
one, each at its moments. Where a fluid can hardly end in time, little is allowed, and a schedule in
the making that has paid more than that cannot end in time, whatever follows.

Simplifications: W's of several stages that are not told apart pay the least of their prices, and
what a coarse grid adds is not counted. Both make what is paid less, so nothing is lost by mistake.
"""

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

import numpy as np

from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.problem import Problem
from bubbleproof.solver.flow_grid import Grid
from bubbleproof.solver.flow_kinds import Event, Kind, kinds
from bubbleproof.solver.limits import room
from bubbleproof.solver.linear_program import Ints, Multipliers


class Prices(NamedTuple):
    """Prices in one measure, each summed over all moments before a time, but for ``start``.

    Kinds of ops are numbered as in ``state_kernel``, with classes of W's behind them.
    """

    allowance: Ints
    """What may be paid: one number."""
    any: Ints
    """For each device and time, of all that can be paid there: nothing where it stays as it is."""
    idle: Ints
    """For each device and time."""
    unused: Ints
    """For each device and time, of each grain of memory."""
    grain: Ints
    """For each device its grain."""
    room: Ints
    """For each device how many grains it has."""
    waiting: Ints
    """For each kind and time, of each input that is there."""
    undone: Ints
    """For each kind and time, of each op that has not started."""
    start: Ints
    """For each kind and time, for starting an op just then."""


def no_prices(devices: int, kinds: int) -> Prices:
    """Return prices of which nothing has to be paid."""
    return Prices(
        allowance=np.zeros(1, np.int64),
        any=np.zeros((devices, 1), np.int64),
        idle=np.zeros((devices, 1), np.int64),
        unused=np.zeros((devices, 1), np.int64),
        grain=np.ones(devices, np.int64),
        room=np.zeros(devices, np.int64),
        waiting=np.zeros((kinds, 1), np.int64),
        undone=np.zeros((kinds, 1), np.int64),
        start=np.zeros((kinds, 1), np.int64),
    )


class Tables:
    """Prices by stage and moment, as they are gathered."""

    def __init__(self, problem: Problem, grid: Grid) -> None:
        self._problem, self._grid = problem, grid
        devices, stages = (problem.devices, grid.horizon + 1), (problem.stages, grid.horizon + 1)
        self._idle = np.full(devices, 0, np.object_)
        self._unused = np.full(devices, 0, np.object_)
        self._waiting = {event: np.full(stages, 0, np.object_) for event in Event}
        self._undone = {event: np.full(stages, 0, np.object_) for event in Event}
        self._start = {event: np.full(stages, 0, np.object_) for event in Event}

    def add_law(self, law: str, begin: Ints, end: Ints, values: Multipliers) -> None:
        """Add the multipliers of a law's rows; what is never left of some laws adds nothing."""
        name, _, where = law.rpartition(" ")
        at = self._grid.instants[end]
        match name.split(" ")[0]:
            case "exclusive":
                self._idle[int(where), at] += values
            case "time":
                first = self._grid.instants[begin - 1] + 1
                for a, b, value in zip(first.tolist(), at.tolist(), values, strict=True):
                    self._idle[int(where), a : b + 1] += value
            case "memory":
                self._unused[int(where), at] += values
            case "forward":
                self._waiting[Event.FORWARD][int(where), at] += values
            case "gradient" | "turn":
                self._waiting[Event.GRADIENT][int(where), at] += values
            case "weight":
                self._waiting[Event.WEIGHT][int(where), at] += values
            case _:
                pass

    def add_kind(self, kind: Kind, rising: Multipliers, costs: Multipliers) -> None:
        """Add what it costs to start a block at an instant, and what its columns cost."""
        stage, event = kind.does[0]
        instants = self._grid.instants
        self._undone[event][stage, instants[1:]] += np.maximum(-costs[1:], 0)
        # Once it has started, it counts at all later instants.
        later = np.cumsum(np.maximum(costs, 0)[::-1])[::-1]
        self._start[event][stage] += later[self._grid.after(np.arange(self._grid.horizon + 1))]
        self._start[event][stage, instants[1:]] += rising

    def prices(
        self,
        allowance: int,
        ops: Sequence[tuple[int, OpKind]],
        classes: Sequence[Sequence[int]],
        unit: int,
    ) -> Prices:
        """Return the prices for times in units of so many moments."""
        events = [
            (Event.FORWARD if kind is OpKind.FORWARD else Event.GRADIENT, [stage])
            for stage, kind in ops
        ]
        events += [(Event.WEIGHT, list(stages)) for stages in classes]
        problem, devices = self._problem, range(self._problem.devices)
        blocks = [list(kinds(problem, device)) for device in devices]
        grain = [gcd(*(a for kind in each for a in (kind.allocate, kind.free))) for each in blocks]
        limits = [room(problem, device) for device in devices]

        def least(tables: dict[Event, Multipliers]) -> Multipliers:
            return np.array([tables[event][stages].min(axis=0) for event, stages in events])

        def summed(table: Multipliers) -> Ints:
            before = np.zeros((len(table), 1), np.object_)
            sums = np.concatenate((before, np.cumsum(table, axis=1)), axis=1)
            return sums[:, ::unit].astype(np.int64)

        waiting, undone = least(self._waiting), least(self._undone)
        device_of = problem.placement.device_of_stage
        everything = self._idle + self._unused
        for number, (_, stages) in enumerate(events):
            everything[device_of[stages[0]]] += waiting[number] + undone[number]
        return Prices(
            allowance=np.array([allowance], np.int64),
            any=summed(everything),
            idle=summed(self._idle),
            unused=summed(self._unused),
            grain=np.array([each or 1 for each in grain], np.int64),
            room=np.array(
                [(limit or 0) // (each or 1) for limit, each in zip(limits, grain, strict=True)],
                np.int64,
            ),
            waiting=summed(waiting),
            undone=summed(undone),
            start=least(self._start)[:, ::unit].astype(np.int64),
        )
