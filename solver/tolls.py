"""Multipliers of a fluid for the search among states, found once for all times asked about."""

from collections.abc import Sequence
from time import monotonic

from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.problem import Problem
from bubbleproof.solver.background import Stop
from bubbleproof.solver.flow_grid import Grid
from bubbleproof.solver.flow_rows import Rows
from bubbleproof.solver.flow_view import View
from bubbleproof.solver.linear_program import Multipliers
from bubbleproof.solver.prices import Prices, Tables, no_prices
from bubbleproof.solver.times import LeastTimes

_MOST_COLUMNS = 13_000
"""What the simplex method solves in a few seconds; with more, only the ends of chains are seen."""


class Tolls:
    """Multipliers, and the prices that they give for any time.

    Nothing was done before time 0, which also the fluid knows here.

    Parameters
    ----------
    problem
        The problem.
    target
        The device that begins at 0 and must end in time; None where all must.

    Attributes
    ----------
    unit
        The ticks of a moment; times below are in moments.
    """

    def __init__(self, problem: Problem, target: int | None) -> None:
        self._problem, self._target = problem, target
        times = LeastTimes(problem)
        busy = tuple(device for device in range(problem.devices) if times.parts(device))
        self._view = View(problem, target, busy, from_begin=True)
        self.unit = self._view.unit
        self._found: tuple[int, Multipliers] | None = None

    def find(self, horizon: int, time_limit_s: float, stop: Stop) -> None:
        """Look for multipliers that refute a horizon, and from there the latest that can be."""
        if len(self._view.kinds) * horizon > _MOST_COLUMNS:
            self._view = View(self._problem, self._target, self._ends(), from_begin=True)
        if horizon < 1 or not 0 < len(self._view.kinds) * horizon <= _MOST_COLUMNS:
            return
        until = monotonic() + time_limit_s
        while True:
            rows = Rows(self._view, self._grid(horizon))
            left = until - monotonic()
            multipliers = rows.program.multipliers(left, stop, small=_MOST_COLUMNS)
            length = -1 if multipliers is None else rows.program.refuted(multipliers)
            if multipliers is None or length < 0:
                return
            self._found = horizon, multipliers
            # Laws reach across the middle, so not all that was hoped for may hold.
            while length and self._rows(horizon + length).program.refuted(multipliers) < 0:
                length -= 1
            if not length:
                return
            horizon += length

    def prices(
        self,
        horizon: int,
        ops: Sequence[tuple[int, OpKind]],
        classes: Sequence[Sequence[int]],
        unit: int,
    ) -> Prices | None:
        """Return prices up to a horizon; None where even a fluid would have to pay more.

        Parameters
        ----------
        ops
            Stage and kind of each kind of op.
        classes
            The stages of each class of W's.
        unit
            How many moments each time is a multiple of.
        """
        if self._found is None or horizon < self._found[0]:
            return no_prices(self._problem.devices, len(ops) + len(classes))
        multipliers, rows = self._found[1], self._rows(horizon)
        allowance, costs = rows.program.allowance(multipliers)
        if allowance < 0:
            return None
        tables = Tables(self._problem, rows.grid)
        rising: dict[str, Multipliers] = {}
        for law, begin, end, values in rows.laws(multipliers):
            rising[law] = values
            tables.add_law(law, begin, end, values)
        for kind in self._view.kinds:
            tables.add_kind(kind, rising[f"rising {kind.name}"], costs[rows.columns_of(kind)])
        return tables.prices(allowance, ops, classes, unit)

    def _rows(self, horizon: int) -> Rows:
        """Return the program for a horizon whose rows the multipliers belong to."""
        known = horizon if self._found is None else self._found[0]
        grid = self._grid(known)
        return Rows(self._view, grid.longer(horizon - known) if horizon > known else grid)

    def _grid(self, horizon: int) -> Grid:
        longest = max(kind.ticks for kind in self._view.kinds) // self.unit
        return Grid.evenly(horizon, step=1, points=2 * horizon, middle=longest)

    def _ends(self) -> tuple[int, ...]:
        """Return the devices that a chain begins on, and that it reaches last."""
        placement = self._problem.placement
        ends: dict[int, None] = {}
        for chain, microbatches in zip(placement.chains, self._problem.microbatches, strict=True):
            reached = dict.fromkeys(placement.device_of_stage[stage] for stage in chain)
            if microbatches:
                ends |= dict.fromkeys((next(iter(reached)), next(reversed(reached))))
        return tuple(ends)
