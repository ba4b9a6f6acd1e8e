"""Rule placement: ops on the devices of their stages, and named placements as their names say."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import one_at_a_time
from verdicts import judge, only, rules

import bubbleproof as bp
from bubbleproof.schedules.placement import Placement, parse_placement

UNIT = {"F": 1, "I": 1, "W": 1}


def problem(placement: Placement, microbatches: int | Sequence[int] = 2) -> bp.Problem:
    """Return a fused problem with unit times on a placement."""
    return bp.Problem(
        devices=placement.devices,
        placement=placement,
        microbatches=microbatches,
        cost=UNIT,
        backward="fused",
    )


def on_tables(placement: Placement) -> bp.Report:
    """Judge a schedule of the rightly named placement on a problem with these tables."""
    right = problem(parse_placement(placement.name, placement.devices))
    return bp.verify(one_at_a_time(right), problem(placement))


NAMES = ["linear", "loop:1", "loop:3", "v", "wave:1", "wave:3", "bidirectional"]


@given(name=st.sampled_from(NAMES), devices=st.integers(1, 6))
def test_the_library_places_stages_as_the_names_say(name: str, devices: int) -> None:
    """The formulas of the rule and the library's placements agree."""
    assert bp.verify(one_at_a_time(problem(parse_placement(name, devices)))).valid


def test_an_op_on_another_device_is_told_with_both_devices() -> None:
    """One forward of device 1 in the row of device 0."""
    found = only(
        judge(problem(parse_placement("linear", 2), 1), ["0F0 1F0 0B0", "1B0"]), "placement"
    )
    assert (found.device, found.position, found.ops) == (0, 1, ("1F0",))
    assert found.message == "device 0 runs 1F0 of stage 1, which is on device 1"


def test_v_rows_on_a_looped_placement_are_refused_before_they_run() -> None:
    """Device 0 holds stages 0 and 7 in the rows, but 0 and 4 in the problem."""
    rows = one_at_a_time(problem(parse_placement("v", 4), 8))
    report = bp.verify(rows, problem(parse_placement("loop:2", 4), 8))
    found = [each for each in report.violations if each.rule == "placement"]
    assert [(each.device, each.message) for each in found] == [
        (0, "device 0 runs 7F0 and 15 more ops of stage 7, which is on device 3"),
        (1, "device 1 runs 6F0 and 15 more ops of stage 6, which is on device 2"),
        (2, "device 2 runs 5F0 and 15 more ops of stage 5, which is on device 1"),
        (3, "device 3 runs 4F0 and 15 more ops of stage 4, which is on device 0"),
    ]


def test_two_stages_in_a_row_on_one_device_are_placed_right() -> None:
    """Stages 0, 1, 2, 3 on devices 0, 1, 1, 0: valid, 12 ticks (six F and six B of 1 and 2)."""
    placement = parse_placement({"device_of_stage": [0, 1, 1, 0]}, 2)
    report = judge(problem(placement, 1), ["0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"])
    assert report.valid
    assert (report.makespan, report.span) == (12, 12)


def test_a_row_beyond_the_devices_holds_no_stage() -> None:
    """An op in a third row of a problem on two devices is out of place."""
    report = judge(problem(parse_placement("linear", 2), 1), ["0F0 0B0", "1B0", "1F0"])
    assert rules(report) == ["complete", "placement"]
    assert report.violations[1].device == 2
    assert len(report.peak_memory) == 2


@pytest.mark.parametrize("name", ["linear", "loop:2", "v", "wave:3", "bidirectional"])
def test_two_exchanged_stages_are_not_what_the_name_says(name: str) -> None:
    """Tables that move stages 0 and 1 are told by stage; the ops are judged by the name."""
    right = parse_placement(name, 3)
    moved = (right.device_of_stage[1], right.device_of_stage[0], *right.device_of_stage[2:])
    report = on_tables(replace(right, device_of_stage=moved))
    assert [(each.rule, each.message) for each in report.violations] == [
        ("placement", f"placement {name} puts stage 0 on device 0, not on 1"),
        ("placement", f"placement {name} puts stage 1 on device 1, not on 0"),
    ]


def test_a_replica_of_the_wrong_layers_is_told() -> None:
    """Stage p+i must hold the weights of stage i, so that device d has layers d and p-1-d."""
    right = parse_placement("bidirectional", 4)
    found = only(on_tables(replace(right, replica_of=(0, 1, 2, 3, 0, 2, 2, 3))), "placement")
    assert found.device == 2
    assert found.message == (
        "stage 5 on device 2 holds the weights of stage 1 in placement bidirectional, "
        "not those of stage 2"
    )


def test_a_stage_with_the_weights_of_another_is_no_linear_placement() -> None:
    """Only bidirectional placements have replicas."""
    right = parse_placement("linear", 2)
    found = only(on_tables(replace(right, replica_of=(0, 0))), "placement")
    assert "stage 1 on device 1 holds the weights of stage 1" in found.message


def test_a_chain_in_the_wrong_direction_is_told() -> None:
    """Chain 1 runs from device p-1 to device 0, in ascending stages."""
    right = parse_placement("bidirectional", 3)
    turned = replace(right, chains=(right.chains[0], right.chains[1][::-1]))
    found = only(on_tables(turned), "placement")
    assert found.message == (
        "chain 1 of placement bidirectional runs from stage 3 up to 5; "
        "place 0 of it is stage 3, not 5"
    )


def test_chains_of_the_wrong_length_are_told() -> None:
    """A stage moved from chain 1 to chain 0 makes both chains wrong."""
    right = parse_placement("bidirectional", 2)
    report = on_tables(replace(right, chains=((0, 1, 3), (2,))))
    assert [each.message for each in report.violations] == [
        "chain 0 of placement bidirectional is 2 stages long, not 3",
        "chain 1 of placement bidirectional is 2 stages long, not 1",
    ]


def test_one_chain_is_not_bidirectional() -> None:
    """With another number of chains the ops are judged by the tables, the tables by the name."""
    tables = replace(parse_placement("bidirectional", 2), chains=((0, 1, 2, 3),))
    schedule = one_at_a_time(problem(tables))
    found = only(bp.verify(schedule), "placement")
    assert found.message == "placement bidirectional has 2 chains, not 1"


def test_a_chain_too_many_is_not_linear() -> None:
    """A linear placement has one chain."""
    tables = replace(parse_placement("linear", 2), chains=((0,), (1,)))
    found = only(bp.verify(one_at_a_time(problem(tables, [1, 1]))), "placement")
    assert found.message == "placement linear has 1 chain, not 2"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v", "placement v has 6 stages on 3 devices, not 3"),
        ("loop:999999999", "placement loop:999999999 has 2999999997 stages on 3 devices, not 3"),
        ("loop:0", "'loop:0' names no placement; linear or explicit would"),
        ("zigzag", "'zigzag' names no placement; linear or explicit would"),
    ],
)
def test_a_name_that_the_tables_do_not_bear_is_told(name: str, message: str) -> None:
    """The linear tables of three devices under other names; their size is not built."""
    tables = replace(parse_placement("linear", 3), name=name)
    assert only(bp.verify(one_at_a_time(problem(tables))), "placement").message == message


def test_an_explicit_placement_means_its_tables() -> None:
    """Any devices and any chains are accepted under the name explicit."""
    words = {"device_of_stage": [1, 0, 1], "chains": [[2, 0], [1]]}
    assert bp.verify(one_at_a_time(problem(parse_placement(words, 2), [1, 2]))).valid
