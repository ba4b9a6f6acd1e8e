"""The report as a whole: its numbers, its order, its speed, and that it always comes."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest
from executor import Execution, replay_faults
from hypothesis import example, given, settings
from strategies import garbage_schedules, one_f_one_b, schedules
from verdicts import judge, rules

import bubbleproof as bp
from bubbleproof.schedules.ops import Op, OpKind, Pair
from bubbleproof.schedules.schedule import Schedule, parse_rows

SMALL = bp.Problem(devices=2, microbatches=1, cost={"F": 1, "B": 2}, backward="fused")
ORDER = ["complete", "placement", "causal", "timing", "exclusive", "memory", "pair"]


@given(schedule=schedules())
def test_an_order_in_which_inputs_come_first_is_valid(schedule: Schedule) -> None:
    """So it is whatever the placement, the form of the backward, the pairs and the delays."""
    report = bp.verify(schedule)
    assert report.violations == ()
    assert not Execution(schedule).faults
    assert not replay_faults(schedule)


@given(schedule=schedules())
def test_makespan_and_span_are_those_of_the_simulation(schedule: Schedule) -> None:
    """Two codes that share nothing find the same times, from starts and from the order alone."""
    for each in (schedule, replace(schedule, starts=None)):
        report, timeline = bp.verify(each), bp.simulate(each)
        assert (report.makespan, report.span) == (timeline.makespan, timeline.span)
        assert report.peak_memory == timeline.peak_memory


@given(schedule=schedules(timed=False))
def test_earliest_starts_keep_every_rule(schedule: Schedule) -> None:
    """The times that a simulation gives an order are valid as starts."""
    timeline = bp.simulate(schedule)
    assert bp.verify(replace(schedule, starts=timeline.starts)).valid


@settings(max_examples=60)
@example(schedule=Schedule(SMALL, (), ((10**400,),)))
@example(schedule=Schedule(SMALL, ((), ()), ((), ())))
@example(
    schedule=Schedule(SMALL, ((Pair(Op(-1, OpKind.BACKWARD, 10**30), Op(0, OpKind.FORWARD, 0)),),))
)
@given(schedule=garbage_schedules())
def test_any_garbage_gets_a_verdict(schedule: Schedule) -> None:
    """Whatever rows and starts are, a report comes, with the rules in the order of SPEC.md."""
    report = bp.verify(schedule)
    assert len(report.peak_memory) == schedule.problem.devices
    assert rules(report) == sorted(rules(report), key=ORDER.index)
    for violation in report.violations:
        assert violation.message
        if violation.position is not None:
            assert violation.device is not None
            assert schedule.rows[violation.device][violation.position] is not None
    if report.valid:
        assert not Execution(schedule).faults


@settings(max_examples=40)
@given(schedule=garbage_schedules(), other=schedules())
def test_a_schedule_gets_a_verdict_on_any_other_problem(
    schedule: Schedule, other: Schedule
) -> None:
    """Devices, stages, microbatches and ticks need not be those that it was made for."""
    assert len(bp.verify(schedule, other.problem).peak_memory) == other.problem.devices
    assert len(bp.verify(other, schedule.problem).peak_memory) == schedule.problem.devices


def test_one_schedule_can_break_every_rule() -> None:
    """All faults are told at once, in the order of the rules."""
    problem = bp.Problem(
        devices=3,
        microbatches=2,
        cost={"F": 2, "B": 2},
        memory={"F": 1, "B": -1, "limit": [1, 9, 9]},
        backward="fused",
    )
    rows = [
        "0F0 0F1 0B0 0B1",
        "1F0 (1F1;1B0)OVERLAP_F_B 1B1",
        "2F1 2B1 2F0 2B0 2B0 0F0",
    ]
    starts = [[0, 1, 30, 32], [2, 20, 40], [9, 11, 5, 7, 50, 52]]
    report = judge(problem, rows, starts)
    assert rules(report) == ["complete", "causal", "timing", "exclusive", "memory", "pair"]
    moved = [rows[0], rows[1].replace("1B1", "2B1"), rows[2].replace("2B1", "1B1")]
    assert rules(judge(problem, moved, starts)) == ORDER


def test_importing_the_verifier_stays_light() -> None:
    """The command line imports it at once: no numpy, networkx or solver comes with it."""
    code = (
        "import sys, bubbleproof.verify.rules; "
        "print(sorted({'numpy', 'networkx', 'ortools', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_four_hundred_thousand_ops_take_seconds() -> None:
    """1F1B on 64 devices with 2,100 microbatches, well below what a person would wait for."""
    problem = bp.Problem(devices=64, microbatches=2100, cost={"F": 10, "I": 12, "W": 8})
    schedule = one_f_one_b(problem)
    began = time.perf_counter()
    assert bp.verify(schedule).valid
    assert time.perf_counter() - began < 10


def test_an_empty_device_is_no_fault() -> None:
    """A device that holds no stage has an empty row."""
    problem = bp.Problem(
        devices=2,
        placement={"device_of_stage": [1]},
        microbatches=1,
        cost={"F": 1, "B": 2},
        backward="fused",
    )
    report = bp.verify(Schedule(problem, parse_rows(["", "0F0 0B0"]), ((), (5, 6))))
    assert report.valid
    assert (report.makespan, report.span) == (3, 3)
    assert report.peak_memory == (0, 1)
