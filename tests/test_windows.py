"""Windows of CP-SAT on a schedule: valid, never worse, and nothing else moves."""

from itertools import islice

from bruteforce import least_objective
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_problems import tiny_problem

import bubbleproof as bp
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.simulate import earliest_starts
from bubbleproof.solver.background import Stop
from bubbleproof.solver.construct import one_by_one
from bubbleproof.solver.limits import shortages
from bubbleproof.solver.mirror import is_own_image, mirror_of
from bubbleproof.solver.retime import objective_of
from bubbleproof.solver.scale import Scaled, horizon
from bubbleproof.solver.window import Cut, Window
from bubbleproof.solver.window_model import WindowModel
from bubbleproof.solver.windows import improved


def searched(schedule: Schedule, *, windows: int) -> list[Schedule]:
    """Return the better and better schedules that so many windows find."""
    found = improved(
        schedule.problem,
        schedule.rows,
        starts=schedule.starts,
        workers=1,
        seed=0,
        target=0,
        stop=Stop(),
        window_s=0.5,
    )
    return [
        Schedule(schedule.problem, better[0], better[1], source="windows")
        for better in islice(found, windows)
        if better is not None
    ]


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.booleans())
def test_windows_give_valid_schedules_each_better_than_the_one_before(
    seed: int, pairs: bool
) -> None:
    """Whatever the placement, the backward, the memory and the objective are, and with pairs."""
    problem = tiny_problem(seed, pairs=pairs)
    if shortages(problem):
        return
    start = one_by_one(problem)
    before = bp.simulate(start).objective_ticks
    for schedule in searched(start, windows=5):
        assert bp.verify(schedule).valid
        now = bp.simulate(schedule).objective_ticks
        assert now < before
        before = now


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.booleans())
@example(181458, True)
def test_a_window_of_everything_reaches_what_brute_force_does(seed: int, pairs: bool) -> None:
    """Where no op is empty: with those a span may be a tick longer in the scaled times."""
    problem = tiny_problem(seed, pairs=pairs)
    if shortages(problem) or Scaled.of(problem).factor > 1:
        return
    start = one_by_one(problem)
    least = least_objective(problem)
    best = min([start, *searched(start, windows=50)], key=lambda s: bp.simulate(s).objective_ticks)
    assert bp.simulate(best).objective_ticks == least


def test_a_device_without_ops_is_in_no_window() -> None:
    """Two of three devices hold nothing; windows on a few devices go where there are ops."""
    problem = bp.Problem(
        devices=3,
        placement={"device_of_stage": [1, 1]},
        microbatches=4,
        cost={"F": 2, "B": [3, 4], "pair": 5},
        backward="fused",
    )
    start = one_by_one(problem)
    better = searched(start, windows=20)
    assert better
    assert all(bp.verify(schedule).valid for schedule in better)


def dualpipe(objective: str = "makespan") -> bp.Problem:
    """Return DualPipe's problem for 4 devices, in which halves of the devices are images."""
    return bp.Problem(
        devices=4,
        placement="bidirectional",
        microbatches=8,
        cost={"F": 5, "I": 6, "W": 2, "pair": 8},
        memory={"F": 1, "W": -1, "limit": 5},
        backward="free",
        objective=objective,
    )


def v_problem(objective: str = "makespan") -> bp.Problem:
    """Return a problem with two stages on each device, transfers and no room to spare."""
    return bp.Problem(
        devices=3,
        placement="v",
        microbatches=6,
        cost={"F": 5, "I": 6, "W": 4, "transfer": 1},
        memory={"F": 2, "I": -1, "W": -1, "limit": 12},
        objective=objective,
    )


@settings(max_examples=20)
@given(
    problem=st.sampled_from([make(o) for make in (dualpipe, v_problem) for o in bp.Objective]),
    begin=st.integers(0, 80),
    length=st.integers(1, 40),
    devices=st.frozensets(st.integers(0, 2), min_size=1),
)
def test_what_is_not_in_the_window_keeps_its_order_and_its_tail(
    problem: bp.Problem, begin: int, length: int, devices: frozenset[int]
) -> None:
    """And the objective that the model tells is that of the whole schedule in its new order."""
    rows = bp.solve(problem, time_limit_s=0).schedule.rows
    starts = earliest_starts(problem, rows)
    before = objective_of(problem, rows, starts)
    cut = Cut.of(problem, rows, starts, Window(begin, begin + length, devices))
    model = WindowModel(
        cut,
        objective=before,
        least=0,
        horizon=horizon(problem, rows, starts),
        reach=9,
        weights=(0, 1, 2, 3)[: problem.devices],
    )
    found = model.solve(time_limit_s=0.3, workers=1, seed=0)
    if found.rows is None:
        return
    for device, (old, new) in enumerate(zip(rows, found.rows, strict=True)):
        first, rest = cut.first[device], len(old) - cut.beside[device]
        assert new[:first] == old[:first]
        assert new[len(new) - rest :] == old[len(old) - rest :]
        assert device in devices or new == old
    after = objective_of(
        problem, found.rows, earliest_starts(problem, found.rows, release=found.firsts)
    )
    assert after <= found.objective <= before
    assert not found.proven or after == found.objective


def test_windows_of_an_order_that_is_its_own_image_keep_it_so() -> None:
    """Then half of the devices are searched, unless all orders are asked for."""
    problem = dualpipe()
    mirror = mirror_of(problem)
    start = bp.families.dualpipe(problem)
    assert mirror is not None
    found = searched(start, windows=3)
    assert found
    assert all(is_own_image(problem, mirror, schedule.rows) for schedule in found)
    assert bp.simulate(found[-1]).makespan < bp.simulate(start).makespan


def test_the_search_ends_where_one_window_is_all_of_the_schedule() -> None:
    """Nothing is left to search then."""
    problem = bp.Problem(
        devices=1, placement="linear", microbatches=2, cost={"F": 1, "I": 1, "W": 1}
    )
    start = one_by_one(problem)
    found = improved(problem, start.rows, workers=1, seed=0, target=0, stop=Stop())
    assert len(list(found)) == 1


def test_the_search_ends_when_told_to_and_at_its_target() -> None:
    """Both before a window begins."""
    start = one_by_one(v_problem())
    stop = Stop()
    stop.ask()
    for target, stopping in ((0, stop), (bp.simulate(start).makespan_ticks, Stop())):
        found = improved(start.problem, start.rows, workers=1, seed=0, target=target, stop=stopping)
        assert not list(found)
