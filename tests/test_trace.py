"""Traces and pages: what show writes for others, and what is read of torch's profiler."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems

import bubbleproof as bp
from bubbleproof.cli import main
from bubbleproof.schedules import families
from bubbleproof.schedules.files import Source
from bubbleproof.schedules.intervals import Interval
from bubbleproof.schedules.marks import marks_of
from bubbleproof.schedules.ops import Op, OpKind, Pair
from bubbleproof.schedules.page import page_text
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.profile import Profile, StageBytes, problem_of_profile, spreads
from bubbleproof.schedules.program import ActionKind, Program
from bubbleproof.schedules.simulate import Timeline, simulate
from bubbleproof.schedules.torch_numbers import torch_numbers
from bubbleproof.schedules.torch_trace import Trace, decoded, profile_of_traces, read_trace
from bubbleproof.schedules.trace import trace_text
from bubbleproof.schedules.words import is_object

COST = {"F": 10, "I": 12, "W": 8, "transfer": 0.5}
PROBLEM = Problem(
    devices=3,
    microbatches=4,
    cost=COST,
    memory={"F": 2, "I": -1, "W": -1, "limit": [8, 8, None], "unit": "GiB"},
    time_unit="ms",
)
PAIRS = Problem(
    devices=4,
    placement="bidirectional",
    microbatches=8,
    cost={"F": 10, "I": 12, "W": 8, "pair": 26},
    backward="free",
)


def refused(number: str) -> object:
    """Refuse what JSON does not have, as NaN."""
    raise ValueError(number)


def events_of(
    timeline: Timeline, phase: str, program: Program | None = None
) -> list[dict[str, object]]:
    """Return a trace's events of one phase."""
    marks = () if program is None else tuple(marks_of(program, timeline))
    words = json.loads(trace_text(timeline, marks=marks), parse_constant=refused)
    return [event for event in words["traceEvents"] if event["ph"] == phase]


def test_every_block_is_an_event_of_its_own_length() -> None:
    """At its time in microseconds, on the thread of its device, with what it computes."""
    timeline = simulate(families.zb_h1(PROBLEM))
    events = iter(events_of(timeline, "X"))
    for device, row in enumerate(timeline.schedule.rows):
        for block, start, end in zip(
            row, timeline.starts[device], timeline.ends[device], strict=True
        ):
            event = next(events)
            assert (event["name"], event["tid"]) == (str(block), device)
            assert event["ts"] == 1000 * PROBLEM.time(start)
            assert event["dur"] == 1000 * PROBLEM.time(end - start)
    assert next(events, None) is None


def test_every_kind_of_op_is_computation() -> None:
    """Also I, which is no communication, and a pair, which is one event."""
    for schedule in (families.zb_h1(PROBLEM), families.dualpipe(PAIRS)):
        events = events_of(simulate(schedule), "X")
        assert {event["cat"] for event in events} == {"computation"}
    names = [str(event["name"]) for event in events]
    pairs = sum(isinstance(block, Pair) for row in schedule.rows for block in row)
    assert pairs > 0
    assert sum(name.endswith(")OVERLAP_F_B") for name in names) == pairs


def held(values: object) -> float:
    """Return the one value of a counter."""
    assert is_object(values)
    (value,) = values.values()
    assert isinstance(value, int | float)
    return value


def test_the_memory_of_a_device_is_a_counter() -> None:
    """Its largest value is the peak that the timeline says."""
    timeline = simulate(families.zb_h1(PROBLEM))
    for device, peak in enumerate(timeline.peak_memory):
        counters = [event for event in events_of(timeline, "C") if event["tid"] == device]
        values = [held(event["args"]) for event in counters]
        assert max(values) == peak


def test_messages_and_steps_on_weights_are_drawn() -> None:
    """UNSHARD, RESHARD and REDUCE_GRAD too, each at the end of the block before it."""
    program = bp.lower(families.zb_h1(PROBLEM))
    timeline = simulate(families.zb_h1(PROBLEM))
    marks = events_of(timeline, "i", program)
    by_category = {str(event["cat"]) for event in marks}
    assert by_category == {"communication", "weights"}
    names = {str(event["name"]) for event in marks}
    assert {"0UNSHARD", "0RESHARD", "0REDUCE_GRAD", "0SEND_F0", "1RECV_F0"} <= names
    (sent,) = [event for event in marks if event["name"] == "0SEND_F0"]
    assert sent["ts"] == 10_000
    (unsharded,) = [event for event in marks if event["name"] == "0UNSHARD"]
    assert unsharded["ts"] == 0
    page = page_text(timeline, marks=tuple(marks_of(program, timeline)))
    assert page.count('class="weights"') == sum(
        action.action.kind in (ActionKind.UNSHARD, ActionKind.RESHARD, ActionKind.REDUCE_GRAD)
        for action in marks_of(program, timeline)
    )


