"""The compiled searches: what they yield is an order of the problem, and their times are right."""
# pyright: basic
# Compiled functions have no types.

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_problems import tiny_problem

import bubbleproof as bp
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.solver.construct import one_by_one
from bubbleproof.solver.dispatch import compile_problem, decode, dispatch, order_buffer, score
from bubbleproof.solver.limits import shortages
from bubbleproof.solver.reorder import encode, evaluate, reordered
from bubbleproof.solver.tune import first_rules, tuned

TEN = {"F": 10, "I": 12, "W": 8, "transfer": 1}


def problem_on(placement: str, *, backward: str = "split", objective: str = "span") -> bp.Problem:
    """Return four devices and six microbatches with memory for about as many in flight."""
    return bp.Problem(
        devices=4,
        placement=placement,
        microbatches=6,
        cost=TEN,
        memory={"F": 2, "I": -1, "W": -1, "limit": 16},
        backward=backward,
        objective=objective,
    )


PLACEMENTS = ["linear", "v", "loop:2", "wave:3", "bidirectional"]


@pytest.mark.parametrize("backward", ["split", "fused", "free"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_compiled_list_scheduling_gives_valid_schedules(placement: str, backward: str) -> None:
    """Where it does not get stuck, the verifier accepts the order and its times are the same."""
    problem = problem_on(placement, backward=backward)
    arrays = compile_problem(problem)
    begin, end = np.zeros(4, np.int64), np.zeros(4, np.int64)
    valid = 0
    for rules in first_rules(problem):
        order = order_buffer(arrays)
        if dispatch(arrays, rules, order, begin, end):
            schedule = Schedule(problem, decode(problem, order))
            assert bp.verify(schedule).valid
            objective, _ = score(begin, end, True)
            assert objective >= bp.simulate(schedule).span_ticks
            valid += 1
    assert valid


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_compiled_times_of_an_order_equal_simulate(seed: int) -> None:
    """First starts and last ends of any order, as the simulator has them."""
    problem = tiny_problem(seed)
    if shortages(problem):
        return
    schedule = one_by_one(problem)
    order = encode(problem, schedule.rows)
    assert decode(problem, order) == schedule.rows
    begin, end = (np.zeros(problem.devices, np.int64) for _ in range(2))
    length = np.array([len(row) for row in schedule.rows])
    ends = np.zeros((2, problem.stages, max(problem.microbatches)), np.int64)
    assert evaluate(compile_problem(problem), order, length, begin, end, ends)
    timeline = bp.simulate(schedule)
    for device, (starts, stops) in enumerate(zip(timeline.starts, timeline.ends, strict=True)):
        if starts:
            assert (begin[device], end[device]) == (starts[0], stops[-1])


@pytest.mark.parametrize("objective", ["span", "makespan"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_searches_only_yield_better_valid_orders(placement: str, objective: str) -> None:
    """Both searches keep memory and dependencies, and each order beats the one before."""
    problem = problem_on(placement, objective=objective)
    rows = one_by_one(problem).rows
    searches = (
        reordered(problem, rows, workers=1, seed=3, target=0),
        tuned(problem, workers=1, seed=3, target=0),
    )
    last: int | None = None
    for search in searches:
        last = None
        for found in islice(search, 2):
            if found:
                schedule = Schedule(problem, found)
                assert bp.verify(schedule).valid
                objective_ticks = bp.simulate(schedule).objective_ticks
                assert last is None or objective_ticks < last
                last = objective_ticks
        assert last is not None
        assert last < bp.simulate(Schedule(problem, rows)).objective_ticks


def test_the_same_seed_and_workers_give_the_same_orders() -> None:
    """Rounds do not depend on how threads run."""
    problem = problem_on("v")
    runs = [list(islice(tuned(problem, workers=2, seed=5, target=0), 2)) for _ in range(2)]
    assert runs[0] == runs[1]


def test_an_order_with_pairs_is_refused_by_the_search_among_orders() -> None:
    """Pairs are not encoded; whoever calls must know."""
    problem = bp.Problem(
        devices=2,
        placement="bidirectional",
        microbatches=4,
        cost={"F": 1, "I": 1, "W": 1, "pair": 2},
        backward="free",
    )
    schedule = bp.families.dualpipe(problem)
    with pytest.raises(ValueError, match="an order without pairs is needed"):
        encode(problem, schedule.rows)
    assert encode(problem, bp.families.dualpipe(replace(problem, backward="split")).rows).size
