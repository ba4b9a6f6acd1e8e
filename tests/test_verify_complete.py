"""Rule complete: each op once, in one form, and nothing else."""

import pytest
from strategies import one_at_a_time, one_f_one_b
from verdicts import judge, only, rules

import bubbleproof as bp
from bubbleproof.schedules.ops import Op, OpKind
from bubbleproof.schedules.schedule import Schedule


def problem(backward: str = "split", *, microbatches: int = 2) -> bp.Problem:
    """Return a linear problem on two devices with unit times."""
    return bp.Problem(
        devices=2,
        microbatches=microbatches,
        cost={"F": 1, "I": 1, "W": 1},
        backward=backward,
    )


KEPT = {
    "split": ["0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1I0 1W0 1F1 1I1 1W1"],
    "fused": ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"],
    "free": ["0F0 0F1 0B0 0I1 0W1", "1F0 1I0 1F1 1B1 1W0"],
}


@pytest.mark.parametrize("backward", KEPT)
def test_every_op_once_is_complete(backward: str) -> None:
    """Each form of backward has a valid schedule, mixed over microbatches where it is free."""
    assert judge(problem(backward), KEPT[backward]).valid


def test_a_missing_forward_is_named_without_a_position() -> None:
    """A forward that no row has is told on the device of its stage."""
    found = only(judge(problem(), [KEPT["split"][0], "1F0 1I0 1W0 1I1 1W1"]), "complete")
    assert (found.device, found.position, found.ops) == (1, None, ("1F1",))
    assert found.message == "stage 1 (device 1) never runs F of microbatch 1"


def test_missing_ops_of_a_stage_are_one_violation_for_each_kind() -> None:
    """An empty row lacks the forwards and the backwards of its stage; nothing else is told."""
    report = judge(problem(microbatches=3), ["0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2", ""])
    assert [each.message for each in report.violations] == [
        "stage 1 (device 1) never runs F of microbatches 0..2",
        "stage 1 (device 1) never runs I and W of microbatches 0..2",
    ]
    assert report.violations[1].ops == ("1I0", "1W0", "1I1", "1W1", "1I2", "1W2")
    assert report.makespan is None
    assert report.span is None


def test_missing_microbatches_are_told_in_runs() -> None:
    """Microbatches 0 and 2..3 of five are missing."""
    rows = ["0F1 0F4 0B1 0B4", "1F1 1B1 1F4 1B4"]
    report = judge(problem("fused", microbatches=5), rows)
    assert report.violations[0].message == (
        "stage 0 (device 0) never runs F of microbatches 0, 2..3"
    )


@pytest.mark.parametrize(
    ("backward", "message"),
    [
        ("fused", "stage 0 (device 0) never runs B of microbatch 1"),
        ("free", "stage 0 (device 0) never runs B of microbatch 1 (or its I and W)"),
    ],
)
def test_a_missing_backward_is_named_in_the_form_that_is_allowed(
    backward: str, message: str
) -> None:
    """Fused problems lack a B; free ones a B, or an I and a W."""
    found = only(judge(problem(backward), ["0F0 0F1 0B0", "1F0 1B0 1F1 1B1"]), "complete")
    assert (found.ops, found.message) == (("0B1",), message)


def test_a_lost_weight_gradient_is_an_error() -> None:
    """An I whose W never runs is refused though the order runs to its end."""
    report = judge(problem(), ["0F0 0F1 0I0 0W0 0I1", KEPT["split"][1]])
    found = only(report, "complete")
    assert found.ops == ("0W1",)
    assert "the weight gradient of a lone I is lost" in found.message
    assert report.makespan == 7


def test_a_weight_gradient_without_its_input_gradient_is_an_error() -> None:
    """A W whose I never runs has nothing to work on."""
    found = only(judge(problem(), ["0F0 0F1 0I0 0W0 0W1", KEPT["split"][1]]), "complete")
    assert found.ops == ("0I1",)


def test_a_second_copy_is_told_where_it_stands() -> None:
    """The later of two copies is the one too many."""
    found = only(judge(problem(), ["0F0 0F1 0I0 0W0 0F1 0I1 0W1", KEPT["split"][1]]), "complete")
    assert (found.device, found.position, found.ops) == (0, 4, ("0F1",))
    assert found.message == (
        "device 0 runs 0F1 again: 0F1 is already at position 1 of device 0; each op runs once"
    )


def test_a_copy_on_another_device_is_the_one_too_many() -> None:
    """The copy on the stage's own device counts, though the other stands in an earlier row."""
    found = only(judge(problem(), ["1W1 0F0 0F1 0I0 0W0 0I1 0W1", KEPT["split"][1]]), "complete")
    assert (found.device, found.position, found.ops) == (0, 0, ("1W1",))


