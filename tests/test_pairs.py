"""Overlapped pairs in the solver: published optima, mirror images, and what DualPipe refuses."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bubbleproof as bp
from bubbleproof.schedules.ops import Pair, Row
from bubbleproof.schedules.simulate import DeadlockError, earliest_starts
from bubbleproof.solver.background import Stop
from bubbleproof.solver.flow_grid import Grid
from bubbleproof.solver.fluid import Fluid
from bubbleproof.solver.limits import within_limits
from bubbleproof.solver.mirror import is_own_image, mirror_of
from bubbleproof.solver.model import Model
from bubbleproof.solver.paired_orders import paired_orders
from bubbleproof.solver.pairing import joined, variants
from bubbleproof.solver.tune import tuned
from bubbleproof.verify.certificate import Standing, certify
from bubbleproof.verify.flow import proven_by


def dualpipe_problem(
    devices: int, microbatches: int, times: tuple[int, int, int, int], **more: int
) -> bp.Problem:
    """Return a problem with times F, B, W and FB, and DualPipe's memory: p + 1 activations."""
    forward, backward, weight, pair = times
    return bp.Problem(
        devices=devices,
        placement="bidirectional",
        microbatches=microbatches,
        cost={"F": forward, "I": backward - weight, "W": weight, "pair": pair},
        memory={"F": 1, "W": -1, "limit": devices + 1, **more},
        backward="free",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("times", "optimum"),
    [((1, 2, 1, 3), 25), ((1, 2, 1, 2), 21), ((4, 8, 4, 10), 94), ((5, 8, 2, 8), 92)],
)
def test_four_devices_are_solved_to_the_optimum_of_all_orders(
    times: tuple[int, int, int, int], optimum: int
) -> None:
    """DualPipe takes 26, 22, 96 and 98; the bound holds for orders that are not symmetric, too."""
    result = bp.solve(dualpipe_problem(4, 8, times), time_limit_s=60, workers=2)
    assert (result.objective, result.bound) == (optimum, optimum)
    assert bp.verify(result.schedule).valid
    assert certify(result.schedule).standing is Standing.CONFIRMED


def test_the_bound_of_half_a_mirrored_problem_is_confirmed_for_all_of_it() -> None:
    """The verifier knows no mirror, and recomputes the bound from the laws of all devices."""
    problem = dualpipe_problem(4, 8, (1, 2, 1, 2))
    fluid = Fluid(problem, None, (0, 1, 2, 3), 1000.0)
    found = fluid.refuted(Grid.whole(20, step=1), 30.0, Stop())
    assert fluid.view.mirror is not None
    assert found is not None
    assert proven_by(problem, found[0]) == 21


def test_an_odd_middle_device_is_its_own_image_in_the_bound() -> None:
    """Its laws are their own images, and count for both halves."""
    problem = dualpipe_problem(3, 6, (1, 2, 1, 2))
    fluid = Fluid(problem, None, (0, 1, 2), 1000.0)
    found = fluid.refuted(Grid.whole(12, step=1), 30.0, Stop())
    assert found is not None
    assert proven_by(problem, found[0]) == 13


def test_a_problem_with_unequal_ends_has_no_mirror() -> None:
    """Times, memory and transfers must be the same from both ends."""
    problem = dualpipe_problem(4, 8, (1, 2, 1, 2))
    assert mirror_of(problem) is not None
    cost = replace(problem.cost, pair=(2, 2, 2, 3))
    limit = replace(problem.memory, limit=(5, 5, 5, 6))
    assert mirror_of(replace(problem, cost=cost)) is None
    assert mirror_of(replace(problem, memory=limit)) is None
    assert mirror_of(replace(problem, microbatches=(5, 3))) is None


def test_dualpipe_is_its_own_image_and_its_middle_can_be_paired() -> None:
    """The unpaired first pass of the middle devices costs a tick: 22 becomes 21."""
    problem = dualpipe_problem(4, 8, (1, 2, 1, 2))
    mirror = mirror_of(problem)
    family = bp.families.dualpipe(problem)
    assert mirror is not None
    assert is_own_image(problem, mirror, family.rows)
    rows = tuple(joined(problem, row) for row in family.rows)
    pairs = [sum(isinstance(block, Pair) for block in row) for row in rows]
    assert pairs == [3, 4, 4, 3]
    best = min(makespan(problem, rows) for rows in variants(problem, family.rows))
    assert (makespan(problem, family.rows), best) == (22, 21)


def makespan(problem: bp.Problem, rows: tuple[Row, ...]) -> float:
    """Return the makespan of an order; infinity where it does not run."""
    try:
        return bp.simulate(bp.Schedule(problem, rows)).makespan
    except DeadlockError:
        return float("inf")


@settings(max_examples=25, deadline=None)
@given(
    times=st.tuples(*[st.integers(1, 9)] * 3, st.integers(1, 20)),
    shape=st.sampled_from([(2, 4), (4, 8), (4, 10), (6, 12)]),
)
def test_orders_made_from_dualpipe_verify_and_keep_its_memory(
    times: tuple[int, int, int, int], shape: tuple[int, int]
) -> None:
    """Whatever the times are, what runs is valid; the first is DualPipe's own order."""
    forward, inputs, weights, pair = times
    problem = dualpipe_problem(*shape, (forward, inputs + weights, weights, pair))
    family = bp.families.dualpipe(problem)
    orders = list(variants(problem, family.rows))
    assert orders[0] == family.rows
    for rows in orders:
        if within_limits(problem, rows) and makespan(problem, rows) < float("inf"):
            assert bp.verify(bp.Schedule(problem, rows)).valid


