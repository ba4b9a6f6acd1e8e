"""Measured timelines: in a schedule's file, beside the prediction, and as a problem again."""

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

import bubbleproof as bp
from bubbleproof.chart import chart
from bubbleproof.cli import main
from bubbleproof.schedules import families
from bubbleproof.schedules.deviation import deviation, remeasured
from bubbleproof.schedules.intervals import Interval, measured_timeline, unit_ns
from bubbleproof.schedules.ops import ops_of
from bubbleproof.schedules.palette import INK
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.run import Run
from bubbleproof.schedules.schedule import Measured, Schedule
from bubbleproof.schedules.simulate import simulate

NS_PER_MS = 10**6

PROBLEM = Problem(
    devices=2,
    microbatches=3,
    cost={"F": 10, "I": 12, "W": 8, "transfer": 1},
    time_unit="ms",
    name="two",
)
SCHEDULE = families.zb_h1(PROBLEM)
PAIRS = Problem(
    devices=2,
    placement="bidirectional",
    microbatches=4,
    cost={"F": 10, "I": 12, "W": 8, "pair": 26},
    backward="free",
    time_unit="ms",
)


def ran(schedule: Schedule, *, slower: Fraction = Fraction(1), later_ns: int = 0) -> Schedule:
    """Return a schedule with a run that took its own times, stretched and shifted."""
    timeline = simulate(schedule)
    per_tick = slower * NS_PER_MS / schedule.problem.cost.ticks_per_unit

    def stretched(times: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(later_ns + int(tick * per_tick) for tick in row) for row in times)

    measured = Measured(
        stretched(timeline.starts), stretched(timeline.ends), NS_PER_MS, "by arithmetic"
    )
    return replace(schedule, measured=measured)


def written(folder: Path, **changes: object) -> Path:
    """Write a schedule's file with a run in which some words are changed."""
    path = folder / "ran.json"
    bp.save(ran(SCHEDULE), path)
    words = json.loads(path.read_text(encoding="utf-8"))
    words["measured"] = {**words["measured"], **changes}
    path.write_text(json.dumps(words), encoding="utf-8")
    return path


def test_a_run_is_kept_in_the_schedule_s_file(tmp_path: Path) -> None:
    """Exactly; the rest of the file is as without it."""
    path = tmp_path / "ran.json"
    bp.save(ran(SCHEDULE), path)
    assert bp.load_schedule(path) == ran(SCHEDULE)
    words = json.loads(path.read_text(encoding="utf-8"))
    del words["measured"]
    path.write_text(json.dumps(words), encoding="utf-8")
    assert bp.load_schedule(path) == SCHEDULE


def test_a_run_stays_where_only_the_order_is_taken(tmp_path: Path) -> None:
    """Start times are a claim about the problem; what was measured is none."""
    path = tmp_path / "ran.json"
    bp.save(ran(SCHEDULE), path)
    slower = replace(PROBLEM, cost=replace(PROBLEM.cost, F=(20, 20)))
    loaded = bp.load_schedule(path, slower, order_only=True)
    assert loaded.measured == ran(SCHEDULE).measured
    other_unit = replace(PROBLEM, time_unit="s")
    assert bp.load_schedule(path, other_unit, order_only=True).measured is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"starts": None}, r"measured\.starts is missing"),
        ({"ticks_per_unit": None}, r"measured\.ticks_per_unit is missing"),
        ({"ticks_per_unit": 0}, r"measured\.ticks_per_unit: 0 is out of range"),
        ({"starts": 3}, r"measured\.starts: a list of ticks for each device is expected, not 3"),
        ({"starts": [[0]]}, r"measured\.starts: 1 lists for 2 rows"),
        ({"starts": [[0], 7]}, r"measured\.starts\[1\]: a list of ticks is expected, not 7"),
        ({"starts": [[0], [0]]}, r"measured\.starts\[0\]: 1 times for 9 ops"),
        ({"ends": [[0.5] * 9] * 2}, r"measured\.ends\[0\]\[0\]: 0\.5 is not a whole number"),
        ({"ends": [[-1] * 9] * 2}, r"measured\.ends\[0\]\[0\]: -1 is out of range"),
        ({"ends": [[0] * 9] * 2}, r"measured\.ends\[0\]\[1\]: 0 is before its start, 10000000"),
        ({"stops": []}, r"measured: 'stops' is unknown"),
    ],
)
def test_a_run_that_does_not_fit_its_rows_is_refused(
    tmp_path: Path, changes: dict[str, object], expected: str
) -> None:
    """With the field, its value, and what would be right."""
    with pytest.raises(ValueError, match=expected):
        bp.load_schedule(written(tmp_path, **changes))


