"""The memory-time curve: every point against brute force, the levels against every order."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from bruteforce import least_objective
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from tiny_problems import tiny_problem

import bubbleproof as bp
from bubbleproof.schedules.curve import Frontier
from bubbleproof.solver.construct import list_schedule, policies
from bubbleproof.solver.frontier import most_ticks
from bubbleproof.solver.levels import Levels
from bubbleproof.solver.limits import shortages
from bubbleproof.verify.certificate import Standing, certify

COST = {"F": 10, "I": 12, "W": 8, "transfer": 1}
SMALL = bp.Problem(
    name="small",
    devices=3,
    microbatches=5,
    cost=COST,
    memory={"F": 2, "I": -1, "W": -1, "unit": "GiB"},
    objective="span",
    time_unit="ms",
)
UNEVEN = bp.Problem(
    devices=2,
    microbatches=3,
    cost={"F": [3, 2], "I": [2, 4], "W": [2, 1]},
    memory={"F": [3, 2], "I": [-1, -1], "W": [-2, -1], "static": [1, 0], "limit": [8, 3]},
)


@pytest.fixture(scope="module")
def small() -> Frontier:
    """Return the whole curve of a problem with five microbatches."""
    return bp.frontier(SMALL, time_limit_s=30, workers=1)


def limited(problem: bp.Problem, limits: Sequence[int | None]) -> bp.Problem:
    """Return the problem with other limits, in grains."""
    return replace(problem, memory=replace(problem.memory, limit=tuple(limits)))


def check_points(frontier: Frontier) -> None:
    """Hold every point against what a curve promises."""
    for point in frontier.points:
        assert bp.verify(point.schedule).valid
        assert certify(point.schedule).standing is not Standing.REFUSED
        assert frontier.bound_ticks <= point.bound_ticks <= point.objective_ticks
        assert frontier.within(point.limit) == point
        assert frontier.floor(point.limit) == point.bound_ticks
    for before, after in pairwise(frontier.points):
        assert before.limit < after.limit
        assert before.objective_ticks > after.objective_ticks
        assert before.bound_ticks >= after.bound_ticks
    for family in frontier.published:
        best = frontier.within(family.limit)
        assert best is not None
        assert best.objective_ticks <= family.objective_ticks


TINY = [
    problem
    for problem in (tiny_problem(seed, pairs=seed % 4 == 0) for seed in range(60))
    if len(Levels.of(problem).all) <= 6
]
"""Few levels, since brute force tries every order at each."""


@pytest.mark.slow
@pytest.mark.parametrize("place", range(20))
def test_the_curve_is_that_of_every_order(place: int) -> None:
    """On tiny problems the curve closes, and is right at every limit that makes a difference."""
    problem = TINY[place]
    curve = bp.frontier(problem, time_limit_s=60, points=1000, workers=1)
    check_points(curve)
    assert curve.complete, problem
    levels = Levels.of(problem)
    for level in levels.all:
        best = curve.within(level)
        assert best is not None
        assert best.objective_ticks == least_objective(levels.limited(level)), (problem, level)
    below = levels.limited(levels.all[0] - 1) if levels.all[0] else None
    assert below is None or shortages(below)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 5))
def test_every_peak_is_a_level(seed: int, policy: int) -> None:
    """Whatever a schedule holds at most, its level is one of those that are looked at."""
    problem = tiny_problem(seed, pairs=seed % 3 == 0)
    problem = limited(problem, [None] * problem.devices)
    levels = Levels.of(problem)
    chosen = [*policies(problem)][policy]
    schedule = list_schedule(problem, chosen, float("inf"))
    assert schedule is not None
    timeline = bp.simulate(schedule)
    needed = levels.needed_by(timeline)
    assert levels.exact
    assert needed in levels.all
    assert bp.simulate(replace(schedule, problem=levels.limited(needed))).device_over_limit is None
    if needed:
        lower = replace(schedule, problem=levels.limited(needed - 1))
        assert bp.simulate(lower).device_over_limit is not None


def test_unlike_limits_are_scaled_alike() -> None:
    """The least level is the least at which every device can run; the proportions stay."""
    levels = Levels.of(UNEVEN)
    assert not shortages(levels.limited(levels.all[0]))
    assert shortages(levels.limited(levels.all[0] - 1))
    for level in levels.all:
        first, second = levels.limited(level).memory.limit
        assert (first, second) == (level, level * 3 // 8)


def test_the_curve_for_unlike_limits_is_that_of_every_order() -> None:
    """Scaled limits: right at every level, and each schedule keeps the limits of its own."""
    problem = replace(UNEVEN, microbatches=(2,))
    curve = bp.frontier(problem, time_limit_s=30, points=1000, workers=1)
    check_points(curve)
    assert curve.complete
    levels = Levels.of(problem)
    for level in levels.all:
        best = curve.within(level)
        assert best is not None
        assert best.schedule.problem == levels.limited(best.limit)
        assert best.objective_ticks == least_objective(levels.limited(level))


def test_a_limit_of_nothing_cannot_be_scaled() -> None:
    """Zero stays zero, which is said at once."""
    memory = replace(UNEVEN.memory, limit=(4, 0))
    with pytest.raises(ValueError, match=r"memory\.limit\[1\]: 0 stays 0 however the limits are"):
        bp.frontier(replace(UNEVEN, memory=memory))


def test_a_family_above_a_limit_of_nothing_is_no_point() -> None:
    """Device 1 may run B's, which take no memory, and no I, which would; scaling does not help."""
    problem = bp.Problem(
        devices=2,
        microbatches=3,
        cost={"F": 1, "I": 1, "W": 1, "B": 9},
        memory={
            "F": [[1, 0], [0, 0]],
            "I": [[0, 0], [3, 3]],
            "W": [[0, 1], [0, 0]],
            "B": [[0, 1], [0, 0]],
            "limit": [3, 0],
        },
        backward="free",
    )
    found = bp.frontier(problem, time_limit_s=2, workers=1)
    assert found.points
    assert all(bp.verify(point.schedule).valid for point in found.points)
    assert "zb_h1" not in {family.name for family in found.published}


