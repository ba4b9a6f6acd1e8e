"""Rule replicas: gradients of copies are summed with each other's and with nothing else."""

import pytest
from programs import judged, problem_of, written
from verdicts import only, rules

import bubbleproof as bp
from bubbleproof.schedules.lower import lower
from bubbleproof.schedules.program import Action, ActionKind, Program
from bubbleproof.schedules.weights import Reduction
from bubbleproof.verify.program_rules import verify_program
from bubbleproof.verify.target import verify_for_target

COMPUTED = (
    "0F0 {0SEND_F0 3RECV_F1} 3F1 3B1 {3SEND_B1 0RECV_B0} 0B0",
    "2F1 {2SEND_F1 1RECV_F0} 1F0 1B0 {1SEND_B0 2RECV_B1} 2B1",
)
BOTH = problem_of(2, (1, 1), "bidirectional")


def test_copies_are_reduced_in_one_order() -> None:
    """Stages 0 and 2, and 1 and 3, are copies: both devices take them in one order, either one."""
    ahead = judged(
        BOTH,
        f"{COMPUTED[0]} 0REDUCE_GRAD 3REDUCE_GRAD",
        f"{COMPUTED[1]} 2REDUCE_GRAD 1REDUCE_GRAD",
    )
    back = judged(
        BOTH,
        f"{COMPUTED[0]} 3REDUCE_GRAD 0REDUCE_GRAD",
        f"{COMPUTED[1]} 1REDUCE_GRAD 2REDUCE_GRAD",
    )
    assert (ahead.violations, ahead.warnings) == ((), ())
    assert (back.violations, back.warnings) == ((), ())


def test_copies_in_two_orders_are_found_where_the_second_device_differs() -> None:
    """Each would sum a layer's gradients with those of another layer."""
    found = only(
        judged(
            BOTH,
            f"{COMPUTED[0]} 0REDUCE_GRAD 3REDUCE_GRAD",
            f"{COMPUTED[1]} 1REDUCE_GRAD 2REDUCE_GRAD",
        ),
        "replicas",
    )
    assert (found.device, found.position) == (1, 6)
    assert found.ops == ("0REDUCE_GRAD", "1REDUCE_GRAD")
    assert "the gradients of stages 0 and 1 are summed with each other" in found.message


def test_a_copy_without_its_partner_is_told_once_by_weights() -> None:
    """The order of the others is judged without it."""
    report = judged(BOTH, f"{COMPUTED[0]} 0REDUCE_GRAD 3REDUCE_GRAD", f"{COMPUTED[1]} 1REDUCE_GRAD")
    found = only(report, "weights")
    assert found.ops == ("2REDUCE_GRAD",)


def test_a_copy_that_no_microbatch_passes_is_reduced_as_well() -> None:
    """One microbatch goes down; device 1 would sum stage 1 where device 0 sums stage 0."""
    down = problem_of(2, (1, 0), "bidirectional")
    rows = ("0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0")
    report = judged(down, f"{rows[0]} 0REDUCE_GRAD", f"{rows[1]} 1REDUCE_GRAD")
    assert [violation.ops for violation in report.violations] == [
        ("2REDUCE_GRAD",),
        ("3REDUCE_GRAD",),
    ]
    whole = judged(
        down,
        f"{rows[0]} 0REDUCE_GRAD 3REDUCE_GRAD",
        f"{rows[1]} 2REDUCE_GRAD 1REDUCE_GRAD",
    )
    assert whole.valid


def test_a_partner_on_the_wrong_device_is_told_by_weights() -> None:
    """Stage p+i's gradients are on device p-1-i alone."""
    report = judged(
        BOTH,
        f"{COMPUTED[0]} 0REDUCE_GRAD 3REDUCE_GRAD 2REDUCE_GRAD",
        f"{COMPUTED[1]} 1REDUCE_GRAD",
    )
    assert rules(report) == ["weights"]
    assert "stage 2 is on device 1" in report.violations[0].message


def test_a_reduction_of_copies_in_mid_row_is_warned_of() -> None:
    """Each device stands there until the other comes; the other may wait for what is behind."""
    first = COMPUTED[0].replace("3B1 ", "3B1 3REDUCE_GRAD ")
    report = judged(BOTH, f"{first} 0REDUCE_GRAD", f"{COMPUTED[1]} 1REDUCE_GRAD 2REDUCE_GRAD")
    assert report.valid
    (warning,) = report.warnings
    assert (warning.device, warning.position, warning.ops) == (0, 4, ("3REDUCE_GRAD",))


@pytest.mark.parametrize("reduction", list(Reduction))
@pytest.mark.parametrize(("devices", "microbatches"), [(2, 4), (4, 8), (4, 10), (6, 12)])
def test_lowered_dualpipe_reduces_each_copy_with_its_partner(
    devices: int, microbatches: int, reduction: Reduction
) -> None:
    """No violation and no warning; swapping two reductions of any one device is caught."""
    problem = problem_of(devices, microbatches, "bidirectional", "split")
    program = lower(bp.families.dualpipe(problem), most_unsharded=None, reduction=reduction)
    report = verify_program(program)
    assert (report.violations, report.warnings) == ((), ())
    for device in range(devices):
        rows = list(program.rows)
        own = [s for s in rows[device] if isinstance(s, Action) and not s.kind.is_message]
        assert [s.kind for s in own] == [ActionKind.REDUCE_GRAD] * 2
        rows[device] = tuple(
            own[1 - own.index(s)] if isinstance(s, Action) and s in own else s for s in rows[device]
        )
        assert rules(verify_program(Program(problem, tuple(rows)))) == ["replicas"]


def test_an_only_device_that_holds_both_copies_sums_them_itself() -> None:
    """With one device no order can be wrong."""
    problem = problem_of(1, (1, 1), "bidirectional")
    for row in ("0F0 0B0 1F1 1B1 0REDUCE_GRAD 1REDUCE_GRAD", "0F0 0B0 1F1 1B1"):
        report = judged(problem, row)
        assert (report.violations, report.warnings) == ((), ())


def test_dualpipe_takes_the_oldest_gradient_and_another_order_is_noted_for_its_runtime() -> None:
    """Both run where microbatches have names; a queue without names would run another W."""
    problem = problem_of(1, (2, 2), "bidirectional", "split")
    row = "0F0 0I0 1F2 1I2 0F1 0I1 {} 1F3 1I3 1W3"
    oldest = written(problem, row.format("0W0 1W2 0W1"))
    other = written(problem, row.format("1W2 0W0 0W1"))
    assert verify_program(oldest).valid
    assert verify_program(other).valid
    assert not [n for n in verify_for_target(oldest).notes if "queues" in n.message]
    (note,) = [n for n in verify_for_target(other).notes if "queues" in n.message]
    assert (note.position, note.ops) == (6, ("1W2", "0I0"))


@pytest.mark.parametrize(("devices", "microbatches"), [(2, 4), (4, 8), (8, 20)])
def test_no_dualpipe_is_noted_for_its_queue(devices: int, microbatches: int) -> None:
    """The published order takes the oldest of either chain."""
    problem = problem_of(devices, microbatches, "bidirectional", "split")
    notes = verify_for_target(bp.families.dualpipe(problem)).notes
    assert not [note for note in notes if "queues" in note.message]
