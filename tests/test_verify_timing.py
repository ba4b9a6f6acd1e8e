"""Rules timing and exclusive: what start times a device can keep."""

from dataclasses import replace

import pytest
from executor import replay_faults
from hypothesis import given
from hypothesis import strategies as st
from strategies import one_f_one_b, schedules
from verdicts import judge, only, rules

import bubbleproof as bp
from bubbleproof.schedules.schedule import Schedule, parse_rows


def problem(
    *, transfer: float = 0, time_unit: str = "", f: float | list[float] = 1, microbatches: int = 1
) -> bp.Problem:
    """Return a fused linear problem on two devices with B of 2."""
    return bp.Problem(
        devices=2,
        microbatches=microbatches,
        cost={"F": f, "B": 2, "transfer": transfer},
        backward="fused",
        time_unit=time_unit,
    )


ROWS = ["0F0 0B0", "1F0 1B0"]


@pytest.mark.parametrize(
    ("transfer", "starts"), [(0, [[0, 4], [1, 2]]), (1, [[0, 6], [2, 3]]), (1, [[5, 20], [9, 12]])]
)
def test_starts_that_keep_their_inputs_are_fine(transfer: int, starts: list[list[int]]) -> None:
    """Tight starts without and with a transfer, and late ones from another zero."""
    report = judge(problem(transfer=transfer), ROWS, starts)
    assert report.valid
    assert report.makespan == starts[0][1] + 2 - starts[0][0]


def test_a_drawn_backward_before_its_gradient_lacks_one_tick() -> None:
    """1F1B on four devices as drawn in course material: 0B3 starts 1 before 1B3 ends.

    The same order without times is fine: device 0 waits.
    """
    on = bp.Problem(devices=4, microbatches=4, cost={"F": 1, "B": 2}, backward="fused")
    order = one_f_one_b(on)
    starts = [list(row) for row in bp.simulate(order).starts]
    position = [str(op) for op in order.rows[0]].index("0B3")
    assert bp.verify(replace(order, starts=tuple(map(tuple, starts)))).valid
    starts[0][position] -= 1
    found = only(bp.verify(replace(order, starts=tuple(map(tuple, starts)))), "timing")
    assert (found.device, found.position, found.ops) == (0, position, ("0B3", "1B3"))
    assert found.message.endswith(": 1 tick too early")
    assert bp.verify(order).valid


def test_the_lack_is_told_in_the_unit_of_the_problem_and_in_ticks() -> None:
    """0.29 us of F and 0.57 us to cross: 1F0 at 0.8 us is 0.06 us too early."""
    on = problem(f=0.29, transfer=0.57, time_unit="us")
    assert on.cost.ticks_per_unit == 100
    report = judge(on, ROWS, [[0, 400], [80, 110]])
    found = only(report, "timing")
    assert found.message == (
        "1F0 on device 1 starts at 0.8 us, but its input 0F0 on device 0 ends at 0.29 us "
        "and takes 0.57 us to cross: 0.06 us (6 ticks) too early"
    )


def test_each_input_that_is_late_is_told() -> None:
    """A backward that starts before both its forward and its gradient lacks two things."""
    on = bp.Problem(
        devices=2,
        placement={"device_of_stage": [0, 1]},
        microbatches=1,
        cost={"F": 4, "B": 2},
        backward="fused",
    )
    report = judge(on, ["0B0 0F0", "1F0 1B0"], [[0, 2], [6, 10]])
    late = [each.ops for each in report.violations if each.rule == "timing"]
    assert late == [("0B0", "0F0"), ("0B0", "1B0")]


def test_starts_out_of_row_order_are_told() -> None:
    """A row that has 0F1 first must not start it after 0F0."""
    on = problem(microbatches=2)
    rows = ["0F1 0F0 0B0 0B1", "1F0 1B0 1F1 1B1"]
    found = only(judge(on, rows, [[1, 0, 5, 8], [1, 2, 4, 5]]), "timing")
    assert (found.device, found.position, found.ops) == (0, 1, ("0F1", "0F0"))
    assert found.message == "device 0 has 0F0 after 0F1, but starts it at 0 and 0F1 at 1"


def test_an_op_without_length_may_not_lie_before_the_op_ahead_of_it() -> None:
    """In the row, 1F0 of no time follows 1F1: at the start of 1F1 it would lie before it."""
    on = bp.Problem(
        devices=1,
        placement={"device_of_stage": [0, 0], "chains": [[0], [1]]},
        microbatches=[1, 1],
        cost={"F": [3, 0], "B": [2, 2]},
        backward="fused",
    )
    assert judge(on, ["0F0 1F1 0B0 1B1"], [[0, 3, 3, 5]]).valid
    assert judge(on, ["1F1 0F0 0B0 1B1"], [[0, 0, 3, 5]]).valid
    found = only(judge(on, ["0F0 1F1 0B0 1B1"], [[0, 0, 3, 5]]), "timing")
    assert found.ops == ("0F0", "1F1")


