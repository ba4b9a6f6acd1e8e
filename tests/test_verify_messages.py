"""Rules of a program's messages and weights: each is kept, and broken in one way at a time."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import judged, problem_of, written
from random_programs import drifted, lowered, with_groups, with_weights
from strategies import any_order, problems
from verdicts import only, rules

from bubbleproof.schedules.placement import explicit
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Action, ActionKind, Group, Program, Step
from bubbleproof.verify.program_rules import verify_program

TWO = problem_of(2, 2)
KEPT = (
    "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
    "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1",
)
THREE = problem_of(3, 1)
KEPT_BY_THREE = (
    "0F0 0SEND_F0 0RECV_B0 0B0",
    "1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0",
    "2RECV_F0 2F0 2B0 2SEND_B0",
)


def changed(rows: tuple[str, ...], device: int, old: str, new: str) -> tuple[str, ...]:
    """Return rows with one text of one row replaced by another."""
    assert rows[device].count(old) == 1
    row = " ".join(rows[device].replace(old, new).split())
    return (*rows[:device], row, *rows[device + 1 :])


def test_a_program_with_all_messages_is_valid() -> None:
    """Nothing is reported where every message is there and in order; times are those of the ops."""
    report = judged(TWO, *KEPT)
    assert report.violations == report.warnings == ()
    assert report.deadlock is None
    assert (report.makespan, report.peak_memory) == (9, (2, 1))
    assert judged(THREE, *KEPT_BY_THREE).valid


def test_a_program_is_judged_by_the_rules_of_schedules_too() -> None:
    """A lost op, memory and a mixed backward are found in programs, at the place in the program."""
    limited = replace_limit(TWO, 1)
    violation = judged(limited, *KEPT).violations[0]
    assert (violation.rule, violation.device, violation.position) == ("memory", 0, 2)
    rows = changed(KEPT, 0, "0B1", "")
    assert rules(judged(TWO, *rows)) == ["complete"]
    rows = changed(KEPT, 0, "0RECV_B0", "0RECV_B0 0F1")
    again = only(judged(TWO, *rows), "complete")
    assert again.position == 5
    assert "0F1 is already at position 2 of device 0" in again.message


def replace_limit(problem: Problem, limit: int) -> Problem:
    """Return a problem with another memory limit."""
    return Problem(
        devices=problem.devices,
        placement=problem.placement,
        microbatches=problem.microbatches,
        cost=problem.cost,
        memory={"F": 1, "I": 0, "W": -1, "limit": limit},
        backward=problem.backward,
    )


def test_a_message_of_a_stage_elsewhere_has_no_peer() -> None:
    """Device 0 cannot send what stage 1 on device 1 makes."""
    rows = changed(KEPT_BY_THREE, 0, "0SEND_F0", "0SEND_F0 1SEND_F0")
    violation = only(judged(THREE, *rows), "peer")
    assert (violation.device, violation.position, violation.ops) == (0, 2, ("1SEND_F0",))
    assert violation.message == "device 0 has 1SEND_F0: stage 1 is on device 1"


def test_a_message_between_stages_on_one_device_has_no_peer() -> None:
    """On a V the two stages at its turn hand data on without a message."""
    v = problem_of(2, 1, "v")
    rows = (
        "0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 0RECV_B0 0B0",
        "1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2B0 1B0 1SEND_B0",
    )
    assert judged(v, *rows).valid
    violation = only(judged(v, *changed(rows, 1, "1F0", "1F0 1SEND_F0")), "peer")
    assert violation.message == (
        "device 1 has 1SEND_F0: stages 1 and 2 are both on device 1, which hands data on itself"
    )


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("7SEND_F0", "there is no stage 7; the stages are 0..1"),
        ("0SEND_F5", "stage 0 takes microbatches 0..1"),
    ],
)
def test_a_message_of_nothing_in_the_problem_has_no_peer(message: str, why: str) -> None:
    """Stages and microbatches out of range are told with the range."""
    violation = only(judged(TWO, *changed(KEPT, 0, "0SEND_F0", f"0SEND_F0 {message}")), "peer")
    assert violation.message == f"device 0 has {message}: {why}"


def test_a_message_without_microbatch_gets_a_verdict() -> None:
    """Python can build what no text says; it is refused and not raised."""
    program = written(TWO, *KEPT)
    rows = (program.rows[0], (*program.rows[1], Action(1, ActionKind.SEND_B)))
    assert rules(verify_program(replace(program, rows=rows))) == ["peer"]


@pytest.mark.parametrize(
    ("message", "which", "what"),
    [
        ("0SEND_B0", "first", "to send to"),
        ("0RECV_F0", "first", "to receive from"),
        ("2SEND_F0", "last", "to send to"),
        ("2RECV_B0", "last", "to receive from"),
    ],
)
def test_the_ends_of_a_chain_have_one_direction(message: str, which: str, what: str) -> None:
    """The first stage gets no activation and hands no gradient on; the last the other way round."""
    stage = int(message[0])
    old = KEPT_BY_THREE[stage].split()[0]
    rows = changed(KEPT_BY_THREE, stage, old, f"{message} {old}")
    violation = only(judged(THREE, *rows), "direction")
    assert violation.message == (
        f"device {stage} has {message}: stage {stage} is the {which} of its chain and has no stage "
        f"there {what}"
    )


def test_a_flipped_direction_leaves_two_ends_alone() -> None:
    """1SEND_F0 written as 1SEND_B0 is a second gradient, and no activation arrives."""
    report = judged(THREE, *changed(KEPT_BY_THREE, 1, "1SEND_F0", "1SEND_B0 "))
    assert rules(report)[0] == "matched"
    assert "device 1 has 1SEND_B0 again" in report.violations[0].message
    assert "device 2 receives 2RECV_F0, but device 1 never sends it; it needs 1SEND_F0" in (
        report.violations[1].message
    )


def test_a_group_holds_messages() -> None:
    """A group without any, or with a step on weights in it, is refused."""
    program = written(TWO, *KEPT)
    for messages, why in [
        ((), "it has no message"),
        ((Action(0, ActionKind.REDUCE_GRAD),), "0REDUCE_GRAD is no message"),
    ]:
        rows = ((*program.rows[0], Group(messages)), program.rows[1])
        violation = only(verify_program(replace(program, rows=rows)), "group")
        assert (violation.device, violation.position) == (0, 8)
        assert why in violation.message


@pytest.mark.parametrize(
    ("device", "dropped", "says"),
    [
        (0, "0SEND_F1", "device 1 receives 1RECV_F1, but device 0 never sends it"),
        (1, "1RECV_F1", "device 0 sends 0SEND_F1, but device 1 never receives it"),
        (0, "0RECV_B0", "device 1 sends 1SEND_B0, but device 0 never receives it"),
        (1, "1SEND_B1", "device 0 receives 0RECV_B1, but device 1 never sends it"),
    ],
)
def test_a_message_has_two_ends(device: int, dropped: str, says: str) -> None:
    """Without the other end each is reported, by what is missing and where."""
    report = judged(TWO, *changed(KEPT, device, dropped, ""))
    assert rules(report) == ["matched"]
    assert says in report.violations[0].message
    assert report.deadlock is not None


def test_who_waits_for_what_nobody_sends_is_no_cycle() -> None:
    """The lost message is told once; where the devices stand is told beside it."""
    report = judged(THREE, *changed(KEPT_BY_THREE, 1, "1SEND_F0", ""))
    assert rules(report) == ["matched"]
    assert report.deadlock == {
        "transport": "buffered",
        "blocked": {"0": "0RECV_B0", "1": "1RECV_B0", "2": "2RECV_F0"},
    }


def test_data_for_another_device_needs_a_message() -> None:
    """A program without any of a link's messages lacks each of them."""
    rows = (KEPT[0].replace("0SEND_F0 ", "").replace("0SEND_F1 ", ""), KEPT[1])
    rows = (rows[0], rows[1].replace("1RECV_F0 ", "").replace("1RECV_F1 ", ""))
    violation = only(judged(TWO, *rows), "matched")
    assert violation.ops == ("0SEND_F0", "1RECV_F0", "0SEND_F1", "1RECV_F1")
    assert violation.message == (
        "device 0 never sends 0SEND_F0 and 1 more, and device 1 never receives 1RECV_F0: "
        "stages 0 and 1 are on two devices"
    )