def test_show_draws_the_actions_of_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the file of one, JSON or torch's CSV."""
    monkeypatch.chdir(tmp_path)
    bp.save(bp.lower(families.zb_h1(PROBLEM), grouped=False), "program.csv")
    for form in ("html", "trace.json"):
        assert main(["show", "program.csv", "-o", f"out.{form}"]) == 0
        assert "0REDUCE_GRAD" in Path(f"out.{form}").read_text(encoding="utf-8")


@given(name=st.text(), source=st.text(), unit=st.text(), memory_unit=st.text())
def test_any_name_gives_strict_json_and_a_page(
    name: str, source: str, unit: str, memory_unit: str
) -> None:
    """Quotes, tags and control characters survive, and none opens a tag of its own."""
    texts = [text.encode(errors="ignore").decode() for text in (name, source, unit, memory_unit)]
    problem = Problem(
        devices=1,
        microbatches=1,
        cost={"F": 1, "I": 1, "W": 1},
        memory={"unit": texts[3]},
        name=texts[0],
        time_unit=texts[2],
    )
    timeline = simulate(replace(families.gpipe(problem), source=texts[1]))
    words = json.loads(trace_text(timeline), parse_constant=refused)
    assert words["otherData"]["problem"] == texts[0]
    assert words["otherData"]["source"] == texts[1]
    assert "<script" not in page_text(timeline)


def tags(page: str) -> ElementTree.Element:
    """Return the pictures of a page, which are well-formed XML within it."""
    first, last = page.index("<svg"), page.rindex("</svg>") + len("</svg>")
    between = page[first:last].replace('</div><div class="scroll">', "")
    return ElementTree.fromstring(f"<all>{between}</all>")


def test_a_page_says_what_each_op_is_and_when() -> None:
    """One title for each block, with its device and its times."""
    schedule = families.dualpipe(PAIRS)
    page = tags(page_text(simulate(schedule)))
    titles = [each.text for each in page.iter("{http://www.w3.org/2000/svg}title")]
    assert "0F0 on device 0: 0 to 10" in titles
    blocks = sum(map(len, schedule.rows))
    assert len([title for title in titles if title and " to " in title]) == blocks


def test_a_page_draws_a_pair_as_one_joint_block() -> None:
    """A frame around its forward, which is above its backward."""
    schedule = families.dualpipe(PAIRS)
    page = tags(page_text(simulate(schedule)))
    for group in page.iter("{http://www.w3.org/2000/svg}g"):
        title, *shapes = list(group)
        shapes = [shape for shape in shapes if shape.tag.endswith("rect")]
        if "OVERLAP" not in (title.text or ""):
            assert len(shapes) == 1
            continue
        upper, lower, frame = shapes
        assert upper.get("x") == lower.get("x") == frame.get("x")
        assert upper.get("width") == lower.get("width") == frame.get("width")
        assert float(upper.get("y", "")) + float(upper.get("height", "")) == float(
            lower.get("y", "")
        )


def test_a_page_of_nothing_that_takes_time_is_a_page() -> None:
    """Zero times divide nothing."""
    problem = Problem(devices=1, microbatches=1, cost={"F": 0, "I": 0, "W": 0})
    assert page_text(simulate(families.gpipe(problem))).startswith("<!DOCTYPE html>")


def event(name: str, start: object, length: object, **more: object) -> dict[str, object]:
    """Return an event as torch's profiler writes one."""
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": start, "dur": length, **more}


def trace_file(folder: Path, events: object, **more: object) -> Path:
    """Write a trace."""
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, **more}), encoding="utf-8")
    return path


def test_time_stamps_since_1970_keep_their_decimals(tmp_path: Path) -> None:
    """A float at 1.7e15 would round to quarters of a microsecond."""
    path = tmp_path / "trace.json"
    path.write_text(
        '{"traceEvents": [{"ph": "X", "name": "PP:0F1", '
        '"ts": 1700000000000000.123, "dur": 5.377}]}',
        encoding="utf-8",
    )
    (interval,) = read_trace(path).intervals
    assert interval == Interval(
        Op(0, OpKind.FORWARD, 1), 1_700_000_000_000_000_123, 1_700_000_000_000_005_500
    )


