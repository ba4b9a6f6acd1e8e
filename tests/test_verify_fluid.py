"""Fluid bounds are recomputed from their flows alone, and no other flow proves too much."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import TypeAlias

import pytest
from bruteforce import least_objective
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_problems import tiny_problem

import bubbleproof as bp
from bubbleproof.schedules.schedule import Bound, Flow, Schedule
from bubbleproof.solver.background import Stop
from bubbleproof.solver.flow_grid import Grid
from bubbleproof.solver.flow_rows import Rows
from bubbleproof.solver.fluid import Fluid, fluid_bounds
from bubbleproof.verify.certificate import Standing, certify
from bubbleproof.verify.flow import proven_by

SHAPES = ((None, 1), (4, 1), (9, 1), (None, 2), (None, 3), (5, 2))
"""How many instants are seen, None for all, and the step between them."""


def fluids(problem: bp.Problem) -> Iterator[Fluid]:
    """Yield fluids of all targets, of all devices and of one, with little or much of time seen."""
    held = problem.placement.stages_of_device
    everything = tuple(device for device in range(problem.devices) if held[device])
    span = problem.objective is bp.Objective.SPAN
    for target in everything if span else (None,):
        for devices in {everything, (everything[0] if target is None else target,)}:
            for points, step in SHAPES:
                fluid = Fluid(problem, target, devices, 1000.0)
                fluid.step = step
                fluid.points = fluid.points if points is None else points
                yield fluid


def flow_of(bound: Bound) -> Flow:
    """Return the flow of a bound."""
    assert bound.flow is not None
    return bound.flow


def _agree(problem: bp.Problem, fluid: Fluid, horizon: int) -> None:
    for grid in (
        Grid.evenly(horizon, step=fluid.step, points=fluid.points, middle=fluid.longest),
        Grid.whole(horizon, step=fluid.step),
    ):
        rows = Rows(fluid.view, grid)
        multipliers = rows.program.multipliers(60, Stop())
        if multipliers is None:  # However long its middle were, there is no solution.
            assert grid.middle is not None
            continue
        flow = rows.flow(multipliers)
        if rows.program.refuted(multipliers) >= 0:
            assert proven_by(problem, flow) == (horizon + 1) * fluid.unit, (fluid.view, flow)
        elif all(ticks is None for ticks in problem.cost.pair):
            with pytest.raises(ValueError, match="contradict nothing"):
                proven_by(problem, flow)
        found = fluid.refuted(grid, 60, Stop())
        if found is not None:
            longer, hoped = found
            assert horizon <= longer.horizon <= hoped
            assert proven_by(problem, longer) == (longer.horizon + 1) * fluid.unit


@settings(max_examples=40)
@given(st.data())
def test_a_flow_proves_what_the_solver_says_and_nothing_where_it_says_nothing(
    data: st.DataObject,
) -> None:
    """Every placement, form of backward, pairs, memory; time seen whole, coarse, or in part.

    Of pairs the verifier knows better how many there can be.
    """
    problem = tiny_problem(data.draw(st.integers(0, 10**6)), pairs=data.draw(st.booleans()))
    fluid = data.draw(st.sampled_from(list(fluids(problem))))
    _agree(problem, fluid, data.draw(st.integers(0, 40)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_flows_agree_for_all_views_of_some_problems(seed: int) -> None:
    """The same at three horizons for all targets, devices and instants."""
    problem = tiny_problem(seed, pairs=seed % 2 == 0)
    for fluid in fluids(problem):
        for horizon in (4, 11, 25):
            _agree(problem, fluid, horizon)


def v_problem(devices: int = 2, microbatches: int = 4) -> bp.Problem:
    """Return a V of 2, 3, 1 with memory for two microbatches of a device."""
    return bp.Problem(
        devices=devices,
        placement="v",
        microbatches=microbatches,
        cost={"F": 2, "I": 3, "W": 1},
        memory={"F": 2, "I": -1, "W": -1, "limit": 4 * devices},
        objective="span",
        time_unit="us",
    )


@cache
def bounded() -> Schedule:
    """Return a schedule with a bound that only a flow proves."""
    problem = v_problem()
    schedule = bp.families.zb_v(problem)
    reached = bp.simulate(schedule).objective_ticks
    *_, bound = fluid_bounds(problem, reached, 0, monotonic() + 10, Stop())
    return replace(schedule, objective=reached, bound=bound.ticks, proof=(bound,))


def flow() -> Flow:
    """Return its flow."""
    return flow_of(bounded().proof[0])


def with_flow(changed: Flow | None, ticks: int | None = None) -> Schedule:
    """Return it with another flow, and the bound that is claimed to follow."""
    schedule = bounded()
    (bound,) = schedule.proof
    claimed = bound.ticks if ticks is None else ticks
    terms = {**bound.terms, "work": bound.terms["work"] + claimed - bound.ticks}
    proof = (replace(bound, ticks=claimed, terms=terms, flow=changed),)
    return replace(schedule, bound=claimed, proof=proof)


def test_a_bound_with_its_flow_is_confirmed() -> None:
    """No theorem goes as far, so it is the flow that confirms it."""
    schedule = bounded()
    certificate = certify(schedule)
    assert certificate.standing is Standing.CONFIRMED
    assert certificate.bound == schedule.bound
    assert certify(replace(schedule, proof=(), status=None)).standing is Standing.REFUSED


def test_a_bound_without_its_flow_rests_on_the_solvers_word() -> None:
    """It is not refused, for it may be true."""
    assert certify(with_flow(None)).standing is Standing.WORD


def test_a_flow_too_large_to_recompute_rests_on_the_solvers_word() -> None:
    """A million instants are not looked at."""
    instants = ((0, 10**6, 1),)
    large = replace(flow(), horizon=10**6, instants=instants)
    assert certify(with_flow(large)).standing is Standing.WORD


def test_a_bound_above_its_flow_is_refused() -> None:
    """One tick more than the flow proves, in the idle time."""
    schedule = bounded()
    (bound,) = schedule.proof
    terms = {name: ticks + (name != "work") for name, ticks in bound.terms.items()}
    claim = replace(bound, ticks=bound.ticks + 1, terms=terms)
    certificate = certify(replace(schedule, proof=(claim,)))
    assert certificate.standing is Standing.REFUSED
    told = certificate.violations[0].message
    assert f"given as {bound.ticks + 1} us, but recomputed it is {bound.ticks} us" in told


_Change: TypeAlias = Callable[[Flow], Flow]


def _drop(name: str) -> _Change:
    def changed(flow: Flow) -> Flow:
        kept = {law: pairs for law, pairs in flow.multipliers.items() if law.split()[0] != name}
        return replace(flow, multipliers=kept)

    return changed


def _put(name: str, *pairs: tuple[int, int]) -> _Change:
    return lambda flow: replace(flow, multipliers={**flow.multipliers, name: pairs})


_WITHOUT_PROOF: tuple[tuple[_Change, str], ...] = (
    (_drop("done"), "contradict nothing"),
    (_put("forward 0 2", (1, 1)), "no law 'forward 0 2'"),
    (_put("forward 0 1", (0, 1)), r"no place 0; accepted are 1\.\."),
    (_put("forward 0 1", (10**6, 1)), "no place 1000000; accepted are"),
    (_put("done 0F", (1, 1)), "no place 1; accepted are"),
    (_put("forward 0 1", (1, -1)), "a multiplier -1; it is 0 or more"),
    (lambda flow: replace(flow, unit=2), "2 ticks does not divide all times"),
    (lambda flow: replace(flow, unit=0), "0 ticks does not divide all times"),
    (lambda flow: replace(flow, target=None), r"as target 0\.\.1 is accepted"),
    (lambda flow: replace(flow, target=2), r"no device 2; accepted are 0\.\.1"),
    (lambda flow: replace(flow, target=1 - (flow.target or 0)), "no law 'done"),
    (lambda flow: replace(flow, devices=(0, -1)), r"no device -1; accepted are 0\.\.1"),
    (lambda flow: replace(flow, devices=(0, 0, 1)), "a device twice; once is right"),
    (lambda flow: replace(flow, devices=(0,)), "no law"),
    (lambda flow: replace(flow, horizon=flow.horizon + 1), "not its horizon"),
    (lambda flow: replace(flow, horizon=-1, instants=()), "not its horizon -1"),
    (lambda flow: replace(flow, instants=((0, flow.horizon, 0),)), "do not ascend"),
    (lambda flow: replace(flow, instants=((-1, flow.horizon, 1),)), "do not ascend"),
    (lambda flow: replace(flow, instants=((9, 8, 1),)), "do not ascend"),
    (
        lambda flow: replace(flow, instants=((0, 5, 1), (5, flow.horizon, 1))),
        "do not ascend from 6 or later",
    ),
    (lambda flow: replace(flow, instants=((0, flow.horizon - 1, 1),)), "not its horizon"),
)


@pytest.mark.parametrize(("change", "message"), _WITHOUT_PROOF)
def test_a_flow_that_proves_nothing_is_refused(change: _Change, message: str) -> None:
    """The reason is told, and it is in the certificate's violation."""
    changed = change(flow())
    with pytest.raises(ValueError, match=message) as refused:
        proven_by(bounded().problem, changed)
    certificate = certify(with_flow(changed))
    assert certificate.standing is Standing.REFUSED
    assert str(refused.value) in certificate.violations[0].message