def test_a_message_is_sent_once() -> None:
    """A second copy is reported where it stands."""
    rows = changed(KEPT, 0, "0F1", "0SEND_F0 0F1")
    report = judged(TWO, *rows)
    violation = only(report, "matched")
    assert (violation.device, violation.position) == (0, 2)
    assert "it is already at position 1" in violation.message


def test_the_kth_send_is_the_kth_receive() -> None:
    """Exchanged receives take each other's data; nothing hangs where both are posted at once."""
    rows = changed(KEPT, 1, "1RECV_F0 1F0 1RECV_F1", "{1RECV_F1 1RECV_F0} 1F0")
    rows = changed(rows, 0, "0F0 0SEND_F0 0F1 0SEND_F1", "0F0 0F1 {0SEND_F0 0SEND_F1}")
    violation = only(judged(TWO, *rows), "order")
    assert (violation.device, violation.position) == (1, 0)
    assert violation.ops == ("0SEND_F0", "1RECV_F1")
    assert "from device 0 to device 1, send 0 is 0SEND_F0 (position 2)" in violation.message


def test_a_send_follows_its_op() -> None:
    """Sent ahead of its op, a message carries nothing."""
    violation = only(judged(TWO, *changed(KEPT, 0, "0F0 0SEND_F0", "0SEND_F0 0F0")), "produced")
    assert (violation.device, violation.position) == (0, 0)
    assert "device 0 sends 0SEND_F0 before 0F0 (position 1) has made what it carries" in (
        violation.message
    )


