"""The exact least memory of V schedules against a model of the same question that is searched."""

from itertools import pairwise

import pytest
from ortools.sat.python import cp_model
from v_memory import Steady, least_memory

import bubbleproof as bp


def repeats(steady: Steady, devices: int, memory: int) -> bool:
    """Whether some schedule of the period keeps the memory, by CP-SAT.

    Every op has a start and a place in the period; what a stage holds is unrolled over so many
    periods that the middle one is in the steady state.
    """
    model = cp_model.CpModel()
    stages, period = 2 * devices, steady.period
    longest = memory * period
    horizon = longest + 3 * stages * (steady.forward + steady.backward + steady.transfer + period)
    lengths = {"F": steady.forward, "I": steady.backward, "W": steady.weight}
    start = {
        (kind, stage): model.new_int_var(0, horizon, f"{kind}{stage}")
        for kind in lengths
        for stage in range(stages)
    }
    for stage in range(stages):
        model.add(start["I", stage] >= start["F", stage] + steady.forward)
        model.add(start["W", stage] >= start["I", stage] + steady.backward)
        if stage:
            lag = 0 if stage == devices else steady.transfer
            model.add(start["F", stage] >= start["F", stage - 1] + steady.forward + lag)
            model.add(start["I", stage - 1] >= start["I", stage] + steady.backward + lag)
    for device in range(devices):
        running: list[cp_model.IntervalVar] = []
        holding: list[cp_model.IntervalVar] = []
        for stage in (device, stages - 1 - device):
            for kind, length in lengths.items():
                place = model.new_int_var(0, period - 1, "")
                model.add_modulo_equality(place, start[kind, stage], period)
                running += [
                    model.new_fixed_size_interval_var(place + turn * period, length, "")
                    for turn in (0, 1)
                ]
            end = start["W", stage] + steady.weight
            held = model.new_int_var(1, longest, "")
            model.add(held == end - start["F", stage])
            holding += [
                model.new_interval_var(
                    start["F", stage] + turn * period, held, end + turn * period, ""
                )
                for turn in range(2 * horizon // period)
            ]
        model.add_no_overlap(running)
        model.add_cumulative(holding, [1] * len(holding), memory)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.INFEASIBLE)
    return status != cp_model.INFEASIBLE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steady", "devices"),
    [
        (Steady(1, 1, 1, 0, 6), 1),
        (Steady(1, 1, 1, 0, 6), 2),
        (Steady(1, 1, 1, 0, 6), 3),
        (Steady(1, 1, 1, 0, 7), 3),
        (Steady(1, 1, 1, 1, 6), 2),
        (Steady(1, 2, 1, 0, 8), 2),
        (Steady(2, 1, 1, 1, 9), 2),
        (Steady(2, 3, 1, 0, 12), 2),
    ],
)
def test_the_least_memory_is_that_of_a_search(steady: Steady, devices: int) -> None:
    """A schedule exists with the memory that is said to do, and none with one less."""
    least = least_memory(steady, devices)[-1]
    assert repeats(steady, devices, least)
    assert not repeats(steady, devices, least - 1)


def test_v_min_has_the_least_memory_without_idle_time() -> None:
    """At F = I = W V-Min's closed form is the least for 3 to 16 devices; for 2 it is not."""
    least = least_memory(Steady(1, 1, 1, 0, 6), 16)
    assert least[2:] == [2 * ((devices + 4) // 3) for devices in range(3, 17)]
    assert least[:2] == [2, 3]
    for devices in (3, 5, 8):
        problem = bp.Problem(
            devices=devices,
            placement="v",
            microbatches=3 * devices,
            cost={"F": 1, "I": 1, "W": 1},
            memory={"F": 1, "W": -1},
        )
        schedule = bp.families.build("v_min", problem)
        assert max(bp.simulate(schedule).peak_memory) == least[devices - 1]


def test_a_longer_period_needs_no_more_memory_and_a_deeper_v_no_less() -> None:
    """Monotone in both, and never below what Little's law asks for."""
    tables = [least_memory(Steady(1, 1, 1, 0, period), 12) for period in range(6, 11)]
    for shorter, longer in pairwise(tables):
        assert all(a >= b for a, b in zip(shorter, longer, strict=True))
    for period, table in enumerate(tables, 6):
        assert table == sorted(table)
        assert all(chunks >= (4 * devices + 4) / period for devices, chunks in enumerate(table, 1))


def test_a_period_shorter_than_the_work_is_refused() -> None:
    """A device cannot do more than it has time for."""
    with pytest.raises(ValueError, match="period: 5 is too short for 6 of work"):
        least_memory(Steady(1, 1, 1, 0, 5), 2)