@cache
def examples() -> list[tuple[bp.Problem, int, Flow]]:
    """Return tiny problems with the least objective, and flows that prove bounds for them."""
    found: list[tuple[bp.Problem, int, Flow]] = []
    for seed in (0, 2, 5, 7, 11, 12):
        problem = tiny_problem(seed, pairs=seed % 2 == 0)
        best = least_objective(problem)
        if best is not None:
            for fluid in islice(fluids(problem), 5):
                bounds = fluid.bounds(best, 0, monotonic() + 60, Stop())
                found += [(problem, best, flow_of(bound)) for bound in [*bounds][-1:]]
    return found


@st.composite
def mutants(draw: st.DrawFn) -> tuple[bp.Problem, int, Flow]:
    """Draw a problem, its least objective, and a flow with something changed."""
    problem, best, flow = draw(st.sampled_from(examples()))
    later = draw(st.sampled_from((0, 0, 1, 2, 7)))
    runs = [*flow.instants[:-1]]
    first, last, step = flow.instants[-1]
    runs.append((first, last + later * step, step))
    multipliers = dict(flow.multipliers)
    for _ in range(draw(st.integers(0, 3))):
        law = draw(st.sampled_from(sorted(flow.multipliers)))
        pairs = multipliers[law]
        place, value = draw(st.sampled_from(pairs))
        moved = (place + draw(st.integers(-2, 2)), value * draw(st.integers(0, 3)))
        multipliers[law] = tuple(moved if pair == (place, value) else pair for pair in pairs)
    end = 1 + sum((last - first) // step for first, last, step in runs) + len(runs) - 1
    for law in multipliers:
        if law.startswith("done"):
            multipliers[law] = tuple((end, value) for _, value in multipliers[law])
    changed = Flow(
        target=draw(st.sampled_from((flow.target, flow.target, *range(problem.devices)))),
        devices=flow.devices,
        unit=flow.unit * draw(st.sampled_from((1, 1, 1, 2))),
        horizon=flow.horizon + later * step,
        instants=tuple(runs),
        multipliers=multipliers,
    )
    return problem, best, changed


@settings(max_examples=200)
@given(mutants())
def test_whatever_a_flow_says_it_proves_no_more_than_is_true(
    mutant: tuple[bp.Problem, int, Flow],
) -> None:
    """What a changed flow proves, if anything, is at most the least objective, by brute force."""
    problem, best, flow = mutant
    try:
        proven = proven_by(problem, flow)
    except ValueError:
        return
    assert proven is not None
    assert proven <= best


def test_multipliers_in_another_measure_prove_the_same() -> None:
    """With all of them doubled."""
    doubled = {
        law: tuple((place, 2 * value) for place, value in pairs)
        for law, pairs in flow().multipliers.items()
    }
    assert proven_by(bounded().problem, replace(flow(), multipliers=doubled)) == bounded().bound


def odd_problems() -> Iterator[tuple[str, bp.Problem]]:
    """Yield problems with something unusual."""
    costs = {"F": 5, "I": 6, "W": 4, "transfer": 1}
    idle = {"device_of_stage": [0, 2]}
    yield (
        "a device without stages",
        bp.Problem(devices=3, placement=idle, microbatches=3, cost=costs, objective="span"),
    )
    unused = {"device_of_stage": [0, 1, 2], "chains": [[0, 1], [2]]}
    yield (
        "a device without microbatches",
        bp.Problem(devices=3, placement=unused, microbatches=[3, 0], cost=costs),
    )
    large = {"F": [1000003, 999983], "I": 1200007, "W": 800011, "transfer": 100003}
    yield "times without a divisor", bp.Problem(devices=2, microbatches=2, cost=large)
    none = {"F": [0, 3, 0], "I": [0, 2, 5], "W": 0, "transfer": 0}
    yield "times of 0", bp.Problem(devices=3, microbatches=3, cost=none, objective="span")
    apart = {"F": 5, "I": 6, "W": 4, "transfer": [[0, 1, 2], [3, 0, 4], [5, 6, 0]]}
    yield (
        "transfers of their own",
        bp.Problem(devices=3, placement="loop:2", microbatches=2, cost=apart),
    )


@pytest.mark.parametrize("name", [name for name, _ in odd_problems()])
def test_bounds_of_odd_problems_are_found_and_recomputed(name: str) -> None:
    """The best of them is no more than a schedule's objective, and its flow proves it."""
    problem = dict(odd_problems())[name]
    best = bp.solve(problem, time_limit_s=1, workers=1).objective_ticks
    found = list(fluid_bounds(problem, best, 0, monotonic() + 1, Stop()))
    assert found
    for bound in found:
        assert proven_by(problem, flow_of(bound)) == bound.ticks <= best


def test_a_chain_that_passes_the_target_by_may_be_over_before_it_starts() -> None:
    """Device 1 pairs the F of one chain with the B of another that has long been on its way.

    Device 0 is then at work for 1 + 2 + 1 + 8, and device 1 for the other chain's 15 + 2 + 1. Were
    the other chain's backward not before device 0 starts, that one would take 15 + 2 + 1 + 8.
    """
    problem = bp.Problem(
        devices=3,
        placement={"device_of_stage": [0, 1, 1, 2], "chains": [[0, 1], [2, 3]]},
        microbatches=[1, 1],
        cost={"F": [1, 23, 0, 0], "B": [8, 1, 1, 15], "pair": [None, 2, None]},
        backward="fused",
        objective="span",
    )
    assert least_objective(problem) == 18
    for fluid in fluids(problem):
        assert fluid.refuted(Grid.whole(18, step=fluid.step), 60, Stop()) is None


def test_a_flow_is_kept_by_a_file(tmp_path: Path) -> None:
    """Read again it is the same, and confirmed."""
    path = tmp_path / "schedule.json"
    bp.save(bounded(), path)
    again = bp.load_schedule(path)
    assert again == bounded()
    assert hash(again) == hash(bounded())
    assert certify(again).standing is Standing.CONFIRMED


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"horizon": ', '"horizon": -', r"proof\[0\]\.flow\.horizon: -\d+ is out of range"),
        ('"unit": 1', '"unit": 0.5', r"proof\[0\]\.flow\.unit: 0\.5 is no whole number of ticks"),
        ('"unit": 1,', "", r"proof\[0\]\.flow\.unit is missing"),
        ('"devices": [0', '"devices": ["a"', r"flow\.devices\[0\]: 'a' is not a whole number"),
        ('"instants": [[', '"instants": [[[', "Expecting|expected"),
        ('"instants": [', '"instants": [[1, 2], ', r"the first, the last and the step between"),
        ('"done 3W": "', '"done 3W": "x', "is no place with its multipliers"),
        ('"target": ', '"aim": 0, "target": ', "'aim' is unknown"),
    ],
)
def test_a_fault_in_a_flow_is_told_with_its_place(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    """One line, with the field."""
    path = tmp_path / "schedule.json"
    bp.save(bounded(), path)
    text = path.read_text()
    before, found, after = text.partition('"flow": {')
    assert old in after
    path.write_text(before + found + after.replace(old, new, 1))
    with pytest.raises(ValueError, match=message) as refused:
        bp.load_schedule(path)
    assert "\n" not in str(refused.value)