def test_a_receive_is_ahead_of_its_op() -> None:
    """An op before the receive of its input has none."""
    violation = only(judged(TWO, *changed(KEPT, 1, "1RECV_F0 1F0", "1F0 1RECV_F0")), "received")
    assert (violation.device, violation.position) == (1, 0)
    assert "device 1 runs 1F0 before its input arrives with 1RECV_F0 (position 1)" in (
        violation.message
    )


def test_the_gradient_of_a_split_backward_is_there_after_its_i() -> None:
    """A W between I and SEND_B is fine, a SEND_B before I is not."""
    split = problem_of(2, 1, backward="split")
    rows = ("0F0 0SEND_F0 0RECV_B0 0I0 0W0", "1RECV_F0 1F0 1I0 1W0 1SEND_B0")
    assert judged(split, *rows).valid
    rows = changed(rows, 1, "1I0 1W0 1SEND_B0", "1SEND_B0 1I0 1W0")
    assert only(judged(split, *rows), "produced").ops == ("1SEND_B0", "1I0")


WEIGHTS = (
    "0UNSHARD 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD 0RESHARD",
    "1RECV_F0 1UNSHARD 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1RESHARD 1REDUCE_GRAD 1SEND_B1",
)


@pytest.mark.parametrize(
    ("device", "old", "new", "position", "says"),
    [
        (0, "0UNSHARD 0F0", "0F0 0UNSHARD", 0, "device 0 runs 0F0 of stage 0 while its weights"),
        (0, "0UNSHARD", "", None, "device 0 has 0RESHARD: stage 0 is not unsharded"),
        (0, "0B1", "0RESHARD 0B1", None, "device 0 runs 0B1 of stage 0 while its weights"),
        (1, "1F0", "1UNSHARD 1F0", 2, "1UNSHARD: stage 1 is unsharded already"),
        (1, "1F0", "1F0 0UNSHARD", 3, "0UNSHARD: stage 0 is on device 0"),
        (1, "1F0", "1F0 9RESHARD", 3, "9RESHARD: there is no stage 9; the stages are 0..1"),
        (0, "0REDUCE_GRAD", "", None, "device 0 never reduces the gradients of stage 0"),
        (0, "0RESHARD", "0REDUCE_GRAD 0RESHARD", 10, "of stage 0 are reduced already"),
        (1, "1B1 1RESHARD 1REDUCE_GRAD", "1REDUCE_GRAD 1B1 1RESHARD", 7, "1B1 (position 8) adds"),
    ],
)
def test_weights_are_whole_when_used_and_reduced_once(
    device: int, old: str, new: str, position: int | None, says: str
) -> None:
    """Each way to break the rule is reported at its place."""
    assert judged(TWO, *WEIGHTS).violations == ()
    report = judged(TWO, *changed(WEIGHTS, device, old, new))
    assert rules(report) == ["weights"]
    told = [violation for violation in report.violations if says in violation.message]
    assert told
    assert position is None or told[0].position == position