def test_an_op_twice_in_one_pair_is_a_copy() -> None:
    """Both halves of a pair count as ops of the row."""
    on = bp.Problem(
        devices=1, microbatches=1, cost={"F": 1, "I": 1, "W": 1, "pair": 2}, backward="fused"
    )
    op = Op(0, OpKind.FORWARD, 0)
    report = bp.verify(Schedule(on, ((bp.Pair(op, op), Op(0, OpKind.BACKWARD, 0)),)))
    assert rules(report) == ["complete", "pair"]


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("2F0", "there is no stage 2; the stages are 0..1"),
        ("0F2", "stage 0 takes microbatches 0..1 of 2"),
    ],
)
def test_an_op_outside_the_problem_is_told(op: str, why: str) -> None:
    """Neither other stages nor other microbatches are accepted, and no other rule repeats it."""
    found = only(judge(problem(), [f"{KEPT['split'][0]} {op}", KEPT["split"][1]]), "complete")
    assert (found.device, found.position, found.ops) == (0, 6, (op,))
    assert found.message == f"device 0 runs {op}: {why}"


def test_a_microbatch_of_the_other_chain_is_out_of_range() -> None:
    """Chain 0 takes 0..n0-1 and chain 1 the next: stage 2 of chain 1 has no microbatch 0."""
    on = bp.Problem(
        devices=2,
        placement="bidirectional",
        microbatches=[1, 1],
        cost={"F": 1, "I": 1, "W": 1},
        backward="fused",
    )
    kept = ["0F0 3F1 3B1 0B0", "2F1 1F0 1B0 2B1"]
    assert judge(on, kept).valid
    report = judge(on, [kept[0], "2F0 1F0 1B0 2B1"])
    assert [(each.rule, each.ops) for each in report.violations] == [
        ("complete", ("2F0",)),
        ("complete", ("2F1",)),
    ]
    assert "stage 2 takes microbatch 1 of 2" in report.violations[0].message


@pytest.mark.parametrize(
    ("backward", "row", "ops"),
    [
        ("split", "0F0 0F1 0B0 0I1 0W1", ("0B0",)),
        ("fused", "0F0 0F1 0B0 0I1", ("0I1",)),
    ],
)
def test_a_kind_that_the_backward_excludes_is_told(
    backward: str, row: str, ops: tuple[str, ...]
) -> None:
    """A B on a split problem and an I on a fused one are refused; what they replace is there."""
    report = judge(problem(backward), [row, KEPT[backward][1]])
    excluded = report.violations[0]
    assert (excluded.rule, excluded.ops) == ("complete", ops)
    assert f'backward is "{backward}"' in excluded.message


def test_an_excluded_form_is_one_violation_for_each_stage_and_kind() -> None:
    """A whole schedule in the wrong form does not flood the report."""
    on = problem("split", microbatches=50)
    fused = one_f_one_b(problem("fused", microbatches=50))
    report = bp.verify(fused, on)
    assert [(each.rule, each.device, each.position) for each in report.violations] == [
        ("complete", 0, 2),
        ("complete", 1, 1),
    ]
    assert "0B0 and 49 more ops" in report.violations[0].message


@pytest.mark.parametrize("extra", ["0I0", "0W0", "0I0 0W0"])
def test_a_fused_and_a_split_backward_of_one_microbatch_are_told(extra: str) -> None:
    """A B beside an I or a W of the same microbatch and stage would count it twice."""
    row = f"0F0 0F1 0B0 {extra} 0B1"
    found = only(judge(problem("free"), [row, KEPT["fused"][1]]), "complete")
    assert "as a B and as I or W" in found.message
    assert (found.device, found.position) == (0, 2)
    assert set(found.ops) == {"0B0", *extra.split()}


@pytest.mark.parametrize("rows", [KEPT["fused"][:1], [*KEPT["fused"], ""], []])
def test_another_number_of_rows_than_devices_is_told_first(rows: list[str]) -> None:
    """One row too few, one too many, none at all."""
    found = judge(problem("fused"), rows).violations[0]
    assert found.rule == "complete"
    assert "for 2 devices; each device has one row" in found.message


def test_a_schedule_for_more_microbatches_is_refused_without_a_flood() -> None:
    """A schedule of 40 microbatches on a problem of 20 has ops out of range in each row."""
    schedule = one_at_a_time(problem(microbatches=40))
    report = bp.verify(schedule, problem(microbatches=20))
    assert [(each.rule, each.device) for each in report.violations] == [
        ("complete", 0),
        ("complete", 1),
    ]


@pytest.mark.parametrize("microbatches", [2, 4, 8])
def test_each_microbatch_of_a_bidirectional_schedule_runs_in_one_direction(
    microbatches: int,
) -> None:
    """With two devices the ops still grow with n, four stage passes for two microbatches."""
    on = bp.Problem(
        devices=2,
        placement="bidirectional",
        microbatches=microbatches,
        cost={"F": 1, "I": 1, "W": 1},
        backward="fused",
    )
    schedule = one_at_a_time(on)
    assert bp.verify(schedule).valid
    assert sum(map(len, schedule.rows)) == 4 * microbatches
    ways = {
        (op.stage // 2, op.microbatch) for row in schedule.rows for op in row if isinstance(op, Op)
    }
    assert len(ways) == microbatches
