"""What solve promises: optima, bounds, limits kept, nothing lost."""

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_problems import tiny_problem

import bubbleproof as bp
from bubbleproof.solver.bounds import bounds
from bubbleproof.solver.construct import list_schedule, one_by_one, policies
from bubbleproof.solver.limits import least_limit, shortages
from bubbleproof.solver.relaxation import device_bound
from bubbleproof.solver.result import Progress
from bubbleproof.solver.scale import Scaled
from bubbleproof.solver.times import most_time

UNIT: Mapping[str, object] = {"F": 1, "I": 1, "W": 1}
TEN: Mapping[str, object] = {"F": 10, "I": 12, "W": 8, "transfer": 1}
TWENTY: Mapping[str, object] = {"F": 10, "I": 20, "W": 10, "transfer": 2}


def flat(
    cost: Mapping[str, object],
    microbatches: int,
    limit: int | None,
    *,
    devices: int = 4,
    placement: str = "linear",
    backward: str = "split",
    objective: str = "span",
) -> bp.Problem:
    """Return a problem with two units of memory per microbatch and stage."""
    return bp.Problem(
        devices=devices,
        placement=placement,
        microbatches=microbatches,
        cost=cost,
        memory={"F": 2, "I": -1, "W": -1, "limit": limit},
        backward=backward,
        objective=objective,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cost", "microbatches", "limit", "optimum"),
    [
        (UNIT, 8, 8, 27),
        (UNIT, 8, 12, 25),
        (UNIT, 8, 16, 24),
        (UNIT, 12, 8, 39),
        (UNIT, 12, 12, 37),
        (UNIT, 12, 16, 36),
        (TEN, 8, 8, 294),
        (TEN, 8, 12, 262),
        (TEN, 8, 16, 256),
        (TEN, 12, 8, 414),
        (TEN, 12, 12, 382),
        (TWENTY, 8, 8, 404),
        (TWENTY, 8, 12, 372),
        (TWENTY, 8, 16, 352),
        (TWENTY, 12, 8, 564),
        (TWENTY, 12, 12, 532),
        (TWENTY, 12, 16, 512),
    ],
)
def test_spans_of_four_devices_are_proven_optimal(
    cost: Mapping[str, object], microbatches: int, limit: int, optimum: int
) -> None:
    """Optima known from public trials (p = 4, linear) are reached and proven in 30 s."""
    result = bp.solve(flat(cost, microbatches, limit), time_limit_s=30, workers=2)
    assert (result.objective, result.bound, result.status) == (optimum, optimum, "optimal")
    assert bp.verify(result.schedule).valid


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_whatever_solve_returns_is_valid_and_bounded(seed: int) -> None:
    """The verifier accepts every answer, the bound is below it, and the reports agree."""
    problem = tiny_problem(seed)
    if shortages(problem):
        with pytest.raises(bp.NoScheduleError, match="least limit"):
            bp.solve(problem)
        return
    result = bp.solve(problem, time_limit_s=2, workers=1)
    report = bp.verify(result.schedule)
    assert report.valid, report.violations
    assert result.bound <= result.objective
    objective = report.makespan if problem.objective.value == "makespan" else report.span
    assert result.objective == objective == result.problem.time(result.objective_ticks)
    assert (result.status == "optimal") is (result.bound == result.objective)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["linear", "v", "loop:2", "bidirectional", "wave:3"]),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 3),
    st.sampled_from(["split", "fused", "free"]),
)
def test_every_list_schedule_keeps_the_least_limits(
    placement: str, devices: int, microbatches: int, spare: int, backward: str
) -> None:
    """Down to the least limit that any order needs, list scheduling never gets stuck."""
    problem = flat(TEN, microbatches, None, devices=devices, placement=placement, backward=backward)
    limit = [least_limit(problem, device) + spare for device in range(devices)]
    problem = replace(problem, memory={"F": 2, "I": -1, "W": -1, "limit": limit})
    for policy in policies(problem):
        schedule = list_schedule(problem, policy, time.monotonic() + 60)
        assert schedule is not None, policy
        assert bp.verify(schedule).valid, policy


@pytest.mark.parametrize("placement", ["linear", "v", "bidirectional"])
def test_one_microbatch_at_a_time_needs_the_least_memory(placement: str) -> None:
    """At the least limit there is a schedule; one grain below there is none, and why is said."""
    problem = flat(UNIT, 3, None, placement=placement)
    least = [least_limit(problem, device) for device in range(4)]
    tight = replace(problem, memory={"F": 2, "I": -1, "W": -1, "limit": least})
    assert bp.verify(one_by_one(tight)).valid
    short = [limit - (device == 2) for device, limit in enumerate(least)]
    with pytest.raises(bp.NoScheduleError, match=f"device 2 .* would do is {least[2]}") as refusal:
        bp.solve(replace(problem, memory={"F": 2, "I": -1, "W": -1, "limit": short}))
    assert (refusal.value.device, refusal.value.least) == (2, least[2])


