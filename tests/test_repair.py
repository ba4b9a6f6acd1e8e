"""Repair: messages that every transport carries, and nothing else changed."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_executor import faults
from programs import problem_of, written
from random_programs import (
    MUTATIONS,
    drifted,
    is_message,
    lowered,
    with_groups,
    with_weights,
)
from strategies import any_order, problems
from verdicts import rules

from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Group, Program, Step
from bubbleproof.schedules.repair import repair
from bubbleproof.schedules.simulate import DeadlockError
from bubbleproof.verify.program_rules import verify_program

TWO = problem_of(2, 2)
MESSAGE_FAULTS = (
    "drop a message",
    "double a message",
    "move a message",
    "flip a message's direction",
    "make a send a receive",
    "another microbatch",
    "another stage",
    "swap two sends",
    "swap two receives",
    "ungroup",
    "sends, then receives",
    "a message to another device",
)


def without_messages(program: Program) -> list[list[Step]]:
    """Return the rows with ops and steps on weights alone."""
    return [
        [step for step in row if not is_message(step) and not isinstance(step, Group)]
        for row in program.rows
    ]


@pytest.mark.parametrize(
    ("devices", "placement", "rows"),
    [
        pytest.param(
            2,
            "linear",
            (
                "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
                "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1",
            ),
            id="both send first (PiPPy 1088)",
        ),
        pytest.param(
            2,
            "linear",
            (
                "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
                "1RECV_F1 1RECV_F0 1F0 1F1 1B0 1SEND_B0 1B1 1SEND_B1",
            ),
            id="swapped receives (torch, silent)",
        ),
        pytest.param(
            2,
            "loop:2",
            (
                "0F0 0SEND_F0 2RECV_F0 2F0 2SEND_F0 0F1 0SEND_F1 2RECV_B0 2B0 2RECV_F1 "
                "2SEND_B0 2F1 2SEND_F1 0RECV_B0 0B0 2RECV_B1 2B1 2SEND_B1 0RECV_B1 0B1",
                "1RECV_F0 1F0 1SEND_F0 3RECV_F0 3F0 1RECV_F1 3B0 3SEND_B0 1F1 1SEND_F1 "
                "3RECV_F1 1RECV_B0 1B0 1SEND_B0 3F1 3B1 3SEND_B1 1RECV_B1 1B1 1SEND_B1",
            ),
            id="activation and gradient to one device mixed up (Megatron-LM 1451)",
        ),
    ],
)
def test_public_hangs_and_mix_ups_are_repaired(
    devices: int, placement: str, rows: tuple[str, ...]
) -> None:
    """What was broken passes every rule, with the same ops in the same order."""
    program = written(problem_of(devices, 2, placement), *rows)
    assert not verify_program(program).valid
    for grouped in (True, False):
        fixed = repair(program, grouped=grouped)
        assert verify_program(fixed).valid
        assert without_messages(fixed) == without_messages(program)
        assert not any(faults(fixed).values())


def test_steps_on_weights_stay_between_their_ops() -> None:
    """They come behind the sends of the op before and ahead of the receives of the next."""
    program = written(
        TWO,
        "0UNSHARD 0F0 0F1 0SEND_F0 0SEND_F1 0RECV_B0 0B0 0B1 0REDUCE_GRAD 0RECV_B1 0RESHARD",
        "1UNSHARD 1F0 1RECV_F0 1B0 1F1 1SEND_B0 1B1 1REDUCE_GRAD 1RESHARD 1SEND_B1",
    )
    assert {"matched", "received"} & set(rules(verify_program(program)))
    assert str(repair(program, grouped=False)) == (
        "0UNSHARD 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD 0RESHARD\n"
        "1UNSHARD 1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1 1REDUCE_GRAD 1RESHARD"
    )


def test_an_order_of_ops_that_hangs_cannot_be_repaired() -> None:
    """The refusal says who waits for what."""
    program = written(
        TWO,
        "0F0 0SEND_F0 0RECV_B0 0B0 0F1 0SEND_F1 0RECV_B1 0B1",
        "1RECV_F1 1F1 1B1 1SEND_B1 1RECV_F0 1F0 1B0 1SEND_B0",
    )
    with pytest.raises(DeadlockError, match=r"device 0 stands at 0B0 and waits for the backward"):
        repair(program)


def test_ops_out_of_place_cannot_be_repaired() -> None:
    """No message helps an op on the wrong device."""
    program = written(TWO, "0F0 0SEND_F0 1F1", "1RECV_F0 1F0")
    with pytest.raises(ValueError, match="device 0 runs 1F1, but stage 1 is on device 1"):
        repair(program)


def test_a_repaired_program_says_so_once() -> None:
    """The source names the repair, and a second one changes nothing."""
    program = lowered(any_order(TWO, Random(1)))
    fixed = repair(program)
    assert fixed.source == "one line, messages repaired"
    assert repair(fixed) == fixed
    assert repair(Program(TWO, program.rows)).source == "messages repaired"


@settings(max_examples=60)
@given(problems(max_devices=4), st.integers(0, 2**32), st.booleans())
def test_whatever_happened_to_messages_is_undone(
    problem: Problem, seed: int, grouped: bool
) -> None:
    """Any program whose ops can run gets messages that pass every rule; its ops stay in order."""
    random = Random(seed)
    program = drifted(lowered(any_order(problem, random)), random, 20)
    program = with_weights(with_groups(program, random))
    rows = [list(row) for row in program.rows]
    for _ in range(3):
        MUTATIONS[random.choice(MESSAGE_FAULTS)](rows, random)
    broken = Program(problem, tuple(map(tuple, rows)))
    fixed = repair(broken, grouped=grouped)
    report = verify_program(fixed)
    assert (report.violations, report.deadlock) == ((), None)
    assert without_messages(fixed) == without_messages(broken)
    assert grouped or not any(isinstance(step, Group) for row in fixed.rows for step in row)
