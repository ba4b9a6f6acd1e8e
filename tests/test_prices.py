"""Prices from a fluid: they drop states of a search, and no schedule that ends in time."""

import random

import pytest

import bubbleproof as bp
from bubbleproof.solver.background import Stop
from bubbleproof.solver.retime import objective_of
from bubbleproof.solver.state_problem import has_states
from bubbleproof.solver.states import Answer, States


def _small(seed: int) -> bp.Problem:
    """Return a random problem of 2 or 3 devices, the same one for the same seed."""
    rng = random.Random(seed)
    devices = rng.choice((2, 2, 3))
    placement = rng.choice(("linear", "v", "loop:2", "wave:2", "bidirectional"))
    stages = devices if placement == "linear" else 2 * devices
    longest, uniform = rng.choice((3, 6, 12)), rng.random() < 0.5

    def times() -> int | list[int]:
        if uniform:
            return rng.randint(1, longest)
        return [rng.randint(0 if rng.random() < 0.2 else 1, longest) for _ in range(stages)]

    fused = rng.random() < 0.3
    cost = {kind: times() for kind in (("F", "B") if fused else ("F", "I", "W"))}
    held = (
        {"F": 1, "B": -1}
        if fused
        else rng.choice(({"F": 2, "I": -1, "W": -1}, {"F": 1, "I": 0, "W": -1}))
    )
    return bp.Problem(
        devices=devices,
        placement=placement,
        microbatches=rng.choice((2, 3, 4) if devices == 2 else (2, 3)),
        cost={**cost, "transfer": rng.choice((0, 0, 1, 2))},
        memory={**held, "limit": rng.choice((3, 4) if fused else (5, 6, 8, 12))},
        backward="fused" if fused else "split",
        objective=rng.choice(("span", "span", "makespan")),
        name=f"small {seed}",
    )


def _within(states: States, time: int) -> Answer:
    return states.within(time, effort=200_000, stopped=lambda: False)


def _priced(problem: bp.Problem, known: int) -> States:
    states = States(problem)
    states.price(known, time_limit_s=20, stop=Stop())
    return states


def _least(problem: bp.Problem, states: States) -> int:
    """Return the least time, in units, found by halves without prices."""
    least, reached = 0, bp.solve(problem, time_limit_s=0.05, workers=1).objective_ticks
    reached //= states.unit
    while least < reached:
        answer = _within(states, (least + reached) // 2)
        assert answer.complete, problem
        if answer.rows is None or answer.starts is None:
            least = (least + reached) // 2 + 1
        else:
            reached = objective_of(problem, answer.rows, answer.starts) // states.unit
    return least


def _check(seed: int) -> None:
    problem = _small(seed)
    assert has_states(problem)
    least = _least(problem, States(problem))
    for part in (0.6, 0.8, 1.0):
        states = _priced(problem, int(part * least))
        for time in range(max(0, least - 2), least + 3):
            answer = _within(states, time)
            assert answer.complete, problem
            assert (answer.rows is not None) == (time >= least), (problem, part, time)


@pytest.mark.parametrize("seed", range(5))
def test_prices_give_up_no_schedule(seed: int) -> None:
    """With prices exactly those times are reached that are reached without."""
    _check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(1, 21))
def test_prices_give_up_no_schedule_of_many_problems(tens: int) -> None:
    """The same for two hundred more."""
    for seed in range(10 * tens, 10 * tens + 10):
        _check(seed)


@pytest.mark.slow
def test_prices_drop_states_and_whole_times() -> None:
    """A time that not even a fluid keeps has no states at all; just above it there are fewer."""
    problem = bp.Problem(
        devices=3,
        placement="v",
        microbatches=6,
        cost={"F": 10, "I": 12, "W": 8, "transfer": 1},
        memory={"F": 2, "I": -1, "W": -1, "limit": 12},
        objective="span",
    )
    plain, priced = States(problem), _priced(problem, 377)
    assert _within(priced, 377) == Answer(None, None, complete=True, expanded=0)
    few, many = _within(priced, 378), _within(plain, 378)
    assert few.rows is not None
    assert few.expanded < many.expanded


def test_a_device_without_stages_has_no_prices() -> None:
    """A device that runs nothing is not looked at."""
    problem = bp.Problem(
        devices=3,
        placement={"device_of_stage": [0, 2]},
        microbatches=2,
        cost={"F": 2, "I": 2, "W": 1},
        objective="makespan",
    )
    least = _least(problem, States(problem))
    assert _within(_priced(problem, least), least).rows is not None