def test_too_many_sums_leave_evenly_spaced_levels() -> None:
    """Where amounts of many stages give too many sums, nothing is claimed between two levels."""
    amounts = [100_003, 70_001, 50_021, 30_011, 20_023, 10_007]
    problem = bp.Problem(
        devices=2,
        placement={"device_of_stage": [0, 1, 0, 1, 0, 1]},
        microbatches=32,
        cost=COST,
        memory={"F": amounts, "W": [-amount for amount in amounts]},
    )
    levels = Levels.of(problem)
    assert not levels.exact
    assert levels.after(levels.all[3]) == levels.all[3] + 1
    assert len(levels.all) <= 20_002
    steps = {after - before for before, after in pairwise(levels.all[:-1])}
    assert len(steps) == 1
    assert not shortages(levels.limited(levels.all[0]))


def test_the_curve_of_a_small_problem_is_proven_and_monotone(small: Frontier) -> None:
    """Every point is valid, its proof stands, families are never better, more never hurts."""
    check_points(small)
    assert small.complete
    assert [point.memory for point in small.points] == [2, 3, 4, 5, 6, 7, 8, 10]
    assert small.points[-1].objective_ticks == small.bound_ticks


def test_each_point_is_what_solve_proves_alone(small: Frontier) -> None:
    """The curve says the same as a search at one limit, at the points and between them."""
    for limit in (4, 6, 9):
        alone = bp.solve(limited(SMALL, [limit] * 3), time_limit_s=20, workers=1)
        best = small.within(limit)
        assert best is not None
        assert alone.status is bp.Status.OPTIMAL
        assert alone.objective_ticks == best.objective_ticks


def test_limits_of_the_problem_only_give_proportions(small: Frontier) -> None:
    """Equal limits of any size, even too small ones, lead to the same curve as none."""
    curve = bp.frontier(limited(SMALL, [1] * 3), time_limit_s=30, workers=1)
    assert [(p.limit, p.objective_ticks) for p in curve.points] == [
        (p.limit, p.objective_ticks) for p in small.points
    ]


@pytest.mark.parametrize("bubble", [0.0, 0.05, 0.1, 0.25, 0.5])
def test_the_least_memory_for_a_bubble_is_read_off_the_curve(
    small: Frontier, bubble: float
) -> None:
    """The bisection ends at the first point of the curve that is good enough, and proves it."""
    least = bp.frontier(SMALL, time_limit_s=30, max_bubble=bubble, workers=1).least
    assert least is not None
    assert least.exact
    good = [point for point in small.points if point.timeline.zb_bubble_ratio <= bubble]
    assert least.hopeless == (not good)
    if good:
        assert least.point is not None
        assert least.point.limit == good[0].limit == least.short_below
        assert least.point.timeline.zb_bubble_ratio <= bubble


