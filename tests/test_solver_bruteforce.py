"""The solver's claims against every order of tiny problems."""

from time import monotonic

import pytest
from bruteforce import least_objective
from tiny_problems import tiny_problem

import bubbleproof as bp
from bubbleproof.solver.background import Stop
from bubbleproof.solver.bounds import bounds
from bubbleproof.solver.construct import one_by_one
from bubbleproof.solver.limits import shortages
from bubbleproof.solver.model import Model
from bubbleproof.solver.relaxation import device_bound
from bubbleproof.solver.retime import objective_of
from bubbleproof.solver.state_problem import has_states
from bubbleproof.solver.states import States

SEEDS = range(40)
"""Each stands for five problems, so that the test runner can share them out."""


def _check(seed: int, *, pairs: bool) -> None:
    problem = tiny_problem(seed, pairs=pairs)
    best = least_objective(problem)
    if best is None:
        assert shortages(problem), problem
        with pytest.raises(bp.NoScheduleError, match="the least limit that would do"):
            bp.solve(problem)
        return
    assert not shortages(problem), problem
    for bound in bounds(problem):
        assert bound.ticks <= best, (bound, problem)
    for device in range(problem.devices):
        for known in (best, best + 1, 10 * best):
            alone = device_bound(problem, device, known, monotonic() + 60)
            assert alone is None or alone.ticks <= best, (alone, problem)
    result = bp.solve(problem, time_limit_s=20, workers=1)
    assert bp.verify(result.schedule).valid, problem
    assert (result.objective_ticks, result.bound_ticks) == (best, best), problem
    if has_states(problem):
        _check_states(problem, best)
    model = Model(problem, one_by_one(problem).rows)
    bound = model.solve(time_limit_s=20, workers=1, seed=0, on_rows=lambda rows, starts: None)
    assert bound == best, problem


def _check_states(problem: bp.Problem, best: int) -> None:
    """What can be reached is found within the least time, and within less there is nothing.

    So it is with prices, too, found from an earlier or a later time on.
    """
    for part in (None, 0.7, 1.0):
        states = States(problem)
        if part is not None:
            states.price(int(part * best) // states.unit, time_limit_s=20, stop=Stop())
        reached, less = (
            states.within(time, effort=1_000_000, stopped=lambda: False)
            for time in (best // states.unit, (best - 1) // states.unit)
        )
        assert reached.rows is not None, problem
        assert reached.starts is not None, problem
        assert objective_of(problem, reached.rows, reached.starts) == best, problem
        assert less.complete, problem
        assert less.rows is None, problem


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_solve_bounds_and_infeasibility_agree_with_every_order(seed: int) -> None:
    """Feasibility, every bound, solve and the exact model agree with brute force."""
    for case in range(5):
        _check(5 * seed + case, pairs=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_pairs_are_bounded_and_solved_as_brute_force_says(seed: int) -> None:
    """The same where a device may run a forward and a backward as one block."""
    for case in range(4):
        _check(4 * seed + case, pairs=True)


def test_a_span_that_needs_late_starts_is_reached() -> None:
    """Empty ops and a pair: the best order has its span only if a device starts late."""
    _check(1745, pairs=True)