def test_memory_that_grows_in_the_backward_is_planned_for() -> None:
    """F 3, I 2, W -5 with limit 5: one microbatch at a time, 2 x 3 ticks; with 4, nothing."""
    memory = {"F": 3, "I": 2, "W": -5, "limit": 5}
    problem = bp.Problem(devices=1, microbatches=2, cost=UNIT, memory=memory)
    result = bp.solve(problem, time_limit_s=10, workers=1)
    assert (result.objective, result.status) == (6, "optimal")
    with pytest.raises(bp.NoScheduleError, match="the least limit that would do is 5"):
        bp.solve(replace(problem, memory={**memory, "limit": 4}))


def test_times_in_decimals_give_exact_answers() -> None:
    """0.29 + 0.57 is 0.86, and reported so."""
    cost = {"F": 0.29, "I": 0.57, "W": 0}
    result = bp.solve(bp.Problem(devices=1, microbatches=1, cost=cost), workers=1)
    assert result.objective == result.bound == 0.86


@pytest.mark.parametrize("factor", [1, 1000, 1_000_000])
def test_fine_ticks_do_not_change_the_answer(factor: int) -> None:
    """All times multiplied give the multiplied optimum, and the model sees no factor."""
    cost: dict[str, object] = {"F": 5 * factor, "I": 5 * factor, "W": 5 * factor}
    problem = flat(cost, 4, 8, devices=2)
    assert Scaled.of(problem).problem.cost.F == (1, 1)
    result = bp.solve(problem, time_limit_s=10, workers=1)
    assert result.objective == bp.solve(flat(UNIT, 4, 8, devices=2)).objective_ticks * 5 * factor
    assert result.status == "optimal"


@pytest.mark.parametrize(
    "problem",
    [
        flat(TEN, 24, 16, devices=8),
        flat(TEN, 24, 12, devices=8, placement="v"),
        flat(TEN, 16, None, devices=8, placement="bidirectional"),
        flat(TEN, 32, 8, devices=4, backward="fused"),
    ],
    ids=lambda problem: str(problem.placement),
)
def test_a_hundredth_of_a_second_still_gives_a_valid_schedule(problem: bp.Problem) -> None:
    """There is always an answer, whose bound holds, long before a search could have ended."""
    result = bp.solve(problem, time_limit_s=0.01)
    assert bp.verify(result.schedule).valid
    assert result.bound <= result.objective
    # Not the limit itself, which a busy machine passes before the first heuristic is done.
    assert result.seconds < 20


@pytest.mark.slow
def test_the_time_limit_is_kept_on_a_problem_too_hard_to_close() -> None:
    """V placement with unequal times stays open, and 4 s are 4 s."""
    problem = flat(TEN, 32, 16, devices=8, placement="v")
    began = time.monotonic()
    result = bp.solve(problem, time_limit_s=4, workers=2)
    assert time.monotonic() - began < 4 * 1.1 + 2
    assert bp.verify(result.schedule).valid


@pytest.mark.parametrize("placement", ["linear", "v", "loop:2", "bidirectional", "wave:2"])
@pytest.mark.parametrize("backward", ["split", "fused", "free"])
def test_no_family_that_fits_is_better_than_solve(placement: str, backward: str) -> None:
    """Solve is never worse than a published schedule, and names the best one."""
    problem = flat(TEN, 8, 12, placement=placement, backward=backward)
    result = bp.solve(problem, time_limit_s=0.1, workers=1)
    fitting: dict[str, int] = {}
    for name in bp.families.names():
        try:
            schedule = bp.families.build(name, problem)
        except ValueError:
            continue
        if bp.verify(schedule).valid:
            fitting[name] = bp.simulate(schedule).objective_ticks
    assert all(result.objective_ticks <= objective for objective in fitting.values())
    assert (result.family is None) is (not fitting)
    if result.family is not None:
        assert result.family_objective_ticks == min(fitting.values()) == fitting[result.family]


def test_progress_only_gets_better() -> None:
    """Every schedule that is reported is valid and better than the one before."""
    seen: list[Progress] = []
    problem = flat(TEN, 8, 12, placement="v")
    result = bp.solve(problem, time_limit_s=3, workers=1, on_progress=seen.append)
    objectives = [progress.schedule.objective or 0 for progress in seen]
    assert objectives
    assert all(later < before for before, later in pairwise(objectives))
    assert objectives[-1] == result.objective_ticks
    assert all(bp.verify(progress.schedule).valid for progress in seen)


