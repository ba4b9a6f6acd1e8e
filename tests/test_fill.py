"""Orders of F's and I's whose W's fill the gaps: valid, and as good as is claimed."""

from itertools import islice

import pytest
from filled_orders import parts, span, v_problem
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_problems import tiny_problem

import bubbleproof as bp
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.solver.construct import one_by_one
from bubbleproof.solver.fill import filled, refilled
from bubbleproof.solver.limits import shortages


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_filling_any_order_keeps_its_forwards_and_backwards(seed: int) -> None:
    """What comes out is valid, and all but W's are where they were."""
    problem = tiny_problem(seed)
    if shortages(problem):
        return
    rows = one_by_one(problem).rows
    found = filled(problem, rows)
    assert found is not None
    assert bp.verify(Schedule(problem, found)).valid
    assert parts(found) == parts(rows)


@pytest.mark.parametrize("devices", [5, 8, 11, 32])
def test_zb_v_with_weights_in_the_gaps_has_a_closed_form(devices: int) -> None:
    """It loses 10 p - 16 of 5 a forward where ZB-V as published loses more."""
    problem = v_problem(devices, 4 * devices)
    rows = bp.families.zb_v(problem).rows
    found = filled(problem, rows)
    assert found is not None
    assert span(problem, found) == 30 * 4 * devices + 10 * devices - 16
    assert span(problem, found) < span(problem, rows)


def test_weights_run_early_where_memory_asks_for_it() -> None:
    """One microbatch after the other fits the least memory only with each W at once."""
    problem = v_problem(3, 4, limit=4)
    found = filled(problem, one_by_one(problem).rows)
    assert found is not None
    assert bp.verify(Schedule(problem, found)).valid


def test_forwards_that_no_weight_makes_room_for_get_stuck() -> None:
    """A family that holds more than the limit with all its W's run has no way to be filled."""
    problem = v_problem(4, 8, limit=4)
    assert filled(problem, bp.families.zb_v(problem).rows) is None


@pytest.mark.parametrize("placement", ["linear", "v", "loop:2", "wave:3", "bidirectional"])
def test_the_search_only_yields_better_valid_orders(placement: str) -> None:
    """It keeps memory and dependencies, and each order beats the one before."""
    problem = bp.Problem(
        devices=4,
        placement=placement,
        microbatches=6,
        cost={"F": 10, "I": 12, "W": 8, "transfer": 1},
        memory={"F": 2, "I": -1, "W": -1, "limit": 16},
        objective="span",
    )
    rows = one_by_one(problem).rows
    found = islice(refilled(problem, rows, workers=1, seed=3, target=0), 2)
    spans = [span(problem, each) for each in found if each]
    assert spans == sorted(set(spans), reverse=True)
    assert spans[0] < span(problem, rows)


def test_the_same_seed_and_workers_give_the_same_orders() -> None:
    """Rounds do not depend on how threads run."""
    problem = v_problem(3, 5)
    rows = one_by_one(problem).rows
    runs = [list(islice(refilled(problem, rows, workers=2, seed=5, target=0), 2)) for _ in range(2)]
    assert runs[0] == runs[1]


def test_the_search_ends_where_nothing_can_be_filled() -> None:
    """An order that gets stuck has no neighbours."""
    problem = v_problem(4, 8, limit=4)
    rows = bp.families.zb_v(problem).rows
    assert not list(refilled(problem, rows, workers=1, seed=0, target=0))


def test_a_v_is_solved_below_the_closed_form_of_zb_v() -> None:
    """Eight devices with one pipeline's worth of memory: the search gains on filled ZB-V."""
    problem = v_problem(8, 16)
    rows = bp.families.zb_v(problem).rows
    found = [
        rows for rows in islice(refilled(problem, rows, workers=1, seed=0, target=0), 3) if rows
    ]
    assert 480 + 59 <= span(problem, found[-1]) < 480 + 64
