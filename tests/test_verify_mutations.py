"""One fault in a valid schedule is refused by the rule that it breaks, or does no harm.

Harm is what an independent execution shows: it hangs, it computes something else, or it runs out
of memory.
"""

from dataclasses import replace
from random import Random

import pytest
from executor import Execution
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from row_mutations import (
    B,
    I,
    RowMutation,
    W,
    change_kind,
    drop,
    duplicate,
    exchange,
    exchange_microbatches,
    exchange_rows,
    move_away,
    places,
    rename_microbatch,
)
from strategies import any_order, one_f_one_b, schedules
from verdicts import rules

import bubbleproof as bp
from bubbleproof.schedules.ops import Op
from bubbleproof.schedules.placement import bidirectional
from bubbleproof.schedules.schedule import Schedule

ALWAYS_COMPLETE: list[RowMutation] = [drop, duplicate, rename_microbatch]
ANY: list[RowMutation] = [
    *ALWAYS_COMPLETE,
    move_away,
    exchange,
    exchange_rows,
    exchange_microbatches,
    change_kind,
]


def mutated(schedule: Schedule, mutate: RowMutation, random: Random) -> Schedule:
    """Return a schedule with one fault and without starts."""
    rows = [list(row) for row in schedule.rows]
    assume(places(rows))
    mutate(rows, random)
    assume(len(rows) > 1 or mutate is not move_away)
    return replace(schedule, rows=tuple(map(tuple, rows)), starts=None)


@pytest.mark.parametrize("mutate", ANY)
@settings(max_examples=60)
@given(schedule=schedules(timed=False), random=st.randoms(use_true_random=False))
def test_a_fault_is_refused_or_an_execution_shows_no_harm(
    mutate: RowMutation, schedule: Schedule, random: Random
) -> None:
    """What verify accepts runs to its end and computes the same; what hangs is refused."""
    broken = mutated(schedule, mutate, random)
    report = bp.verify(broken)
    excluded = any('backward is "' in each.message for each in report.violations)
    assert report.valid == (not Execution(broken).faults) or excluded


@pytest.mark.parametrize("mutate", ALWAYS_COMPLETE)
@given(schedule=schedules(timed=False), random=st.randoms(use_true_random=False))
def test_a_wrong_set_of_ops_breaks_complete_and_little_else(
    mutate: RowMutation, schedule: Schedule, random: Random
) -> None:
    """No op missing, doubled or renumbered goes unseen, and few violations follow from it."""
    report = bp.verify(mutated(schedule, mutate, random))
    assert rules(report)[0] == "complete"
    assert set(rules(report)) <= {"complete", "causal"}
    assert len(report.violations) <= 4


@given(schedule=schedules(timed=False), random=st.randoms(use_true_random=False))
def test_an_op_on_another_device_breaks_placement_alone_or_hangs(
    schedule: Schedule, random: Random
) -> None:
    """One violation of placement, and at most the cycle that the moved op makes."""
    report = bp.verify(mutated(schedule, move_away, random))
    assert [each.rule for each in report.violations] in (["placement"], ["placement", "causal"])


@given(schedule=schedules(timed=False), random=st.randoms(use_true_random=False))
def test_an_exchange_within_a_row_breaks_causal_or_nothing(
    schedule: Schedule, random: Random
) -> None:
    """The ops stay complete and in place."""
    report = bp.verify(mutated(schedule, exchange, random))
    assert [each.rule for each in report.violations] in ([], ["causal"])


@given(schedule=schedules(timed=False), random=st.randoms(use_true_random=False))
def test_a_split_b_or_a_merged_i_and_w_is_as_good_as_before(
    schedule: Schedule, random: Random
) -> None:
    """A B written as I and W and an I written as B (without its W) stay valid where both may be.

    Elsewhere the form that the backward excludes is refused by rule complete.
    """
    rows = [list(row) for row in schedule.rows]
    backwards = [
        (d, i, op)
        for d, i in places(rows)
        if isinstance(op := rows[d][i], Op) and op.kind in (I, B)
    ]
    assume(backwards)
    device, position, op = random.choice(backwards)
    if op.kind is B:
        rows[device][position : position + 1] = [replace(op, kind=I), replace(op, kind=W)]
    else:
        rows[device][position] = replace(op, kind=B)
        rows[device].remove(replace(op, kind=W))
    report = bp.verify(replace(schedule, rows=tuple(map(tuple, rows)), starts=None))
    free = schedule.problem.backward is bp.Backward.FREE
    assert rules(report) == ([] if free else ["complete"])


@given(seed=st.integers(0, 1000))
def test_an_order_for_another_number_of_microbatches_is_incomplete(seed: int) -> None:
    """Too few and too many microbatches are both refused by complete alone."""
    few, many = (
        bp.Problem(devices=2, microbatches=n, cost={"F": 1, "I": 1, "W": 1}) for n in (2, 4)
    )
    for made_for, judged_on in ((few, many), (many, few)):
        report = bp.verify(any_order(made_for, Random(seed)), judged_on)
        assert rules(report) == ["complete"]


@pytest.mark.parametrize("chain", [0, 1])
def test_rows_whose_chain_runs_backwards_are_refused(chain: int) -> None:
    """1F1B from the far end of a chain hangs, and tables that turn the chain do not excuse it."""
    p, right = 3, bidirectional(3)
    ahead = one_f_one_b(
        bp.Problem(devices=p, microbatches=4, cost={"F": 1, "B": 2}, backward="fused")
    )
    order = [list(row) for row in (ahead.rows if chain else ahead.rows[::-1])]
    for stage in right.chains[chain]:
        device = right.device_of_stage[stage]
        order[device] = [replace(op, stage=stage) for op in order[device] if isinstance(op, Op)]
    turned = list(right.chains)
    turned[chain] = turned[chain][::-1]
    lawful, tampered = (
        bp.Problem(
            devices=p,
            placement=placement,
            microbatches=[4, 0] if chain == 0 else [0, 4],
            cost={"F": 1, "B": 2},
            backward="fused",
        )
        for placement in (right, replace(right, chains=tuple(turned)))
    )
    schedule = Schedule(lawful, tuple(map(tuple, order)))
    assert rules(bp.verify(schedule)) == ["causal"]
    assert Execution(schedule).faults
    assert not Execution(replace(schedule, problem=tampered)).faults
    assert rules(bp.verify(schedule, tampered)) == ["placement", "causal"]


def test_every_exchange_of_neighbours_in_1f1b_is_judged_as_it_runs() -> None:
    """All exchanges of two neighbours: those that hang are refused by causal, the others run."""
    on = bp.Problem(
        devices=4, microbatches=5, cost={"F": 1, "I": 1, "W": 1}, memory={"F": 1, "W": -1}
    )
    schedule = one_f_one_b(on)
    verdicts: list[bool] = []
    for device, row in enumerate(schedule.rows):
        for position in range(len(row) - 1):
            turned = (*row[:position], row[position + 1], row[position], *row[position + 2 :])
            rows = (*schedule.rows[:device], turned, *schedule.rows[device + 1 :])
            broken = replace(schedule, rows=rows)
            report = bp.verify(broken)
            assert rules(report) in ([], ["causal"])
            assert report.valid == (not Execution(broken).faults)
            verdicts.append(report.valid)
    assert any(verdicts)
    assert not all(verdicts)
