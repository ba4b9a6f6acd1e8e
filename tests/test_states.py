"""The search among states against every order of tiny problems, and proofs that it has closed."""

import pytest
from bruteforce import least_objective
from tiny_problems import tiny_problem

import bubbleproof as bp
from bubbleproof.solver.retime import objective_of
from bubbleproof.solver.state_problem import has_states
from bubbleproof.solver.states import Answer, States


def _asked(problem: bp.Problem, ticks: int) -> Answer:
    states = States(problem)
    return states.within(ticks // states.unit, effort=1_000_000, stopped=lambda: False)


def _reached(problem: bp.Problem, ticks: int) -> int:
    """Return the objective of a schedule within a time, once that is known to be valid."""
    answer = _asked(problem, ticks)
    assert answer.rows is not None, problem
    assert answer.starts is not None, problem
    schedule = bp.Schedule(problem, answer.rows, answer.starts)
    assert bp.verify(schedule).valid, problem
    return objective_of(problem, answer.rows, answer.starts)


def _refused(problem: bp.Problem, ticks: int) -> bool:
    answer = _asked(problem, ticks)
    return answer.complete and answer.rows is None


def _small(devices: int, placement: str, microbatches: int, limit: int) -> bp.Problem:
    return bp.Problem(
        devices=devices,
        placement=placement,
        microbatches=microbatches,
        cost={"F": 10, "I": 12, "W": 8, "transfer": 1},
        memory={"F": 2, "I": -1, "W": -1, "limit": limit},
        objective="span",
    )


@pytest.mark.parametrize("seed", [0, 2, 5, 13, 16, 17, 22, 34, 150, 223, 235, 331])
def test_the_least_time_is_that_of_every_order(seed: int) -> None:
    """The least objective can be kept and nothing below it, as brute force says.

    From 150 on a device has to begin late, so that windows are divided. Many more such problems
    are in test_solver_bruteforce.
    """
    problem = tiny_problem(seed)
    best = least_objective(problem)
    assert best is not None
    assert _reached(problem, best) == best
    assert best == 0 or _refused(problem, best - 1)


@pytest.mark.parametrize(
    ("devices", "placement", "microbatches", "limit", "least"),
    [(2, "v", 4, 6, 284), (4, "linear", 8, 4, 450), (4, "linear", 8, 6, 342), (3, "v", 6, 9, 428)],
)
def test_little_memory_is_decided(
    devices: int, placement: str, microbatches: int, limit: int, least: int
) -> None:
    """The least spans of problems that CP-SAT leaves open: reached, and nothing is below."""
    problem = _small(devices, placement, microbatches, limit)
    assert _reached(problem, least) == least
    assert _refused(problem, least - 1)


def test_a_search_that_is_cut_says_nothing() -> None:
    """With too little effort, or told to stop, neither a schedule nor a proof is claimed."""
    states = States(_small(3, "v", 6, 9))
    cut = states.within(427, effort=10, stopped=lambda: False)
    stopped = states.within(427, effort=1_000_000, stopped=lambda: True)
    for answer in (cut, stopped):
        assert (answer.rows, answer.complete) == (None, False)


@pytest.mark.parametrize(
    ("backward", "pair", "weight", "why"),
    [
        ("free", None, [0, 1], "the form of a backward is a choice"),
        ("fused", 2, [0, 1], "pairs"),
        ("split", None, [1, 2], "a W allocates"),
    ],
)
def test_other_problems_are_left_to_others(
    backward: str, pair: int | None, weight: list[int], why: str
) -> None:
    """Problems that the states do not describe are told apart."""
    problem = bp.Problem(
        devices=3,
        microbatches=2,
        cost={"F": 1, "I": 1, "W": 1, "pair": pair},
        memory={"F": 2, "I": -1, "W": weight},
        backward=backward,
    )
    assert not has_states(problem), why


def test_solve_closes_a_problem_by_states() -> None:
    """``solve`` proves what only this search can, says how, and the verifier takes its word."""
    problem = _small(4, "linear", 8, 4)
    result = bp.solve(problem, time_limit_s=60, workers=2)
    assert (result.objective_ticks, result.status) == (450, "optimal")
    assert result.proof[0].name == "states"
    assert "the solver's word" in result.proof[0].text
    assert bp.verify(result.schedule).valid


def test_a_counted_search_closes_a_problem_by_states() -> None:
    """States are counted, not timed, so --deterministic may search them."""
    result = bp.solve(_small(2, "v", 4, 6), time_limit_s=5, deterministic=True)
    assert (result.status, result.proof[0].name) == ("optimal", "states")
    assert result.cut is False
