"""Our stages and steps in torch's words, and copies as pure data."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import placements, schedules

import bubbleproof as bp
from bubbleproof.runtime import replicas
from bubbleproof.runtime.load import runnable
from bubbleproof.runtime.translate import torch_actions
from bubbleproof.schedules.lower import lower
from bubbleproof.schedules.ops import Op, Pair
from bubbleproof.schedules.placement import Placement, bidirectional, linear, v
from bubbleproof.schedules.program import Action, Group
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.torch_numbers import torch_numbers


@given(placements(max_devices=4))
def test_neighbours_by_torchs_number_are_neighbours_in_a_chain(placement: Placement) -> None:
    """Torch hands what a stage makes to the next number: none has one that it must not reach."""
    numbers = torch_numbers(placement)
    assert len(set(numbers)) == placement.stages
    hops = {hop for chain in placement.chains for hop in pairwise(chain)}
    for one in range(placement.stages):
        for other in range(placement.stages):
            assert (numbers[other] == numbers[one] + 1) == ((one, other) in hops)


def test_one_chain_keeps_its_numbers_and_a_second_leaves_one_out() -> None:
    """Torch's profile of DualPipe on two devices has stages 0, 1, 3 and 4."""
    assert torch_numbers(linear(4)) == (0, 1, 2, 3)
    assert torch_numbers(v(2)) == (0, 1, 2, 3)
    assert torch_numbers(bidirectional(2)) == (0, 1, 3, 4)


@given(schedules(timed=False), st.booleans())
def test_torch_writes_each_step_as_we_do(schedule: Schedule, grouped: bool) -> None:
    """But for the numbers of stages; the messages of groups one after the other."""
    numbers = torch_numbers(schedule.problem.placement)
    program = lower(schedule, grouped=grouped)
    for row, actions in zip(program.rows, torch_actions(program).values(), strict=True):
        ours = [
            part for step in row for part in (step.messages if isinstance(step, Group) else (step,))
        ]
        assert [renumbered(step, numbers) for step in ours] == [str(action) for action in actions]


def renumbered(step: Op | Pair | Action, numbers: tuple[int, ...]) -> str:
    """Return a step's text with torch's number of its stage."""
    if isinstance(step, Pair):
        forward, backward = (renumbered(half, numbers) for half in (step.forward, step.backward))
        return f"({forward};{backward})OVERLAP_F_B"
    microbatch = "" if step.microbatch is None else step.microbatch
    return f"{numbers[step.stage]}{step.kind.value}{microbatch}"


def test_copies_are_told_with_the_devices_that_hold_them() -> None:
    """Stages r and p+i; the middle device of three holds both of its own."""
    assert replicas.copies_of(linear(4)) == ()
    assert replicas.copies_of(bidirectional(3)) == (
        replicas.Copies(0, (0, 3), (0, 2)),
        replicas.Copies(1, (1, 4), (1,)),
        replicas.Copies(2, (2, 5), (0, 2)),
    )


def test_a_copy_with_fewer_parameters_is_refused() -> None:
    """With the first one that it lacks."""
    weight, bias = ("weight", (4, 4), "torch.float32"), ("bias", (4,), "torch.float32")
    copies = replicas.copies_of(bidirectional(2))
    layouts = {0: (weight, bias), 1: (weight, bias), 2: (weight,), 3: (weight, bias)}
    with pytest.raises(ValueError, match=r"stage 2 must .* has nothing where stage 0 has bias"):
        replicas.require_same_layout(copies, layouts)
    replicas.require_same_layout(copies, {**layouts, 2: (weight, bias)})


def test_a_result_is_not_taken_for_its_schedule() -> None:
    """It says what to give."""
    problem = bp.Problem(devices=1, microbatches=1, cost={"F": 1, "B": 1}, backward="fused")
    result = bp.solve(problem, time_limit_s=5)
    with pytest.raises(TypeError, match=r"take its \.schedule"):
        runnable(result)  # pyright: ignore[reportArgumentType]