def test_a_run_that_is_no_object_is_refused(tmp_path: Path) -> None:
    """With what one looks like."""
    path = written(tmp_path)
    words = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**words, "measured": [1]}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"measured: an object is expected, as .*, not \[1\]"):
        bp.load_schedule(path)


def test_a_run_that_fits_no_file_is_not_written(tmp_path: Path) -> None:
    """A timeline of other rows is a mistake of the caller's."""
    measured = Measured(((0,),), ((1,),), 1)
    with pytest.raises(ValueError, match=r"measured\.starts: 1 lists for 2 rows"):
        bp.save(replace(SCHEDULE, measured=measured), tmp_path / "never.json")


@given(slower=st.fractions(Fraction(1, 2), 3, max_denominator=50), later_ns=st.integers(0, 10**12))
def test_a_run_is_off_by_what_it_was_stretched_and_not_by_when_it_was(
    slower: Fraction, later_ns: int
) -> None:
    """Every op kind, the makespan and the span alike, whatever the clock's zero."""
    compared = deviation(ran(SCHEDULE, slower=slower, later_ns=later_ns))
    assert compared.measured.first_ticks == 0
    assert compared.makespan_off == pytest.approx(float(slower) - 1, abs=1e-6)
    assert [each.kind for each in compared.kinds] == ["F", "I", "W"]
    for each in compared.kinds:
        assert each.count == 6
        assert each.median_off == pytest.approx(float(slower) - 1, abs=1e-5)
        assert each.worst_off == pytest.approx(float(slower) - 1, abs=1e-5)


def test_the_worst_op_is_named() -> None:
    """One op that takes twice its time is the worst of its kind, and the median does not move."""
    schedule = ran(SCHEDULE)
    assert schedule.measured is not None
    row = SCHEDULE.rows[1]
    position = [str(block) for block in row].index("1I1")
    ends = [list(each) for each in schedule.measured.ends]
    ends[1][position] += 12 * NS_PER_MS
    measured = replace(schedule.measured, ends=tuple(map(tuple, ends)))
    by_kind = {each.kind: each for each in deviation(replace(SCHEDULE, measured=measured)).kinds}
    assert (by_kind["I"].worst, by_kind["I"].worst_off) == ("1I1", 1.0)
    assert by_kind["I"].median_off == 0
    assert by_kind["W"].worst_off == 0


def test_an_op_that_is_predicted_to_take_no_time_is_off_by_nothing() -> None:
    """There is nothing to divide by; its times are still shown."""
    problem = Problem(devices=1, microbatches=1, cost={"F": 1, "I": 0, "W": 1}, time_unit="ms")
    schedule = families.zb_h1(problem)
    measured = Measured(((0, 5, 8),), ((5, 8, 9),), 1)
    by_kind = {each.kind: each for each in deviation(replace(schedule, measured=measured)).kinds}
    assert (by_kind["I"].median_off, by_kind["I"].worst, by_kind["I"].measured) == (None, "", 3)


def test_pairs_are_a_kind_of_their_own() -> None:
    """A pair's time is that of the block and not of its halves."""
    kinds = {each.kind: each for each in deviation(ran(families.dualpipe(PAIRS))).kinds}
    assert (kinds["pair"].predicted, kinds["pair"].measured) == (26, 26)