def test_a_bubble_is_of_exact_decimals() -> None:
    """4 % of a makespan of 250 is 10, although 240 / (1 - 0.04) is no 250 in binary."""
    problem = bp.Problem(devices=1, microbatches=8, cost={"F": 10, "I": 12, "W": 8})
    assert most_ticks(problem, 0.04) == Fraction(240) / Fraction("0.96")
    assert most_ticks(problem, 0.0) == 240


def test_without_time_the_answer_is_an_open_interval() -> None:
    """What is not proven is not claimed: the least memory is between the two that are known."""
    problem = bp.Problem(
        devices=8,
        placement="v",
        microbatches=24,
        cost=COST,
        memory={"F": 1, "W": -1},
        objective="span",
    )
    curve = bp.frontier(problem, time_limit_s=0.3, max_bubble=0.1, workers=1)
    assert curve.least is not None
    point = curve.least.point
    assert point is not None
    assert curve.least.short_below < point.limit
    assert not curve.least.exact
    check_points(curve)


def test_a_start_is_improved_on_and_another_problem_s_is_refused() -> None:
    """Solve takes a valid schedule to begin with; what cannot be one is said."""
    start = bp.families.one_f_one_b(SMALL)
    result = bp.solve(SMALL, time_limit_s=0.01, workers=1, start=start, enough=10**6)
    assert result.objective_ticks <= bp.simulate(start).span_ticks
    with pytest.raises(ValueError, match="start: is for another problem"):
        bp.solve(UNEVEN, start=start)
    with pytest.raises(ValueError, match=r"start: is above memory\.limit"):
        bp.solve(limited(SMALL, [4] * 3), start=start)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"points": 1}, r"points: 1 is out of range; 2\.\.1000"),
        ({"max_bubble": 1.0}, "max_bubble: 1.0 is out of range; 0 or more and less than 1"),
        ({"max_bubble": float("nan")}, "max_bubble: nan is out of range"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: dict[str, float], complaint: str) -> None:
    """Each refusal has the value and an accepted one."""
    with pytest.raises(ValueError, match=complaint):
        bp.frontier(SMALL, **options)  # pyright: ignore[reportArgumentType]


def steps(figure: Figure) -> list[tuple[float, float]]:
    """Return the corners of the curve in a picture."""
    (axes,) = figure.axes
    (curve,) = [line for line in axes.lines if line.get_gid() == "curve"]
    memory, times = (np.asarray(values, float) for values in curve.get_data())
    return list(zip(memory.tolist(), times.tolist(), strict=True))


def test_the_picture_is_the_curve(small: Frontier, tmp_path: Path) -> None:
    """Each point and published schedule is drawn where it is; the same curve is the same file."""
    figure = bp.plot_frontier(small, tmp_path / "a.svg")
    bp.plot_frontier(small, tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    drawn = steps(figure)
    assert drawn[:-1] == [(p.memory, p.objective) for p in small.points]
    assert drawn[-1][1] == small.points[-1].objective
    (axes,) = figure.axes
    marks = {line.get_gid(): np.asarray(line.get_xdata(), float).tolist() for line in axes.lines}
    assert marks["proven optimal"] == [point.memory for point in small.points]
    assert "best found" not in marks
    names = {text.get_text() for text in axes.texts}
    assert "zb_h1" in names
    (floor,) = [item for item in axes.collections if isinstance(item, PolyCollection)]
    corners = {(x, y) for x, y in np.asarray(floor.get_paths()[0].vertices, float).tolist()}
    assert {(point.memory, point.objective) for point in small.points} <= corners


def test_a_picture_needs_a_point_and_a_picture_s_name(small: Frontier) -> None:
    """What cannot be drawn, or not so, is refused before anything is drawn."""
    with pytest.raises(ValueError, match=r"written as \.svg, \.png, \.pdf, not '\.txt'"):
        bp.plot_frontier(small, "curve.txt")
    with pytest.raises(ValueError, match="frontier: the curve has no point to draw"):
        bp.plot_frontier(replace(small, points=()))
