"""Times as the exact model needs them: few digits, and nothing of length zero."""

from dataclasses import dataclass, replace
from math import gcd

from bubbleproof.schedules.cost import Cost
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.problem import Problem


@dataclass(frozen=True, slots=True)
class Scaled:
    """A problem in the coarsest ticks that keep it exact, with no op of length zero.

    An op of length zero would let memory and order at one instant slip through the constraints
    on intervals. So real times are multiplied by ``factor``, and an empty op takes 1: no way
    through the schedule has as many empty ops as the factor, so the least objective divided by
    it, rounded down, is the real one.
    """

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

    def real_bound(self, bound: int) -> int:
        """Return what a bound on the scaled objective says of the real one, in ticks."""
        return bound // self.factor * self.unit


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
