"""The fluid bound: never above any schedule, and as strong as it is meant to be."""

from collections.abc import Sequence
from itertools import product
from time import monotonic

import numpy as np
import pytest
from bruteforce import least_objective
from hypothesis import given
from hypothesis import strategies as st
from tiny_problems import tiny_problem

import bubbleproof as bp
from bubbleproof.solver.background import Stop
from bubbleproof.solver.fluid import Fluid, fluid_bounds
from bubbleproof.solver.linear_program import LinearProgram

SHAPES = ((1000.0, 1), (0.2, 1), (0.5, 1), (1.0, 1), (1000.0, 2), (1000.0, 3), (0.5, 2))
"""Windows and steps: time whole, with the middle left out, and seen at every other instant."""


def bound_of(
    problem: bp.Problem, target: int | None, devices: tuple[int, ...], best: int, known: int
) -> int:
    """Return the bound that some devices give, from a known one."""
    fluid = Fluid(problem, target, devices, 1000.0)
    found = fluid.bounds(best, known, monotonic() + 60, Stop())
    return max((bound.ticks for bound in found), default=known)


def v_problem(
    devices: int,
    microbatches: int,
    limit: int | Sequence[int] | None,
    *,
    placement: str = "v",
    objective: str = "span",
) -> bp.Problem:
    """Return a problem with the costs 5, 6, 4 and memory for some microbatches of a stage."""
    memory = {"F": 2, "I": -1, "W": -1}
    limits = 2 * limit if isinstance(limit, int) else limit
    return bp.Problem(
        devices=devices,
        placement=placement,
        microbatches=microbatches,
        cost={"F": 5, "I": 6, "W": 4, "transfer": 1},
        memory=None if limits is None else {**memory, "limit": limits},
        objective=objective,
    )


def _check(seed: int, *, pairs: bool) -> None:
    problem = tiny_problem(seed, pairs=pairs)
    best = least_objective(problem)
    if best is None:
        return
    span = problem.objective is bp.Objective.SPAN
    everything = tuple(range(problem.devices))
    for target in everything if span else (None,):
        for devices in {everything, (target or 0,)}:
            for windows, step in SHAPES:
                fluid = Fluid(problem, target, devices, windows)
                fluid.step = step
                for known in (0, max(0, best - 1), best):
                    bounds = fluid.bounds(best + 3 * fluid.unit, known, monotonic() + 60, Stop())
                    for bound in bounds:
                        assert bound.ticks <= best, (bound, windows, step, problem)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15))
def test_no_order_of_a_tiny_problem_is_below_its_fluid_bound(seed: int) -> None:
    """Brute force agrees, however much of time is seen, from any known bound."""
    for case in range(4):
        _check(4 * seed + case, pairs=False)
        _check(4 * seed + case, pairs=True)


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["linear", "v", "loop:2", "wave:2", "bidirectional"])
@pytest.mark.parametrize("objective", ["span", "makespan"])
def test_families_are_never_below_the_fluid_bound(placement: str, objective: str) -> None:
    """With each family's own peak as the limit, its objective is at least the bound."""
    plain = v_problem(4, 8, None, placement=placement, objective=objective)
    for name in bp.families.names():
        try:
            schedule = bp.families.build(name, plain)
        except ValueError:
            continue
        limits = [int(2 * peak) for peak in bp.simulate(schedule).peak_memory]
        problem = v_problem(4, 8, limits, placement=placement, objective=objective)
        timeline = bp.simulate(bp.families.build(name, problem))
        reached = int(timeline.span if objective == "span" else timeline.makespan)
        for bound in fluid_bounds(problem, reached + 10, 0, monotonic() + 1, Stop()):
            assert bound.ticks <= reached, (name, bound)


def test_the_ends_of_a_v_wait_for_each_other() -> None:
    """10, 12, 8 on four devices with memory for eight: 23 idle where 9 was known before.

    The span that is best known is 264, and no device alone shows more than 249.
    """
    problem = v_problem(4, 8, 8)
    assert bound_of(problem, 0, (0, 3), best=264, known=249) == 263


