"""Programs as text and as JSON: what is written is read back, and garbage has a cause."""

import json
from pathlib import Path

import pytest
from file_strategies import JSON_VALUES, TEXTS
from file_strategies import problems as file_problems
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bubbleproof as bp
from bubbleproof.schedules.ops import Op, OpKind, Pair
from bubbleproof.schedules.program import (
    Action,
    ActionKind,
    Group,
    Program,
    Step,
    parse_step,
    schedule_of,
)

NUMBERS = st.integers(0, 99)
OPS = st.builds(Op, NUMBERS, st.sampled_from(OpKind), NUMBERS)
PAIRS = st.builds(
    Pair,
    st.builds(Op, NUMBERS, st.just(OpKind.FORWARD), NUMBERS),
    st.builds(Op, NUMBERS, st.just(OpKind.BACKWARD), NUMBERS),
)
MESSAGES = st.builds(
    Action, NUMBERS, st.sampled_from([kind for kind in ActionKind if kind.is_message]), NUMBERS
)
ON_WEIGHTS = st.builds(
    Action, NUMBERS, st.sampled_from([kind for kind in ActionKind if not kind.is_message])
)
GROUPS = st.builds(Group, st.lists(MESSAGES, min_size=1, max_size=4).map(tuple))
STEPS: st.SearchStrategy[Step] = st.one_of(OPS, PAIRS, MESSAGES, ON_WEIGHTS, GROUPS)

anywhere = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw any program that a file can hold, sensible or not."""
    problem = draw(file_problems())
    rows = tuple(tuple(draw(st.lists(STEPS, max_size=5))) for _ in range(problem.devices))
    return Program(problem, rows, draw(TEXTS))


@given(step=STEPS)
def test_every_step_is_read_as_it_prints(step: Step) -> None:
    """Ops, pairs, messages, steps on weights and groups."""
    assert parse_step(str(step)) == step


@anywhere
@given(program=programs())
def test_json_loses_nothing(program: Program, tmp_path: Path) -> None:
    """Problem, steps, groups and source come back equal."""
    path = tmp_path / "p.json"
    bp.save(program, path)
    read = bp.load_program(path)
    assert (read.rows, read.source) == (program.rows, program.source)
    bp.save(read, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_a_given_problem_takes_the_place_of_the_files_own(tmp_path: Path) -> None:
    """As for schedules."""
    one = bp.Problem(devices=1, microbatches=1, cost={"F": 1, "I": 1, "W": 1})
    other = bp.Problem(devices=1, microbatches=1, cost={"F": 5, "I": 1, "W": 1})
    program = Program(one, ((Op(0, OpKind.FORWARD, 0),),))
    bp.save(program, tmp_path / "p.json")
    assert bp.load_program(tmp_path / "p.json", other).problem == other
    assert bp.load_program(tmp_path / "p.json") == program


def test_a_program_s_schedule_is_its_blocks() -> None:
    """Messages and steps on weights are left out, pairs are kept."""
    problem = bp.Problem(devices=1, microbatches=2, cost={"F": 1, "I": 1, "W": 1})
    steps = ["0UNSHARD", "0F0", "(0F1;0B0)OVERLAP_F_B", "{0SEND_F0 0RECV_B0}", "0B1", "0RESHARD"]
    program = Program(problem, (tuple(map(parse_step, steps)),), "by hand")
    schedule = schedule_of(program)
    assert str(schedule) == "0F0 (0F1;0B0)OVERLAP_F_B 0B1"
    assert schedule.source == "by hand"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0SEND_F", "'0SEND_F': a message needs its microbatch, as 0SEND_F0"),
        ("0UNSHARD3", "'0UNSHARD3': UNSHARD is for a whole stage, as 0UNSHARD"),
        ("0SEND_X1", "'0SEND_X1' is no action; write stage, kind and microbatch, as 0SEND_F1"),
        ("0F0x", "'0F0x' is not an op"),
        ("{}", "'{}': a group holds messages"),
        ("{0UNSHARD}", "'{0UNSHARD}': a group holds messages, as {0SEND_F1 0RECV_B0}"),
        ("{0F0}", "'{0F0}'|'0F0' is no action"),
        ("01SEND_F0", "'01SEND_F0' is no action"),
        ("", "'' is no action"),
    ],
)
def test_what_is_no_step_is_refused_with_one_that_is(text: str, message: str) -> None:
    """The message quotes the text and shows an accepted form."""
    with pytest.raises(ValueError, match=message.replace("{", r"\{")):
        parse_step(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": None}, "p.json: rows: a list with one row for each device is expected"),
        ({"rows": []}, "p.json: rows: 0 rows for 1 devices; one for each is right"),
        ({"rows": [3]}, r"p.json: rows\[0\]: a list of steps is expected, not 3"),
        ({"rows": [[1]]}, r"p.json: rows\[0\]\[0\]: 1 is no step; write one, as 2F0 or 0SEND_F1"),
        ({"rows": [["0F0", "x"]]}, r"p.json: rows\[0\]\[1\]: 'x' is no action"),
        ({"problem": None}, "p.json: problem is missing; put what the program is for into it"),
        ({"problem": {"format": "x"}}, "p.json: in problem: format: 'x' is no format of a prob"),
        ({"starts": []}, r"p.json: a program: 'starts' is unknown"),
        ({"source": 3}, "p.json: source: 3 is not a text"),
    ],
)
def test_a_file_that_is_no_program_is_refused_with_the_field(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    """One line with the file, the field and what would be right."""
    path = tmp_path / "p.json"
    problem = bp.Problem(devices=1, microbatches=1, cost={"F": 1, "I": 1, "W": 1})
    bp.save(Program(problem, ((Op(0, OpKind.FORWARD, 0),),)), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=message) as caught:
        bp.load_program(path)
    assert "\n" not in str(caught.value)


@anywhere
@given(field=st.sampled_from(["problem", "rows", "source", "format", "x"]), value=JSON_VALUES)
def test_any_value_in_any_field_is_read_or_refused(
    field: str, value: object, tmp_path: Path
) -> None:
    """Garbage never gives anything but a ValueError of one line."""
    path = tmp_path / "p.json"
    problem = bp.Problem(devices=1, microbatches=1, cost={"F": 1, "I": 1, "W": 1})
    bp.save(Program(problem, ((Op(0, OpKind.FORWARD, 0),),)), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    refusal = ""
    try:
        bp.load_program(path)
    except ValueError as error:
        refusal = str(error)
    assert "\n" not in refusal
