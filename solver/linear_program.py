"""Linear programs, and lower bounds on them that hold whatever the solver rounds.

A program asks for the least length L >= 0 with which A x <= b + e L has a solution 0 <= x <= u, all
in whole numbers, e >= 0. Any multipliers y >= 0 of the rows prove that
y b + L y e + sum of u_j max(0, -(y A)_j) >= 0 wherever there is a solution, so they refute every L
for which that is negative. The solver's multipliers are nearly the best ones; rounded to whole
multiples of a small fraction they go into that formula in exact arithmetic (Neumaier and
Shcherbina, Safe bounds in linear and mixed-integer linear programming, Math. Programming 99, 2004,
sec. 3).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bubbleproof.schedules.quantity import LARGEST
from bubbleproof.solver.background import Stop

if TYPE_CHECKING:
    from ortools.pdlp.solvers_pb2 import PrimalDualHybridGradientParams

Ints: TypeAlias = NDArray[np.int64]

Entries: TypeAlias = tuple[Ints, Ints, Ints]
"""Rows (counted from the first of their block), columns and values of the same length."""

Multipliers: TypeAlias = NDArray[np.object_]
"""Of each row, whole numbers in one measure."""

_SCALE = 1 << 32
"""A multiplier is a whole number of parts, so many of which are 1."""

SMALL = 3000
"""Columns up to which a program is small."""


@dataclass(slots=True)
class LinearProgram:
    """Columns and rows, added in blocks."""

    size: int = 1
    """About what change of the length counts: the solver takes it as a multiple of that."""
    columns: int = 0
    rows: int = 0
    _sizes: list[Ints] = field(default_factory=list[Ints])
    _upper: list[Ints] = field(default_factory=list[Ints])
    _limit: list[Ints] = field(default_factory=list[Ints])
    _longer: list[Ints] = field(default_factory=list[Ints])
    _entries: list[Entries] = field(default_factory=list[Entries])

    def add_columns(self, upper: Ints, *, size: int = 1) -> Ints:
        """Add columns with the most that each may be, and return their numbers.

        Parameters
        ----------
        size
            About what change of them counts: the solver takes them as multiples of that.
        """
        self._upper.append(upper)
        self._sizes.append(np.full(len(upper), size, np.int64))
        added = np.arange(self.columns, self.columns + len(upper), dtype=np.int64)
        self.columns += len(upper)
        return added

    def add_rows(self, entries: Sequence[Entries], limit: Ints, longer: Ints | None = None) -> None:
        """Add rows with their limits; entries at one place add up.

        Parameters
        ----------
        longer
            By how much each limit grows with the length; none does if left out.
        """
        self._entries += [(row + self.rows, column, value) for row, column, value in entries]
        self._limit.append(limit)
        self._longer.append(np.zeros_like(limit) if longer is None else longer)
        self.rows += len(limit)

    def refuted(self, multipliers: Multipliers) -> int:
        """Return the largest whole length that multipliers refute; below 0 if they refute none.

        Where they refute all, it is the largest number that a time may be.
        """
        base, _ = self.allowance(multipliers)
        slope = int((np.concatenate(self._longer) * multipliers).sum())
        if base >= 0:
            return -1
        return min((-base - 1) // slope, LARGEST) if slope else LARGEST

    def allowance(self, multipliers: Multipliers) -> tuple[int, Multipliers]:
        """Return what multipliers leave to be paid at length 0, and what each column costs.

        Whatever keeps the rows pays just so much: of each row the multiplier times what is left of
        its limit, and of each column its cost times its value, or where the cost is below 0, times
        how far it is below its most. None of that is below 0.
        """
        row, column, value = self._matrix()
        upper, limit = np.concatenate(self._upper), np.concatenate(self._limit)
        costs = np.zeros(self.columns, np.object_)
        np.add.at(costs, column, value.astype(np.object_) * multipliers[row])
        costs[upper == 0] = 0
        base = int((limit * multipliers).sum()) + int((upper * np.maximum(-costs, 0)).sum())
        return base, costs

    def multipliers(
        self, time_limit_s: float, stop: Stop, *, small: int = SMALL
    ) -> Multipliers | None:
        """Return multipliers that refute nearly as much as any, or as much as is found in time.

        None where there are none at all. Programs of up to ``small`` columns are solved exactly.
        """
        from ortools.math_opt import model_pb2  # pyright: ignore[reportMissingTypeStubs]
        from ortools.math_opt.python import mathopt  # pyright: ignore[reportMissingTypeStubs]
        from ortools.util.python.solve_interrupter import (  # pyright: ignore[reportMissingTypeStubs]
            SolveInterrupter,
        )

        if stop.asked or time_limit_s <= 0:
            return None
        row, column, value = self._matrix()
        upper, limit, longer = map(np.concatenate, (self._upper, self._limit, self._longer))
        grows = np.flatnonzero(longer)
        length = np.full(len(grows), self.columns, np.int64)
        row, column = np.concatenate((row, grows)), np.concatenate((column, length))
        value = np.concatenate((value, -longer[grows]))
        sizes = np.concatenate((*self._sizes, np.array([self.size], np.int64))).astype(np.float64)
        scaled = value * sizes[column]
        largest = np.ones(self.rows)
        np.maximum.at(largest, row, np.abs(scaled))
        scaled = scaled / largest[row]
        order = np.lexsort((column, row))
        model = model_pb2.ModelProto()
        model.variables.ids.extend(range(self.columns + 1))
        model.variables.lower_bounds.extend([0.0] * (self.columns + 1))
        model.variables.upper_bounds.extend([*(upper / sizes[:-1]).tolist(), float("inf")])
        model.variables.integers.extend([False] * (self.columns + 1))
        model.objective.linear_coefficients.ids.append(self.columns)
        model.objective.linear_coefficients.values.append(-1.0)
        model.objective.maximize = True
        model.linear_constraints.ids.extend(range(self.rows))
        model.linear_constraints.lower_bounds.extend([float("-inf")] * self.rows)
        model.linear_constraints.upper_bounds.extend((limit / largest).tolist())
        model.linear_constraint_matrix.row_ids.extend(row[order].tolist())
        model.linear_constraint_matrix.column_ids.extend(column[order].tolist())
        model.linear_constraint_matrix.coefficients.extend(scaled[order].tolist())
        program = mathopt.Model.from_model_proto(model)
        interrupter = SolveInterrupter()
        stop.reaches(interrupter.interrupt)
        # The simplex method is quicker on small programs, a first-order method by far on large.
        parameters = mathopt.SolveParameters(
            time_limit=timedelta(seconds=time_limit_s), threads=1, pdlp=_enough_for_multipliers()
        )
        method = mathopt.SolverType.GLOP if self.columns <= small else mathopt.SolverType.PDLP
        answer = mathopt.solve(program, method, params=parameters, interrupter=interrupter)
        found = answer.solutions[0].dual_solution if answer.solutions else None
        if found is not None:
            prices = found.dual_values
        elif answer.has_dual_ray():
            prices = answer.ray_dual_values()
        else:
            return None
        rounded = [
            max(0, round(prices[each] * _SCALE / size))
            for each, size in zip(program.linear_constraints(), largest.tolist(), strict=True)
        ]
        return np.array(rounded, np.object_)

    def _matrix(self) -> Entries:
        """Return the entries by row and column, those at one place added up."""
        row, column, value = (
            np.concatenate([entries[part] for entries in self._entries]) for part in range(3)
        )
        order = np.lexsort((column, row))
        row, column, value = row[order], column[order], value[order]
        fresh = np.ones(len(row), np.bool_)
        fresh[1:] = (row[1:] != row[:-1]) | (column[1:] != column[:-1])
        first = np.flatnonzero(fresh)
        value = np.add.reduceat(value, first)
        kept = first[value != 0]
        return row[kept], column[kept], value[value != 0]


def _enough_for_multipliers() -> "PrimalDualHybridGradientParams":
    """Return when the first-order method may end: columns need not keep the rows exactly."""
    from ortools.pdlp import solvers_pb2  # pyright: ignore[reportMissingTypeStubs]

    parameters = solvers_pb2.PrimalDualHybridGradientParams()
    enough = parameters.termination_criteria.detailed_optimality_criteria
    enough.eps_optimal_primal_residual_absolute = 1e-3
    enough.eps_optimal_primal_residual_relative = 1e-3
    enough.eps_optimal_dual_residual_absolute = 1e-6
    enough.eps_optimal_dual_residual_relative = 1e-6
    enough.eps_optimal_objective_gap_absolute = 1e-2
    enough.eps_optimal_objective_gap_relative = 1e-6
    return parameters