def test_without_a_run_there_is_nothing_to_compare() -> None:
    """The message says what makes one."""
    with pytest.raises(ValueError, match="nothing was measured; bubbleproof run -o writes"):
        deviation(SCHEDULE)


@given(slower=st.integers(1, 5))
def test_the_problem_of_a_run_predicts_the_run(slower: int) -> None:
    """Times from the timeline make the same order take as long as it took."""
    for schedule in (SCHEDULE, families.dualpipe(PAIRS)):
        stretched = ran(schedule, slower=Fraction(slower))
        transfer = slower * NS_PER_MS * simulated_transfer(schedule)
        devices = schedule.problem.devices
        again = remeasured(stretched, transfer=[[transfer] * devices] * devices)
        timeline = simulate(replace(schedule, problem=again, starts=None))
        assert timeline.makespan == slower * simulate(schedule).makespan


def simulated_transfer(schedule: Schedule) -> int:
    """Return the transfer of a problem in its unit."""
    transfer = schedule.problem.cost.transfer
    assert isinstance(transfer, int)
    return transfer


def test_the_problem_of_a_run_has_the_work_of_the_run() -> None:
    """One op that took 6 ms more makes each of the three of its kind 2 ms longer."""
    schedule = ran(SCHEDULE)
    assert schedule.measured is not None
    ends = [list(each) for each in schedule.measured.ends]
    ends[0][0] += 6 * NS_PER_MS
    measured = replace(schedule.measured, ends=tuple(map(tuple, ends)))
    again = remeasured(replace(schedule, measured=measured))
    assert [again.time(ticks) for ticks in again.cost.F] == [12, 10]


def test_kinds_that_did_not_run_keep_their_times() -> None:
    """ZB-H1 runs no B, which stays as the problem says."""
    again = remeasured(ran(SCHEDULE, slower=Fraction(2)))
    assert again.time(again.cost.F[0]) == 20
    assert again.time(again.cost.B[0]) == 20
    assert again.transfer(0, 1) == NS_PER_MS


def test_a_run_shows_its_median_step() -> None:
    """Of an even number the smaller one of the middle."""
    steps = [ran(SCHEDULE, slower=Fraction(factor)).measured for factor in (4, 1, 3, 2)]
    run = Run(
        SCHEDULE,
        tuple(step for step in steps if step is not None),
        losses=(0.0,) * 5,
        transfer_ns=((0, 2 * NS_PER_MS), (2 * NS_PER_MS, 0)),
        peak_live=(2, 2),
    )
    assert run.usual_step == 3
    assert run.simulated(3).makespan == 2 * simulate(SCHEDULE).makespan


def test_intervals_become_the_timeline_of_their_schedule() -> None:
    """From 0 on, in any order of reports; a pair lasts as long as both its halves."""
    schedule = families.dualpipe(PAIRS)
    timeline = simulate(schedule)
    intervals: list[Interval] = []
    for row, starts, ends in zip(schedule.rows, timeline.starts, timeline.ends, strict=True):
        for block, start, end in zip(row, starts, ends, strict=True):
            ops = ops_of(block)
            cuts = [start, *([start + 10] if len(ops) == 2 else []), end]
            intervals += [
                Interval(op, 77 + NS_PER_MS * cuts[i], 77 + NS_PER_MS * cuts[i + 1])
                for i, op in enumerate(ops)
            ]
    measured = measured_timeline(schedule, intervals[::-1], unit_ns=NS_PER_MS, source="")
    expected = ran(schedule).measured
    assert expected is not None
    assert (measured.starts, measured.ends) == (expected.starts, expected.ends)
    assert deviation(replace(schedule, measured=measured)).makespan_off == 0


def test_missing_and_double_reports_are_refused() -> None:
    """Both mean that what was run is not the schedule."""
    intervals = [Interval(op, 0, 1) for row in SCHEDULE.rows for b in row for op in ops_of(b)]
    with pytest.raises(ValueError, match="device 0 reported no 0F0"):
        measured_timeline(SCHEDULE, intervals[1:], unit_ns=1, source="")
    with pytest.raises(ValueError, match="0F0 was reported twice"):
        measured_timeline(SCHEDULE, [*intervals, intervals[0]], unit_ns=1, source="")