@pytest.mark.slow
def test_measured_times_lose_little_on_a_coarse_grid() -> None:
    """5.01, 6.03, 3.97: 11.7 idle on three devices, where no device alone shows more than 6.1.

    With 5, 6 and 4 it is 14, on a grid of whole units.
    """
    problem = bp.Problem(
        devices=3,
        placement="v",
        microbatches=6,
        cost={"F": 5.01, "I": 6.03, "W": 3.97, "transfer": 1},
        memory={"F": 2, "I": -1, "W": -1, "limit": 12},
        objective="span",
    )
    fluid = Fluid(problem, 0, (0, 2), 1.15)
    assert fluid.step > 1
    *_, bound = fluid.bounds(19900, 18616, monotonic() + 60, Stop())
    assert 18012 + 1170 <= bound.ticks <= 18012 + 1400


@pytest.mark.slow
def test_the_bound_grows_by_the_work_of_each_more_microbatch() -> None:
    """Leaving out the middle of time loses nothing once the windows hold filling and draining."""
    idle: list[int] = []
    for microbatches in (8, 24):
        problem = v_problem(4, microbatches, 8)
        work = 30 * microbatches
        fluid = Fluid(problem, 0, (0, 3), 1.15)
        found = list(fluid.bounds(work + 40, work, monotonic() + 60, Stop()))
        idle.append(found[-1].ticks - work)
    assert idle == [23, 23]


def test_the_bound_explains_itself() -> None:
    """Its terms add up to it, and its text names the devices that it looked at."""
    problem = v_problem(2, 4, 4)
    best = bp.solve(problem, time_limit_s=5, workers=1).objective_ticks
    for bound in fluid_bounds(problem, best, 0, monotonic() + 5, Stop()):
        assert sum(bound.terms.values()) == bound.ticks
        assert bound.text.endswith("seen on devices 0, 1 together")


def test_a_search_for_bounds_that_is_stopped_ends() -> None:
    """After the stop nothing more is found."""
    stop = Stop()
    stop.ask()
    assert list(fluid_bounds(v_problem(4, 8, 8), 10_000, 0, monotonic() + 60, stop)) == []


@given(st.data())
def test_no_solution_of_a_linear_program_is_shorter_than_what_it_refutes(
    data: st.DataObject,
) -> None:
    """Every whole solution of small programs, with numbers of very different size."""
    columns = data.draw(st.integers(1, 3))
    numbers = st.sampled_from([-1_000_003, -7, -2, -1, 0, 1, 2, 3, 10, 999_983])
    program = LinearProgram()
    upper = [data.draw(st.integers(0, 3)) for _ in range(columns)]
    program.add_columns(np.array(upper, np.int64))
    rows = [
        (
            [data.draw(numbers) for _ in range(columns)],
            data.draw(st.integers(-20, 20)),
            data.draw(st.integers(0, 2)),
        )
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    place = np.arange(columns, dtype=np.int64)
    for values, limit, longer in rows:
        entries = (np.zeros(columns, np.int64), place, np.array(values, np.int64))
        limits = (np.array([limit], np.int64), np.array([longer], np.int64))
        program.add_rows([entries], *limits)
    multipliers = program.multipliers(10, Stop())
    if multipliers is None:
        return
    refuted = program.refuted(multipliers)
    needed = [_length(rows, point) for point in product(*(range(each + 1) for each in upper))]
    assert all(length is None or length > refuted for length in needed)


def _length(rows: Sequence[tuple[list[int], int, int]], point: tuple[int, ...]) -> int | None:
    """Return the least whole length with which a point keeps all rows; None if none does."""
    length = 0
    for values, limit, longer in rows:
        over = sum(a * x for a, x in zip(values, point, strict=True)) - limit
        if over > 0 and not longer:
            return None
        if over > 0:
            length = max(length, -(-over // longer))
    return length


def test_the_least_length_of_a_linear_program_is_refuted_up_to_the_last() -> None:
    """Two columns of at most 3 are 7 with twice the length: 0 is refuted, 1 is not."""
    program = LinearProgram()
    columns = program.add_columns(np.array([3, 3], np.int64))
    entries = (np.zeros(2, np.int64), columns, np.array([-1, -1], np.int64))
    program.add_rows([entries], np.array([-7], np.int64), np.array([2], np.int64))
    multipliers = program.multipliers(10, Stop())
    assert multipliers is not None
    assert program.refuted(multipliers) == 0
