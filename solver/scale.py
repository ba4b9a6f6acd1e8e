"""Times as the exact model needs them: few digits, and nothing of length zero."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from bubbleproof.schedules.cost import Cost
from bubbleproof.schedules.ops import OpKind, Row
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Starts
from bubbleproof.solver.retime import objective_of


@dataclass(frozen=True, slots=True)
class Scaled:
    """A problem in the coarsest ticks that keep it exact, with no op of length zero.

    An op of length zero would let memory and order at one instant slip through the constraints
    on intervals. So real times are multiplied by ``factor``, more than there are empty ops, and
    an empty op takes 1. A start divided by the factor, rounded down, is a real start: rounding
    keeps the order and every lag, and no way through has as many empty ops as the factor.

    Parameters
    ----------
    original, problem
        The problem as it is, and scaled.
    unit
        Ticks of the original that all times are a multiple of.
    factor
        Scaled ticks in one unit.
    """

    original: Problem
    problem: Problem
    unit: int
    factor: int

    @staticmethod
    def of(problem: Problem) -> "Scaled":
        """Scale a problem."""
        cost = problem.cost
        kinds = [kind for kind in OpKind if problem.backward.allows(kind)]
        delays = [cost.transfer] if isinstance(cost.transfer, int) else sum(cost.transfer, ())
        durations = [ticks for kind in kinds for ticks in cost.of(kind)]
        pairs = [ticks for ticks in cost.pair if ticks is not None]
        unit = gcd(*durations, *pairs, *delays) or 1
        factor = 1 + sum(
            len(problem.microbatches_of_stage(stage))
            for stage in range(problem.stages)
            for ticks in [*(cost.of(kind)[stage] for kind in kinds), *pairs]
            if not ticks
        )

        def scaled(ticks: int) -> int:
            return ticks // unit * factor or 1

        def delay(ticks: int) -> int:
            return ticks // unit * factor

        transfer = cost.transfer
        return Scaled(
            original=problem,
            problem=replace(
                problem,
                cost=Cost(
                    F=tuple(map(scaled, cost.F)),
                    I=tuple(map(scaled, cost.I)),
                    W=tuple(map(scaled, cost.W)),
                    B=tuple(map(scaled, cost.B)),
                    pair=tuple(None if ticks is None else scaled(ticks) for ticks in cost.pair),
                    transfer=delay(transfer)
                    if isinstance(transfer, int)
                    else tuple(tuple(map(delay, row)) for row in transfer),
                ),
            ),
            unit=unit,
            factor=factor,
        )

    def real(self, ticks: int) -> int:
        """Return a scaled duration in units: an empty op takes 0."""
        return ticks // self.factor

    def real_start(self, start: int) -> int:
        """Return a scaled start in ticks of the original."""
        return start // self.factor * self.unit

    def objective(self, rows: Sequence[Row], starts: Starts) -> int:
        """Return the objective of scaled starts, in units."""
        real = tuple(tuple(map(self.real_start, each)) for each in starts)
        return objective_of(self.original, rows, real) // self.unit


def model_size(problem: Problem) -> int:
    """Return roughly how many variables the exact model of a problem has."""
    ops = sum(3 * len(problem.microbatches_of_stage(stage)) for stage in range(problem.stages))
    if not may_pair(problem):
        return ops
    return ops + sum(
        sum(len(problem.microbatches_of_stage(stage)) for stage in stages) ** 2
        for stages in problem.placement.stages_of_device
    )


def may_pair(problem: Problem) -> bool:
    """Whether a schedule may have overlapped pairs."""
    return problem.backward.allows(OpKind.BACKWARD) and any(
        ticks is not None for ticks in problem.cost.pair
    )


def horizon(problem: Problem, rows: tuple[Row, ...], starts: Starts) -> int:
    """Return by when all ops surely end in some schedule at least as good as this one.

    For the span, shift the schedule so that it starts at 0. With one chain its first device starts
    first; every device has an op of the chain before that one ends, and itself ends at most one
    span later. With several chains each may add a span before, one between and one after.
    """
    ends = [
        (begins[-1] + problem.duration(row[-1]), begins[0])
        for row, begins in zip(rows, starts, strict=True)
        if row
    ]
    last = max(end for end, _ in ends)
    if problem.objective is Objective.MAKESPAN:
        return last
    span = max(end - begin for end, begin in ends)
    chains = len(problem.microbatches)
    return max(last, (2 if chains == 1 else 3 * chains) * span)