def test_units_of_clocks_are_known() -> None:
    """And others refused with those that are."""
    assert [unit_ns(unit) for unit in ("s", "ms", "us", "ns")] == [10**9, 10**6, 10**3, 1]
    with pytest.raises(ValueError, match="'ticks' is no time on a clock; write s, ms, us or ns"):
        unit_ns("ticks")


def test_prediction_and_run_have_one_time_axis() -> None:
    """In the terminal an op that ends at half the longer time ends at half the columns."""
    compared = deviation(ran(SCHEDULE, slower=Fraction(2)))
    longest = Fraction(2 * simulate(SCHEDULE).makespan_ticks)
    predicted = chart(compared.predicted, 82, longest=longest).plain.splitlines()
    measured = chart(compared.measured, 82, longest=longest).plain.splitlines()
    alone = chart(simulate(SCHEDULE), 42).plain.splitlines()
    assert [line[:42] for line in predicted[:2]] == [line[:42] for line in alone[:2]]
    assert {line[42:] for line in predicted[:2]} == {"." * 40}
    assert predicted[2].endswith(" ms")
    assert len(predicted[2]) == 42
    assert len(measured[2]) == 82


def test_the_picture_has_the_run_under_the_prediction() -> None:
    """Two axes of one width in time; the same ops on both."""
    upper, lower = bp.plot(ran(SCHEDULE, slower=Fraction(2)), measured=True).axes
    assert upper.get_xlim() == lower.get_xlim()
    assert upper.get_position().y0 > lower.get_position().y1
    names = [axes.get_xlabel() for axes in (upper, lower)]
    assert names == ["time (ms), predicted", "time (ms), measured"]
    assert to_rgb(upper.get_yticklabels()[0].get_color()) == to_rgb(INK)
    with pytest.raises(ValueError, match="nothing was measured"):
        bp.plot(SCHEDULE, measured=True)


Show = Callable[..., tuple[int, str, str]]


@pytest.fixture
def show(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Show:
    """Run ``show`` in an empty folder and return status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def shown(*arguments: str) -> tuple[int, str, str]:
        status = main(["show", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return shown


def test_show_measured_says_how_far_off_each_kind_was(show: Show) -> None:
    """Both timelines, a row for each op kind, makespan, span and idle."""
    bp.save(ran(SCHEDULE, slower=Fraction(11, 10)), "ran.json")
    status, out, _ = show("ran.json", "--measured")
    assert status == 0
    assert out.index("predicted") < out.index("measured")
    for name in ("F ", "I ", "W ", "makespan", "span"):
        (line,) = [line for line in out.splitlines() if line.startswith(name) and "%" in line]
        assert "+10.0 %" in line
    assert "idle" in out


def test_show_measured_needs_a_run(show: Show) -> None:
    """One line that says what writes one, and status 2."""
    bp.save(SCHEDULE, "plain.json")
    status, out, err = show("plain.json", "--measured")
    assert (status, out) == (2, "")
    assert "plain.json: has no measured timeline; bubbleproof run -o writes one" in err


@pytest.mark.parametrize("form", ["svg", "html", "trace.json"])
def test_show_measured_writes_both_timelines(show: Show, form: str) -> None:
    """In every form of a file."""
    bp.save(ran(SCHEDULE), "ran.json")
    status, _, err = show("ran.json", "--measured", "-o", f"out.{form}")
    assert (status, err) == (0, f"bubbleproof: written: out.{form}\n")
    text = Path(f"out.{form}").read_text(encoding="utf-8")
    assert "measured" in text
    assert show("ran.json", "-o", f"alone.{form}")[0] == 0
    assert "measured" not in Path(f"alone.{form}").read_text(encoding="utf-8")