def test_only_pipeline_ops_are_read(tmp_path: Path) -> None:
    """Not messages, steps on weights, other ranges, or what has no length; pairs are counted."""
    path = trace_file(
        tmp_path,
        [
            event("PP:0F0", 10, 5, args={"quote": 'a"b', "control": "\u0001"}),
            event("PP:0SEND_F0", 15, 1),
            event("PP:0UNSHARD", 15, 1),
            event("PP:(0F3;1B1)OVERLAP_F_B", 20, 9),
            event("aten::mm", 11, 2),
            {"ph": "i", "name": "PP:0F9", "ts": 3},
            {"ph": "M", "name": 7, "pid": 1},
        ],
        distributedInfo={"rank": 3, "world_size": 4},
    )
    trace = read_trace(path)
    assert trace == Trace(3, (Interval(Op(0, OpKind.FORWARD, 0), 10_000, 15_000),), 1, False)


def test_times_of_kernels_are_preferred(tmp_path: Path) -> None:
    """A range on the CPU then only tells when kernels were queued."""
    path = trace_file(
        tmp_path, [event("PP:0F0", 0, 1), event("PP:0F0", 5, 40, cat="gpu_user_annotation")]
    )
    trace = read_trace(path)
    assert trace.on_gpu
    assert trace.intervals == (Interval(Op(0, OpKind.FORWARD, 0), 5_000, 45_000),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"traceEvents": [{"ph": "X", "na', r":1:33: the text ends within a value; .* cut off"),
        ('{"traceEvents": [{"ph": "X", "ts": NaN}]}', r":1:36: no valid JSON: invalid character"),
        ('{"traceEvents": [{"ph": "X",\n "name": "a\tb"}]}', r":2:\d+: no valid JSON: "),
        ('{"traceEvents": {}}', r"no trace of torch.profiler: .*\$\.traceEvents"),
        ('{"schemaVersion": 1}', r"no trace of torch.profiler: .*traceEvents"),
        ('{"traceEvents": []}', r"no pipeline ops found among 0 events; .* PP:0F1"),
        ('[{"ph": "X", "name": "aten::mm"}]', r"no pipeline ops found among 1 events"),
        (
            '{"traceEvents": [{"ph": "X", "name": "PP:0F0", "ts": 1}]}',
            r"PP:0F0: a range needs ts and dur",
        ),
        *(
            (
                f'[{{"ph": "X", "name": "PP:0F0", "ts": {ts}, "dur": {dur}}}]',
                r"PP:0F0: a range needs ts and dur of 0 or more, in microseconds, below 2\^53",
            )
            for ts, dur in [
                ("1e9999999", "1"),
                ("1", "1e400"),
                ("1", "1e9999999"),
                ('"NaN"', "1"),
                ("1", '"NaN"'),
                ("1", '"Infinity"'),
                ("1", "-1"),
            ]
        ),
        pytest.param(
            f'[{{"ph": "M", "args": {"[" * 100_000}{"]" * 100_000}}}]',
            r"nested too deeply; no trace of torch.profiler is",
            id="deep",
        ),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    """With the place, where there is one, and what would be right."""
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=expected) as refusal:
        read_trace(path)
    assert str(refusal.value).startswith(str(path))
    assert "\n" not in str(refusal.value)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    """Never another exception."""
    try:
        events, _ = decoded(Source("junk.json", text))
    except ValueError as error:
        refusal = str(error)
    else:
        assert json.loads(text) is not None
        refusal = str(len(events))
    assert "\n" not in refusal


def steps(stage: int, kinds: Mapping[str, list[int]], *, microbatches: int = 2) -> list[Interval]:
    """Return a stage's intervals of several steps: for each kind its times in microseconds."""
    return [
        Interval(Op(stage, OpKind(kind), m), step * 10**9, step * 10**9 + 1000 * length)
        for kind, lengths in kinds.items()
        for step, length in enumerate(lengths)
        for m in range(microbatches)
    ]


def traced(rank: int | None, *stages: list[Interval]) -> Trace:
    """Return the trace of a rank."""
    return Trace(rank, tuple(interval for each in stages for interval in each), 0, False)


def test_traces_of_all_ranks_make_a_problem() -> None:
    """Medians by stage and kind without the first step; the placement is where stages ran."""
    traces = [
        traced(1, steps(1, {"F": [99, 4, 6, 5], "B": [99, 9, 9, 8]})),
        traced(0, steps(0, {"F": [99, 3, 3, 9], "B": [99, 7, 6, 8]})),
    ]
    profile, microbatches = profile_of_traces(traces)
    assert microbatches == (2,)
    problem = problem_of_profile(profile, microbatches=microbatches)
    assert (problem.cost.F, problem.cost.B) == ((3, 5), (7, 9))
    assert (problem.placement.name, problem.backward.value) == ("linear", "fused")
    assert (problem.total_microbatches, problem.time_unit) == (2, "us")
    profile, _ = profile_of_traces(traces, skip=0)
    assert profile.times[0, OpKind.FORWARD].most_ns == 99_000


def test_ranks_of_one_pipeline_among_others_are_its_devices() -> None:
    """With data parallelism they are 0, 8, 16, ...: their order counts."""
    kinds = {"F": [1], "B": [2]}
    traces = [traced(16, steps(2, kinds)), traced(0, steps(0, kinds)), traced(8, steps(1, kinds))]
    assert profile_of_traces(traces)[0].placement.name == "linear"


def test_compressed_traces_are_read(tmp_path: Path) -> None:
    """And what is cut off, or no trace, is refused in one line."""
    words = json.dumps({"traceEvents": [event("PP:0F0", 1, 2)]}).encode()
    path = tmp_path / "rank0_trace.json.gz"
    path.write_bytes(gzip.compress(words))
    assert len(read_trace(path).intervals) == 1
    for data, expected in (
        (gzip.compress(words)[:-9], "is no whole gzip file"),
        (words, "is no whole gzip file"),
        (gzip.compress(b"\xff"), "is no text"),
        (gzip.compress(b'{"traceEvents": ['), "the text ends within a value"),
    ):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=expected):
            read_trace(path)
    with pytest.raises(ValueError, match="there is no such file"):
        read_trace(tmp_path / "nosuch.gz")


@pytest.mark.parametrize(
    ("device_of_stage", "name"),
    [
        ([0, 1], "linear"),
        ([0, 1, 0, 1], "loop:2"),
        ([0, 1, 1, 0], "v"),
        ([0, 0, 1], "explicit"),
    ],
)
def test_the_placement_is_named_where_it_has_a_name(device_of_stage: list[int], name: str) -> None:
    """Else its stages are listed."""
    kinds = {"F": [1], "I": [1], "W": [1], "B": [2]}
    traces = [
        traced(None, *(steps(s, kinds) for s, d in enumerate(device_of_stage) if d == rank))
        for rank in range(2)
    ]
    placement = profile_of_traces(traces)[0].placement
    assert name in str(placement)
    assert placement.device_of_stage == tuple(device_of_stage)


@given(problems())
def test_a_profile_has_the_placement_that_its_traces_are_of(problem: Problem) -> None:
    """Whatever the chains are: torch's numbers are read back as stages along their chains."""
    numbers = torch_numbers(problem.placement)
    traces = [
        Trace(
            device,
            tuple(
                Interval(Op(numbers[stage], kind, microbatch), 0, 1 + stage)
                for stage in stages
                for microbatch in problem.microbatches_of_stage(stage)
                for kind in OpKind
            ),
            0,
            False,
        )
        for device, stages in enumerate(problem.placement.stages_of_device)
    ]
    profile, microbatches = profile_of_traces(traces)
    along = list(chain.from_iterable(problem.placement.chains))
    assert microbatches == problem.microbatches
    assert profile.placement.device_of_stage == tuple(
        problem.placement.device_of_stage[stage] for stage in along
    )
    assert [len(each) for each in profile.placement.chains] == [
        len(each) for each in problem.placement.chains
    ]
    assert [profile.times[s, OpKind.FORWARD].most_ns for s in range(len(along))] == [
        1 + stage for stage in along
    ]
    if problem.placement.name == "bidirectional":
        assert profile.placement == problem.placement


@pytest.mark.parametrize("lost", range(3))
def test_a_lost_trace_is_not_taken_for_a_second_chain(lost: int) -> None:
    """Neither in one chain, whose microbatches pass all stages, nor where there are two."""
    kinds = {"F": [1], "B": [1]}
    one = [traced(rank, steps(rank, kinds)) for rank in range(4) if rank != lost]
    with pytest.raises(ValueError, match=f"stage {lost} is in no trace; give the traces of all"):
        profile_of_traces(one)
    both = [
        traced(rank, steps(rank, kinds), shifted(steps(6 - rank, kinds)))
        for rank in range(3)
        if rank != lost
    ]
    with pytest.raises(ValueError, match=r"stage \d is in no trace; give the traces of all"):
        profile_of_traces(both)


def shifted(intervals: list[Interval]) -> list[Interval]:
    """Return the intervals of the two microbatches after these."""
    return [
        replace(each, op=replace(each.op, microbatch=2 + each.op.microbatch)) for each in intervals
    ]


def test_traces_that_are_not_of_one_pipeline_are_refused() -> None:
    """A rank twice, a stage on two ranks, a stage on none, a stage without its backward."""
    whole = {"F": [1], "B": [1]}
    one = traced(0, steps(0, whole))
    with pytest.raises(ValueError, match="rank 0 is given 2 times; give one trace for each rank"):
        profile_of_traces([one, one])
    with pytest.raises(ValueError, match=r"stage 0 is in two traces; .* one pipeline"):
        profile_of_traces([one, traced(1, steps(0, whole))])
    with pytest.raises(ValueError, match="stage 0 is in no trace; give the traces of all ranks"):
        profile_of_traces([traced(0, steps(1, whole))])
    split = traced(1, steps(1, {"F": [1], "I": [1], "W": [1]}))
    with pytest.raises(ValueError, match="0I, 0W and 1B were not measured; all stages need I and"):
        problem_of_profile(profile_of_traces([one, split])[0], microbatches=1)
    with pytest.raises(ValueError, match="1F: no forward was measured"):
        problem_of_profile(
            profile_of_traces([one, traced(1, steps(1, {"B": [1]}))])[0], microbatches=1
        )


@given(
    st.lists(
        st.tuples(st.integers(0, 2**40), st.integers(-(2**40), 2**40), st.integers(0, 2**40)),
        min_size=1,
        max_size=4,
    )
)
def test_measured_memory_balances_exactly(stages: list[tuple[int, int, int]]) -> None:
    """What F and I leave, W frees, to the byte; any profile loads as a problem again."""
    memory = tuple(StageBytes(forward, max(-forward, i), static) for forward, i, static in stages)
    intervals = [
        each
        for s in range(len(stages))
        for each in steps(s, {"F": [1], "I": [2], "W": [3], "B": [4]})
    ]
    placement = Problem(
        devices=len(stages), microbatches=1, cost={"F": 1, "B": 1}, backward="fused"
    ).placement
    profile = Profile(placement, spreads(intervals), None, memory)
    problem = problem_of_profile(profile, microbatches=3)
    for stage, each in enumerate(memory):
        held = problem.memory.F[stage][0]
        assert held == each.forward
        allocated, freed = problem.memory.I[stage]
        assert problem.memory.W[stage] == (0, held + allocated - freed)


def test_profile_reads_traces_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It writes a problem that solve takes, and says what a trace does not have."""
    monkeypatch.chdir(tmp_path)
    for rank in range(2):
        rows = [
            event(f"PP:{rank}{kind}{m}", 100 * step + 10 * m, 5 + rank)
            for step in range(3)
            for kind in "FIW"
            for m in range(3)
        ]
        words = {"traceEvents": rows, "distributedInfo": {"rank": rank}}
        Path(f"rank{rank}.json").write_text(json.dumps(words), encoding="utf-8")
    assert main(["profile", "rank1.json", "rank0.json", "-o", "ours.toml"]) == 0
    captured = capsys.readouterr()
    assert "cover waits for messages" in captured.err
    assert "written: ours.toml" in captured.err
    assert "median us" in captured.out
    problem = bp.load_problem("ours.toml")
    assert (problem.cost.F, problem.backward.value) == ((5, 6), "split")
    assert problem.total_microbatches == 3
    assert main(["profile", "rank0.json", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["times"][0] == {
        "stage": 0,
        "kind": "F",
        "count": 6,
        "median_ns": 5000,
        "least_ns": 5000,
        "most_ns": 5000,
    }


def test_profile_of_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And so are files that are missing, in one line with status 2."""
    monkeypatch.chdir(tmp_path)
    assert main(["profile"]) == 2
    assert "profile of what? PATH:callable" in capsys.readouterr().err
    Path("small.toml").write_text("devices = 2\n", encoding="utf-8")
    assert main(["profile", "small.toml"]) == 2
    refusal = capsys.readouterr().err
    assert "small.toml:1:1: no valid JSON: " in refusal
    assert "profile takes traces of torch.profiler, which are JSON, one for each rank" in refusal
    assert main(["profile", "nosuch.json"]) == 2
    assert "nosuch.json: there is no such file" in capsys.readouterr().err
