"""Rule pair: what may overlap in one block."""

import pytest
from verdicts import judge, only, rules

import bubbleproof as bp
from bubbleproof.schedules.ops import Block, Op, OpKind, Pair
from bubbleproof.schedules.schedule import Schedule


def problem(
    pair: float | None = 2, *, devices: int = 1, backward: str = "fused", microbatches: int = 2
) -> bp.Problem:
    """Return a linear problem with unit times and pairs of this length."""
    return bp.Problem(
        devices=devices,
        microbatches=microbatches,
        cost={"F": 1, "I": 1, "W": 1, "pair": pair},
        backward=backward,
    )


PAIRED = "0F0 (0F1;0B0)OVERLAP_F_B 0B1"


@pytest.mark.parametrize("backward", ["fused", "free"])
def test_a_forward_and_a_backward_of_two_microbatches_may_overlap(backward: str) -> None:
    """The pair takes its own time: 1 + 2 + 2 instead of 6."""
    report = judge(problem(backward=backward), [PAIRED])
    assert report.valid
    assert report.makespan == 5


def test_a_device_without_a_pair_time_allows_none() -> None:
    """All pairs of a device are one violation."""
    found = only(
        judge(problem(None, microbatches=3), ["0F0 (0F1;0B0)OVERLAP_F_B (0F2;0B1)OVERLAP_F_B 0B2"]),
        "pair",
    )
    assert (found.device, found.position) == (0, 1)
    assert found.ops == ("(0F1;0B0)OVERLAP_F_B", "(0F2;0B1)OVERLAP_F_B")
    assert found.message == (
        "device 0 runs (0F1;0B0)OVERLAP_F_B and 1 more pair: cost.pair allows none on device 0"
    )


def test_a_split_backward_allows_no_pair() -> None:
    """A pair's backward is a B; that kind is excluded too, which rule complete tells."""
    report = judge(problem(backward="split"), ["0F0 (0F1;0B0)OVERLAP_F_B 0I1 0W1"])
    assert rules(report) == ["complete", "pair"]
    assert 'which backward "split" excludes' in report.violations[1].message


def test_two_ops_of_one_microbatch_depend_on_each_other() -> None:
    """On the last stage B follows F at once: as one block it would wait for itself."""
    found = only(judge(problem(microbatches=1), ["(0F0;0B0)OVERLAP_F_B"]), "pair")
    assert found.ops == ("0F0", "0B0")
    assert "0B0 depends on 0F0, as both are of microbatch 0" in found.message


def test_two_ops_of_one_microbatch_on_two_stages_depend_on_each_other() -> None:
    """Stage 0's forward reaches stage 2's backward through stage 1: the order hangs as well."""
    on = bp.Problem(
        devices=2,
        placement={"device_of_stage": [0, 1, 0]},
        microbatches=1,
        cost={"F": 1, "I": 1, "W": 1, "pair": 2},
        backward="fused",
    )
    report = judge(on, ["0F0 2F0 2B0 0B0", "1F0 1B0"])
    assert report.valid
    report = judge(on, ["(0F0;2B0)OVERLAP_F_B 2F0 0B0", "1F0 1B0"])
    assert rules(report) == ["causal", "pair"]


F0, B0, F1, B1 = (Op(0, kind, m) for m in (0, 1) for kind in (OpKind.FORWARD, OpKind.BACKWARD))


@pytest.mark.parametrize(
    "row", [(F0, Pair(B0, F1), B1), (Pair(F0, F1), B0, B1), (F0, F1, Pair(B0, B1))]
)
def test_a_pair_is_a_forward_and_then_a_backward(row: tuple[Block, ...]) -> None:
    """Turned around, two forwards, two backwards: none is a pair."""
    found = only(bp.verify(Schedule(problem(), (row,))), "pair")
    assert "its first op must be an F and its second a B" in found.message


def test_a_pair_with_an_op_of_another_device_is_out_of_place() -> None:
    """Rule placement tells which half stands wrong; the pair itself is independent."""
    rows = ["0F0 0F1 (1F1;0B0)OVERLAP_F_B 0B1", "1F0 1B0 1B1"]
    found = only(judge(problem(devices=2), rows), "placement")
    assert (found.device, found.position, found.ops) == (0, 2, ("1F1",))


def test_a_pair_that_its_own_row_makes_wait_for_itself_hangs() -> None:
    """1F1 needs 0F1, which overlaps 0B0, which needs 1B0, which overlaps 1F1."""
    rows = [
        "0F0 (0F1;0B0)OVERLAP_F_B 0B1",
        "1F0 (1F1;1B0)OVERLAP_F_B 1B1",
    ]
    found = only(judge(problem(devices=2), rows), "causal")
    assert found.ops == ("(0F1;0B0)OVERLAP_F_B", "(1F1;1B0)OVERLAP_F_B")
    assert "a cycle of 2 waits" in found.message
