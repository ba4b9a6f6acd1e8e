"""Linear programs, and upper bounds on them that hold whatever the solver rounds.

A program is: maximize w x where A x <= b and 0 <= x <= u, all in whole numbers. Any multipliers
y >= 0 of the rows prove that no x is worth more than y b + sum of u_j max(0, w_j - (y A)_j). The
solver's multipliers are nearly the best ones; rounded to whole multiples of a small fraction they
go into that formula in exact arithmetic (Neumaier and Shcherbina, Safe bounds in linear and
mixed-integer linear programming, Math. Programming 99, 2004, sec. 3).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]

Entries: TypeAlias = tuple[Ints, Ints, Ints]
"""Rows (counted from the first of their block), columns and values of the same length."""

SCALE = 1 << 32
"""A multiplier is a whole number of parts, so many of which are 1."""


_SMALL = 3000
"""Columns up to which a program is small."""


class Stop:
    """Ends the solving of linear programs, from any thread."""

    def __init__(self) -> None:
        self.asked = False
        self._interrupt: Callable[[], None] | None = None

    def ask(self) -> None:
        """End the program that is being solved, and let none begin."""
        self.asked = True
        if self._interrupt is not None:
            self._interrupt()

    def reaches(self, interrupt: Callable[[], None]) -> None:
        """Name what ends the program that is solved next."""
        self._interrupt = interrupt
        if self.asked:
            interrupt()


@dataclass(frozen=True, slots=True)
class Most:
    """What no solution is worth more than, and the multipliers that prove it, in parts."""

    worth: Fraction
    multipliers: tuple[int, ...]


@dataclass(slots=True)
class LinearProgram:
    """Columns and rows, added in blocks."""

    columns: int = 0
    rows: int = 0
    _upper: list[Ints] = field(default_factory=list[Ints])
    _worth: dict[int, int] = field(default_factory=dict[int, int])
    _limit: list[Ints] = field(default_factory=list[Ints])
    _entries: list[Entries] = field(default_factory=list[Entries])

    def add_columns(self, upper: Ints) -> Ints:
        """Add columns with the most that each may be, and return their numbers."""
        self._upper.append(upper)
        added = np.arange(self.columns, self.columns + len(upper), dtype=np.int64)
        self.columns += len(upper)
        return added

    def add_rows(self, entries: Sequence[Entries], limit: Ints) -> None:
        """Add rows with their limits; entries at one place add up."""
        self._entries += [(row + self.rows, column, value) for row, column, value in entries]
        self._limit.append(limit)
        self.rows += len(limit)

    def reward(self, column: int, worth: int) -> None:
        """Make each of a column worth more."""
        self._worth[column] = self._worth.get(column, 0) + worth

    def most(self, time_limit_s: float, stop: Stop) -> Most | None:
        """Return the least upper bound that is found in time, with its proof; None for none."""
        row, column, value = self._matrix()
        upper, limit = np.concatenate(self._upper), np.concatenate(self._limit)
        multipliers = self._multipliers(row, column, value, upper, limit, time_limit_s, stop)
        if multipliers is None:
            return None
        missing = np.zeros(self.columns, np.object_)
        for place, worth in self._worth.items():
            missing[place] = worth * SCALE
        np.subtract.at(missing, column, value.astype(np.object_) * multipliers[row])
        parts = int((limit * multipliers).sum()) + int((upper * np.maximum(missing, 0)).sum())
        return Most(Fraction(parts, SCALE), tuple(map(int, multipliers)))

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

    def _multipliers(
        self,
        row: Ints,
        column: Ints,
        value: Ints,
        upper: Ints,
        limit: Ints,
        time_limit_s: float,
        stop: Stop,
    ) -> NDArray[np.object_] | None:
        from ortools.math_opt import model_pb2  # pyright: ignore[reportMissingTypeStubs]
        from ortools.math_opt.python import mathopt  # pyright: ignore[reportMissingTypeStubs]
        from ortools.util.python.solve_interrupter import (  # pyright: ignore[reportMissingTypeStubs]
            SolveInterrupter,
        )

        model = model_pb2.ModelProto()
        model.variables.ids.extend(range(self.columns))
        model.variables.lower_bounds.extend([0.0] * self.columns)
        model.variables.upper_bounds.extend(upper.astype(np.float64).tolist())
        model.variables.integers.extend([False] * self.columns)
        model.objective.maximize = True
        for place in sorted(self._worth):
            model.objective.linear_coefficients.ids.append(place)
            model.objective.linear_coefficients.values.append(float(self._worth[place]))
        model.linear_constraints.ids.extend(range(self.rows))
        model.linear_constraints.lower_bounds.extend([float("-inf")] * self.rows)
        model.linear_constraints.upper_bounds.extend(limit.astype(np.float64).tolist())
        model.linear_constraint_matrix.row_ids.extend(row.tolist())
        model.linear_constraint_matrix.column_ids.extend(column.tolist())
        model.linear_constraint_matrix.coefficients.extend(value.astype(np.float64).tolist())
        program = mathopt.Model.from_model_proto(model)
        interrupter = SolveInterrupter()
        stop.reaches(interrupter.interrupt)
        # The simplex method is quicker on small programs, a first-order method by far on large.
        small = self.columns <= _SMALL
        answer = mathopt.solve(
            program,
            mathopt.SolverType.GLOP if small else mathopt.SolverType.PDLP,
            params=mathopt.SolveParameters(time_limit=timedelta(seconds=time_limit_s), threads=1),
            interrupter=interrupter,
        )
        if not answer.has_dual_feasible_solution():
            return None
        prices = answer.dual_values()
        rounded = [max(0, round(prices[each] * SCALE)) for each in program.linear_constraints()]
        return np.array(rounded, np.object_)
