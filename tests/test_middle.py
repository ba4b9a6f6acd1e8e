"""What an order repeats can be taken out and put back, and a search near the ends keeps it."""

from itertools import islice

import pytest
from filled_orders import parts, span, v_problem

import bubbleproof as bp
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.solver.construct import one_by_one
from bubbleproof.solver.fill import filled, refilled_ends
from bubbleproof.solver.middle import KEPT, condensed


@pytest.mark.parametrize("family", ["zb_v", "v_half", "v_min"])
@pytest.mark.parametrize("devices", [3, 4, 7])
def test_what_is_taken_out_comes_back(family: str, devices: int) -> None:
    """Taking repetitions out and putting them back is nothing but leaving out the W's."""
    problem = v_problem(devices, 5 * devices, limit=10**3)
    rows = bp.families.build(family, problem).rows
    short = condensed(problem, rows)
    assert short is not None
    assert short.removed >= devices
    assert [list(row) for row in short.expanded(short.rows)] == parts(rows)


@pytest.mark.parametrize("family", ["one_f_one_b", "zb_h1", "zb_h2"])
def test_the_short_order_is_valid(family: str) -> None:
    """With W's in its gaps it is an order for fewer microbatches."""
    problem = bp.Problem(devices=4, microbatches=16, cost={"F": 5, "I": 6, "W": 4, "transfer": 1})
    short = condensed(problem, bp.families.build(family, problem).rows)
    assert short is not None
    assert short.problem.total_microbatches == 16 - short.removed
    found = filled(short.problem, short.rows)
    assert found is not None
    assert bp.verify(Schedule(short.problem, found)).valid


def test_one_by_one_repeats_all_but_what_stays() -> None:
    """Of n microbatches one after the other only those that have to stay do."""
    problem = v_problem(3, 9)
    short = condensed(problem, one_by_one(problem).rows)
    assert short is not None
    assert short.problem.total_microbatches == KEPT


def test_too_few_repetitions_and_several_chains_are_left_alone() -> None:
    """Where nothing is to be gained nothing is taken out, and the search ends."""
    few = v_problem(4, KEPT)
    assert condensed(few, one_by_one(few).rows) is None
    assert not list(refilled_ends(few, one_by_one(few).rows, workers=1, seed=0))
    both = bp.Problem(
        devices=2, placement="bidirectional", microbatches=16, cost={"F": 1, "I": 1, "W": 1}
    )
    assert condensed(both, one_by_one(both).rows) is None


@pytest.mark.parametrize("devices", [5, 8])
def test_other_ends_make_a_long_schedule_shorter(devices: int) -> None:
    """All orders are valid, and the best gains on ZB-V with W's in the gaps."""
    problem = v_problem(devices, 8 * devices)
    rows = filled(problem, bp.families.zb_v(problem).rows)
    assert rows is not None
    rounds = islice(refilled_ends(problem, rows, workers=1, seed=0), 2)
    spans = [span(problem, found) for found in rounds if found]
    assert min(spans) < span(problem, rows)