def test_overlapping_ops_are_told_with_what_they_share() -> None:
    """Device 0 starts its second forward one tick before the first ends."""
    on = problem(f=2, microbatches=2)
    rows = ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]
    assert judge(on, rows, [[0, 2, 6, 10], [2, 4, 6, 8]]).valid
    found = only(judge(on, rows, [[0, 1, 6, 10], [2, 4, 6, 8]]), "exclusive")
    assert (found.device, found.position, found.ops) == (0, 1, ("0F0", "0F1"))
    assert found.message == (
        "device 0 runs 0F1 from 1 while 0F0 runs until 2: they overlap by 1 tick"
    )


def test_an_op_without_length_inside_another_is_told() -> None:
    """A device runs one op at a time, one that takes no time as well."""
    on = bp.Problem(
        devices=1,
        placement={"device_of_stage": [0, 0], "chains": [[0], [1]]},
        microbatches=[1, 1],
        cost={"F": [3, 0], "B": [2, 2]},
        backward="fused",
    )
    found = only(judge(on, ["0F0 1F1 0B0 1B1"], [[0, 1, 3, 5]]), "exclusive")
    assert found.ops == ("0F0", "1F1")
    assert "overlap by 0 ticks" in found.message


def test_an_op_over_several_others_is_told_for_each() -> None:
    """One long forward under three short ones."""
    on = problem(f=[9, 1], microbatches=3)
    rows = ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"]
    starts = [[0, 9, 18, 40, 42, 44], [30, 30, 30, 32, 34, 36]]
    report = judge(on, rows, starts)
    assert rules(report) == ["exclusive"]
    assert [each.ops for each in report.violations] == [("1F0", "1F1"), ("1F0", "1F2")]


@pytest.mark.parametrize(
    ("starts", "messages"),
    [
        ([[0, 4]], ["starts of 1 row for 2 rows"]),
        ([[0, 4], [1]], ["1 start for the 2 blocks of device 1"]),
        (
            [[0], [1]],
            ["1 start for the 2 blocks of device 0", "1 start for the 2 blocks of device 1"],
        ),
        ([[0, 2**53], [1, 2]], ["0B0 on device 0 starts 2^53 ticks or more from 0"]),
        ([[-(10**400), 4], [1, 2]], ["0F0 on device 0 starts 2^53 ticks or more from 0"]),
    ],
)
def test_starts_that_do_not_fit_the_rows_are_told(
    starts: list[list[int]], messages: list[str]
) -> None:
    """The report then has the lengths of the earliest starts, and no other rule looks at starts."""
    report = judge(problem(), ROWS, starts)
    assert [(each.rule, each.message) for each in report.violations] == [
        ("timing", message) for message in messages
    ]
    assert report.makespan == 6


def test_starts_are_brought_to_the_ticks_of_the_problem_that_judges() -> None:
    """Starts made in halves of a unit are judged on a problem in thirds of the same unit."""
    made_for, judged_on = problem(f=0.5), problem(f=0.3)
    schedule = Schedule(made_for, parse_rows(ROWS), ((0, 6), (1, 2)))
    assert bp.verify(schedule).makespan == 5
    assert bp.verify(schedule, judged_on).valid
    assert bp.verify(schedule, judged_on).makespan == 5
    found = only(bp.verify(schedule, problem(f=[0.6, 0.4])), "timing")
    assert found.message.endswith(": 0.1 (1 tick) too early")


@given(schedule=schedules(timed=True), data=st.data())
def test_a_shifted_start_is_refused_or_harmless(schedule: Schedule, data: st.DataObject) -> None:
    """Shifting one start breaks timing or exclusive, or a replay of the starts finds no fault."""
    starts = [list(row) for row in schedule.starts or ()]
    device = data.draw(st.sampled_from([d for d, row in enumerate(starts) if row]))
    position = data.draw(st.integers(0, len(starts[device]) - 1))
    starts[device][position] += data.draw(st.integers(-4, 4))
    shifted = replace(schedule, starts=tuple(map(tuple, starts)))
    report = bp.verify(shifted)
    assert set(rules(report)) <= {"timing", "exclusive"}
    assert report.valid == (not replay_faults(shifted))