def test_annealing_by_half_finds_what_dualpipe_misses() -> None:
    """26 becomes 25 where a pair takes as long as its two halves; the order stays symmetric."""
    problem = dualpipe_problem(4, 8, (1, 2, 1, 3))
    start, mirror = bp.families.dualpipe(problem), mirror_of(problem)
    rounds = paired_orders(problem, start.rows, workers=1, seed=0, target=25)
    rows = next(found for found in rounds if found)
    assert mirror is not None
    assert is_own_image(problem, mirror, rows)
    assert makespan(problem, rows) == 25
    assert bp.verify(bp.Schedule(problem, rows)).valid


@pytest.mark.slow
def test_annealing_of_all_devices_keeps_orders_valid() -> None:
    """Asked for, or where a device is its own image, the order is searched as a whole."""
    for devices, asymmetric in ((4, True), (3, False)):
        problem = dualpipe_problem(devices, 6, (5, 8, 2, 8))
        start = bp.solve(problem, time_limit_s=0.01, workers=1).schedule
        rounds = paired_orders(
            problem, start.rows, workers=1, seed=1, target=0, asymmetric=asymmetric
        )
        rows = next(rounds)
        assert bp.verify(bp.Schedule(problem, rows)).valid
        assert makespan(problem, rows) <= makespan(problem, start.rows)


def test_list_scheduling_makes_pairs() -> None:
    """A ready forward and a ready backward run as one block, within the memory limit."""
    problem = dualpipe_problem(5, 9, (5, 8, 2, 8))
    rows = next(tuned(problem, workers=1, seed=0, target=0))
    assert any(isinstance(block, Pair) for row in rows for block in row)
    assert bp.verify(bp.Schedule(problem, rows)).valid


def test_the_exact_model_searches_symmetric_orders() -> None:
    """Its orders are their own image and run in the times that it says."""
    problem = dualpipe_problem(4, 8, (5, 8, 2, 8))
    mirror = mirror_of(problem)
    assert mirror is not None
    found: list[tuple[Row, ...]] = []
    family = bp.families.dualpipe(problem)
    model = Model(problem, family.rows, mirror=mirror)
    bound = model.solve(
        time_limit_s=20, workers=1, seed=0, on_rows=lambda rows, _: found.append(rows)
    )
    assert bound == makespan(problem, found[-1]) == 92


@pytest.mark.parametrize("devices", [3, 5, 7])
@pytest.mark.parametrize("microbatches", [1, 3, 5, 7])
def test_what_dualpipe_refuses_is_solved_and_verified(devices: int, microbatches: int) -> None:
    """Odd p and n, and fewer microbatches than devices; the middle device holds both chains."""
    problem = dualpipe_problem(devices, microbatches, (5, 8, 2, 8))
    with pytest.raises(ValueError, match="dualpipe"):
        bp.families.dualpipe(problem)
    result = bp.solve(problem, time_limit_s=0.3, workers=1)
    assert bp.verify(result.schedule).valid
    assert result.bound <= result.objective


def test_chains_of_unequal_length_and_three_chunks_are_solved_with_pairs() -> None:
    """Any placement, unequal stages, and a limit for each device."""
    problem = bp.Problem(
        devices=3,
        placement={"device_of_stage": [0, 1, 2, 0, 2, 1], "chains": [[0, 1, 2, 3], [4, 5]]},
        microbatches=[3, 2],
        cost={
            "F": [3, 2, 2, 4, 2, 2],
            "I": [3, 2, 2, 5, 2, 2],
            "W": [1, 2, 2, 4, 2, 2],
            "pair": [7, 5, None],
        },
        memory={"F": 1, "W": -1, "static": [4, 1, 1, 4, 1, 1], "limit": [12, 5, 6]},
        backward="free",
    )
    result = bp.solve(problem, time_limit_s=1, workers=1)
    report = bp.verify(result.schedule)
    assert report.valid
    assert all(peak <= limit for peak, limit in zip(report.peak_memory, (12, 5, 6), strict=True))


def test_both_copies_of_the_weights_count() -> None:
    """A device holds a stage of each chain: twice the static memory, in limits and in verify."""
    problem = dualpipe_problem(4, 8, (1, 2, 1, 2), static=10, limit=25)
    schedule = bp.families.dualpipe(problem)
    assert max(bp.verify(schedule).peak_memory) == 25
    tight = dualpipe_problem(4, 8, (1, 2, 1, 2), static=10, limit=24)
    rules = {violation.rule for violation in bp.verify(schedule, tight).violations}
    assert rules == {"memory"}
    with pytest.raises(bp.NoScheduleError, match="least limit that would do is 21"):
        bp.solve(dualpipe_problem(4, 8, (1, 2, 1, 2), static=10, limit=20), time_limit_s=1)


def test_starts_of_a_pair_are_one() -> None:
    """Both ops of a pair begin and end as one block."""
    problem = dualpipe_problem(4, 8, (5, 8, 2, 8))
    family = bp.families.dualpipe(problem)
    starts = earliest_starts(problem, family.rows)
    assert [len(row) for row in starts] == [len(row) for row in family.rows]