def test_stages_left_unsharded_are_a_warning() -> None:
    """Old published files never reshard and never reduce; their order is valid all the same.

    torchtitan's example.csv and interleaved1f1b_8ranks_16mb.csv at an older commit.
    """
    rows = tuple(
        row.replace(" 0RESHARD", "").replace(" 1RESHARD", "").replace(" 0REDUCE_GRAD", "")
        for row in WEIGHTS
    )
    rows = (rows[0], rows[1].replace(" 1REDUCE_GRAD", ""))
    report = judged(TWO, *rows)
    assert report.valid
    texts = [warning.message for warning in report.warnings]
    assert "stage 0 is left unsharded" in texts[0]
    assert "stage 1 is left unsharded" in texts[1]
    assert "no stage has a REDUCE_GRAD" in texts[2]
    assert [warning.position for warning in report.warnings] == [0, 1, None]


def test_a_stage_without_microbatches_needs_no_reduction() -> None:
    """What never runs a backward has no gradients."""
    idle = Problem(
        devices=2,
        placement=explicit(2, [0, 1, 0], [[0, 1], [2]]),
        microbatches=[1, 0],
        cost={"F": 1, "I": 1, "W": 1},
        backward="fused",
    )
    rows = (
        "0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE_GRAD",
        "1RECV_F0 1F0 1B0 1SEND_B0 1REDUCE_GRAD",
    )
    assert judged(idle, *rows).valid


@settings(max_examples=60)
@given(problems(max_devices=4), st.integers(0, 2**32))
def test_whatever_is_lowered_by_rule_is_valid(problem: Problem, seed: int) -> None:
    """Messages along one line of all ops pass every rule, grouped and with weights as well."""
    random = Random(seed)
    program = lowered(any_order(problem, random))
    for each in (program, with_weights(with_groups(program, random))):
        report = verify_program(each)
        assert report.violations == report.warnings == ()
        assert report.deadlock is None


@settings(max_examples=60)
@given(problems(max_devices=4), st.integers(0, 2**32))
def test_drifting_messages_can_only_hang(problem: Problem, seed: int) -> None:
    """A program whose ops, ends and orders are right breaks no rule but deadlock."""
    random = Random(seed)
    report = verify_program(drifted(lowered(any_order(problem, random)), random, 30))
    assert set(rules(report)) <= {"deadlock"}
    assert bool(report.violations) == (report.deadlock is not None)


NUMBERS = st.one_of(st.integers(-1, 5), st.sampled_from([10**9, -(10**30), 10**30]))
ACTIONS = st.builds(Action, NUMBERS, st.sampled_from(ActionKind), st.one_of(st.none(), NUMBERS))
GROUPS = st.builds(Group, st.lists(ACTIONS, max_size=4).map(tuple))


@settings(max_examples=50)
@given(problems(), st.data())
def test_any_program_gets_a_verdict(problem: Problem, data: st.DataObject) -> None:
    """Rows without any sense are judged and nothing is raised."""
    program = lowered(any_order(problem, Random(0)))
    known: list[Step] = [step for row in program.rows for step in row]
    steps = st.one_of(st.sampled_from(known), ACTIONS, GROUPS)
    rows = data.draw(st.lists(st.lists(steps, max_size=12).map(tuple), max_size=5).map(tuple))
    report = verify_program(Program(problem, rows))
    assert report.valid == (not report.violations)
    for violation in report.violations:
        assert violation.device is None or violation.device < max(len(rows), problem.devices)
        if violation.device is not None and violation.position is not None:
            assert violation.position < len(rows[violation.device])