def test_an_interrupt_keeps_the_best_so_far() -> None:
    """Ctrl-C while solving returns the best schedule, marked as interrupted."""
    reports = 0

    def interrupt(_: Progress) -> None:
        nonlocal reports
        reports += 1
        if reports == 2:
            raise KeyboardInterrupt

    problem = flat(TEN, 24, 24, devices=8)
    result = bp.solve(problem, time_limit_s=20, workers=1, on_progress=interrupt)
    assert result.interrupted
    assert result.seconds < 10
    assert bp.verify(result.schedule).valid


@pytest.mark.slow
def test_a_problem_too_large_for_the_exact_model_is_still_answered() -> None:
    """49,152 ops are scheduled and bounded without the exact model."""
    problem = flat(UNIT, 512, 64, devices=32)
    # It ends as soon as the family is proven optimal, in about two seconds.
    result = bp.solve(problem, time_limit_s=120, workers=1)
    assert result.status == "optimal"
    assert result.source.startswith("family")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time_limit_s": -1.0}, "time_limit_s: -1.0 is no time"),
        ({"time_limit_s": float("nan")}, "time_limit_s: nan is no time"),
        ({"workers": 0}, "workers: 0 is too few; at least 1 is needed"),
    ],
)
def test_senseless_options_are_refused(arguments: dict[str, float], message: str) -> None:
    """Options out of range are a ValueError with what would be right."""
    with pytest.raises(ValueError, match=message):
        bp.solve(flat(UNIT, 2, 8), **arguments)  # pyright: ignore[reportArgumentType]


def test_a_problem_beyond_all_time_limits_is_refused() -> None:
    """Rather than hang, solve says how many ops it takes."""
    with pytest.raises(ValueError, match="is about 6000000 ops; up to 4000000 can be solved"):
        bp.solve(flat(UNIT, 1000, None, devices=2000))


def test_bounds_explain_themselves() -> None:
    """A bound's terms add up to it, and its text has the device and every number."""
    for objective in ("makespan", "span"):
        for bound in bounds(flat(TEN, 8, 8, objective=objective)):
            assert sum(bound.terms.values()) == bound.ticks
            assert f"device {bound.device}" in bound.text
            assert all(str(ticks) in bound.text for ticks in bound.terms.values())


def test_solved_schedules_are_values() -> None:
    """Equal and hashable with their bounds, so that they can be keys and members of a set."""
    schedule = bp.solve(flat(UNIT, 2, 8), workers=1).schedule
    assert schedule.proof
    assert {schedule: "kept"}[replace(schedule)] == "kept"
    assert len({schedule, replace(schedule), replace(schedule, proof=())}) == 2


def test_pairs_are_not_overlooked_by_the_bound_of_a_device_alone() -> None:
    """One device, a forward free inside a backward: 22, where its ops one by one take 30."""
    cost = {"F": 5, "B": 5, "pair": 6}
    problem = bp.Problem(devices=1, microbatches=3, cost=cost, backward="fused")
    assert device_bound(problem, 0, 10**6, time.monotonic() + 60) is None
    result = bp.solve(problem, time_limit_s=10, workers=1)
    assert (result.objective, result.status) == (22, "optimal")


def test_the_memory_knapsack_tells_close_ratios_apart() -> None:
    """Times per memory that are equal as floats are still sorted as they are."""
    items = [(3 * 10**8, 10**17 + 1, 1), (3 * 10**8 - 1, 10**17 - 333333333, 1), (1, 1, 1)]
    for _ in range(2):
        assert most_time(items, 3 * 10**8) >= 10**17 + 1
        items.reverse()


def test_the_memory_knapsack_is_exact_for_two_kinds() -> None:
    """Two items of 3 for 5 and any of 2 for 3 in 7 grains: 3 + 2 + 2 is worth 11, not 10."""
    assert most_time([(3, 5, 2), (2, 3, 9)], 7) == 11
    assert most_time([(0, 5, 2)], 0) == 10
    assert most_time([(4, 5, 2)], None) == 10
    assert most_time([(4, 5, 2)], -1) == 0


def test_an_error_ends_what_runs_beside_the_search() -> None:
    """What the caller's own function raises comes through, and no thread goes on searching."""
    problem = bp.Problem(
        devices=4,
        placement="v",
        microbatches=8,
        cost={"F": 10, "I": 12, "W": 8, "transfer": 1},
        memory={"F": 2, "I": -1, "W": -1, "limit": 16},
        objective="span",
    )
    before = set(threading.enumerate())

    def refuse(progress: Progress) -> None:
        if not progress.schedule.source.startswith("family"):
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        bp.solve(problem, time_limit_s=60, workers=2, on_progress=refuse)
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()
