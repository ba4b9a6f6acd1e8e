"""Files: what is written reads back equal, and nothing that is fed in gives a traceback."""

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from file_strategies import JSON_VALUES, problems, schedules
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bubbleproof.schedules.cost import Cost
from bubbleproof.schedules.files import require_writable
from bubbleproof.schedules.io import (
    load_problem,
    load_schedule,
    problem_text,
    save,
    schedule_text,
)
from bubbleproof.schedules.ops import Op, OpKind
from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Bound, Schedule, Status, parse_rows
from bubbleproof.schedules.words import is_list, is_object

MALFORMED = Path(__file__).parent / "data" / "malformed"

# What is wrong in each file, and where: line:column, or the field.
FAULTS = {
    "bom.json": r"1:1: .*byte order mark \(BOM",
    "utf16.json": r"1:1: .*byte order mark of UTF-16",
    "latin1.json": r"1:49: byte 0xe9 is not UTF-8",
    "empty.json": "the file is empty",
    "blank.json": "the file is empty",
    "cut.json": "2:16: .*the file is cut off",
    "cut_in_text.json": "1:12: .*the file is cut off",
    "nan.json": "2:16: NaN is no number",
    "infinity.json": "2:16: -Infinity is no number",
    "repeated_key.json": "2:19: 'F' is given twice",
    "trailing_comma.json": "2:34: JSON has no comma after the last item",
    "single_quotes.json": "1:2: .*straight double quotes",
    "comment.json": "1:1: no valid JSON: Expecting value",
    "two_values.json": "3:1: no valid JSON: Extra data",
    "deep.json": "nested too deeply",
    "huge_int.json": "1:48: a number of more than 100 characters",
    "huge_exponent.json": "2:16: .*too large an exponent",
    "large_exponent.json": r"cost\.F: 1E\+400 cannot be kept exactly",
    "too_fine.json": r"cost\.F: 0\.1234567890123 cannot be kept exactly",
    "list.json": "a problem is an object",
    "no_format.json": 'format is missing; a problem has "format": "bubbleproof.problem/1"',
    "future_format.json": 'format: .*problem/2.*; "bubbleproof.problem/1" is accepted',
    "schedule_as_problem.json": "this is a schedule, not a problem; verify, show and export ta",
    "unknown_field.json": "'microbatch' is unknown; did you mean microbatches",
    "no_devices.json": "devices is missing",
    "text_number.json": r"cost\.F: '1' is not a finite number",
    "half_device.json": r"devices: 2\.5 is not a whole number",
    "true_device.json": "devices: True is not a whole number",
    "surrogate.json": "name: .*lone surrogate",
    "cut.toml": "2:10: no valid TOML",
    "repeated_key.toml": "3:1: 'devices' is given twice; once is right",
    "repeated_table.toml": "6:2: 'cost' is given twice; once is right",
    "nan.toml": r"cost\.F: NaN is not a finite number",
    "huge_int.toml": "2:11: a number of more than 100 characters",
    "huge_hex.toml": "devices: a huge number is out of range",
    "deep.toml": "nested too deeply",
    "date.toml": "devices: datetime.* is not a whole number",
    "bom.csv": r"1:1: .*byte order mark \(BOM",
    "semicolons.csv": "1:4: a semicolon",
    "comment.csv": "1:1: a comment; torch's CSV has none",
    "spaces.csv": "1:5: a space in ' 0B0'",
    "space_inside.csv": "1:6: a space in '0 B0'",
    "trailing_junk.csv": "1:1: '0F0xyz' is not an op",
    "no_microbatch.csv": "1:9: '0F' is not an op",
    "letter_for_digit.csv": "1:1: '0FOO1' is not an op",
    "decimal_microbatch.csv": r"1:1: '0F1\.0' is not an op",
    "leading_zero.csv": "1:1: '0F00' is not an op",
    "trailing_blank.csv": "2:1: a blank line; every line is a device to torch",
    "blank_between.csv": "2:1: a blank line",
    "spaces_line.csv": "2:1: a blank line",
    "quotes.csv": "1:1: a quote",
    "comms_idle.csv": "1:14: an empty cell; torch executes a compute_comms file as it is written",
    "comms_group.csv": "1:5: '{0SEND_F0}' is a group, which torch does not know",
    "comms_stage.csv": "2:5: stage 5, but the problem's stages are 0..1",
    "comms_no_microbatch.csv": "1:5: '0SEND_F': a message needs its microbatch, as 0SEND_F0",
    "comms_unshard.csv": "1:1: '0UNSHARD0': UNSHARD is for a whole stage, as 0UNSHARD",
    "comms_junk.csv": "1:5: '0SEND_F0x' is no action",
    "nul.csv": "1:8: a NUL byte",
    "tabs.csv": "1:4: a tab",
    "old_mac.csv": "1:8: a carriage return within a line",
    "header.csv": "1:1: 'rank' is not an op",
    "pair_backwards.csv": "1:5: .* a pair is an F and then a B",
    "pair_split.csv": "1:5: .* a pair is an F and then a B",
    "pair_cut.csv": r"1:5: '\(0F1;0B0' is not an op",
    "missing_stage.csv": "2:1: stage 7 is here, but stage 1 is in no row",
    "stage_twice.csv": "2:9: stage 0 is on device 0 and here on device 1",
    "only_idle.csv": "there is no op in any row",
    "large_number.csv": "1:1: '0F1234567890' has a number above 999999999",
    "no_text.csv": "1:1: byte 0x89 is not UTF-8",
}

PROBLEM = Problem(devices=2, microbatches=2, cost={"F": 1, "I": 1, "W": 1}, backward="fused")
SCHEDULE = Schedule(
    problem=PROBLEM,
    rows=parse_rows(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]),
    starts=((0, 1, 4, 7), (1, 2, 4, 5)),
    source="by hand",
    objective=9,
    bound=9,
    status=Status.OPTIMAL,
    proof=(Bound("work", 9, "2 forwards and 2 backwards", 0, {"head": 3, "work": 6}),),
)

anywhere = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
round_trip = settings(anywhere, max_examples=40)


def loads(name: str) -> Callable[[Path], object]:
    """Return the reader of a file by its extension."""
    return load_schedule if name.endswith(".csv") else load_problem


def words_of(value: Problem | Schedule) -> dict[str, object]:
    """Return a value's file as plain objects, to be spoiled."""
    text = problem_text(value) if isinstance(value, Problem) else schedule_text(value)
    words: object = json.loads(text)
    assert is_object(words)
    return dict(words)


def written(path: Path, words: object) -> Path:
    """Write plain objects as JSON and return the path."""
    path.write_text(json.dumps(words))
    return path


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_malformed_file_is_refused_with_its_name_the_place_and_the_cause(name: str) -> None:
    """Each file of data/malformed breaks one thing; the message is one line that starts with it."""
    path = MALFORMED / name
    with pytest.raises(ValueError, match=FAULTS[name]) as caught:
        loads(name)(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:")
    assert message.isprintable()


def test_every_malformed_file_has_its_fault_listed() -> None:
    """No file of the corpus is forgotten by the test above."""
    assert sorted(path.name for path in MALFORMED.iterdir()) == sorted(FAULTS)


@round_trip
@given(problem=problems())
def test_a_problem_written_as_json_reads_back_equal(problem: Problem, tmp_path: Path) -> None:
    """Whatever a problem holds, its JSON holds."""
    save(problem, tmp_path / "problem.json")
    assert load_problem(tmp_path / "problem.json") == problem


@round_trip
@given(problem=problems(nulls=False))
def test_a_problem_written_as_toml_reads_back_equal(problem: Problem, tmp_path: Path) -> None:
    """Whatever a problem without nulls in lists holds, its TOML holds."""
    save(problem, tmp_path / "problem.toml")
    assert load_problem(tmp_path / "problem.toml") == problem


@round_trip
@given(schedule=schedules())
def test_a_schedule_written_as_json_reads_back_equal(schedule: Schedule, tmp_path: Path) -> None:
    """Rows, starts, claims and proof survive, valid or not."""
    save(schedule, tmp_path / "schedule.json")
    assert load_schedule(tmp_path / "schedule.json") == schedule


def test_decimals_are_written_as_the_user_wrote_them() -> None:
    """0.29 stays 0.29 and a whole number stays whole, one number where all stages agree."""
    problem = Problem(devices=2, microbatches=1, cost={"F": 0.29, "I": [0.57, 1.0], "W": 8})
    cost = words_of(problem)["cost"]
    assert cost == {"F": 0.29, "I": [0.57, 1], "W": 8, "transfer": 0}
    assert '"F": 0.29,' in problem_text(problem)


def test_a_file_keeps_what_binary_fractions_lose(tmp_path: Path) -> None:
    """The text is read as a decimal: 0.3 - 0.1 - 0.2 balances to zero."""
    path = tmp_path / "p.json"
    path.write_text(
        '{"format": "bubbleproof.problem/1", "devices": 1, "microbatches": 1,'
        '"cost": {"F": 0.1, "I": 0.2, "W": 0.3}, "memory": {"F": 0.3, "I": -0.1, "W": -0.2}}'
    )
    problem = load_problem(path)
    assert (problem.cost.F, problem.cost.W, problem.cost.ticks_per_unit) == ((1,), (3,), 10)
    assert problem.memory.F == ((3, 0),)


def test_a_number_without_a_decimal_text_is_refused() -> None:
    """1/3 cannot be in a file; the message has the unit in which it could."""
    problem = Problem(devices=1, microbatches=1, cost={"F": Fraction(1, 3), "I": 1, "W": 1})
    with pytest.raises(ValueError, match=r"cost\.F: 1/3 has no finite decimal text.*3 times"):
        problem_text(problem)


def test_toml_refuses_a_null_and_names_json() -> None:
    """TOML has no null, so limits for some devices only are JSON's."""
    problem = replace(PROBLEM, memory={"F": 1, "W": -1, "limit": [1, None]})
    with pytest.raises(ValueError, match=r"memory\.limit: TOML has no null.*\.json"):
        problem_text(problem, ".toml")


def test_a_placement_without_words_is_refused() -> None:
    """Replicas outside the bidirectional placement are not in the file format."""
    placement = Placement("explicit", 2, (0, 1), ((0,), (1,)), (0, 0))
    problem = Problem(devices=2, placement=placement, microbatches=2, cost={"F": 1, "I": 1, "W": 1})
    with pytest.raises(ValueError, match=r"placement: explicit.* has no words in a file"):
        problem_text(problem)


def test_finer_ticks_than_needed_survive_in_a_schedule(tmp_path: Path) -> None:
    """A schedule's ticks are explained by its own ticks_per_unit, however fine."""
    cost = Cost((10, 10), (10, 10), (10, 10), (20, 20), (None, None), ticks_per_unit=10)
    schedule = replace(
        SCHEDULE, problem=replace(PROBLEM, cost=cost), starts=((3, 13, 43, 73), (13, 23, 43, 53))
    )
    save(schedule, tmp_path / "s.json")
    assert load_schedule(tmp_path / "s.json") == schedule


def test_starts_follow_a_problem_whose_ticks_became_finer(tmp_path: Path) -> None:
    """A cost changed by hand from 1 to 1.5 halves the tick; the starts stay where they were."""
    words = replaced(words_of(SCHEDULE), ("problem", "cost"), {"F": 1.5, "I": 1, "W": 1})
    loaded = load_schedule(written(tmp_path / "s.json", words))
    assert loaded.starts == ((0, 2, 8, 14), (2, 4, 8, 10))
    assert loaded.problem.time(14) == 7


def test_a_given_problem_replaces_the_files_and_drops_its_claims(tmp_path: Path) -> None:
    """What was proven of one problem is not proven of another."""
    save(SCHEDULE, tmp_path / "s.json")
    assert load_schedule(tmp_path / "s.json", PROBLEM) == SCHEDULE
    other = replace(PROBLEM, cost={"F": 2, "I": 1, "W": 1})
    loaded = load_schedule(tmp_path / "s.json", other)
    assert (loaded.problem, loaded.rows, loaded.starts) == (other, SCHEDULE.rows, SCHEDULE.starts)
    assert (loaded.objective, loaded.bound, loaded.status, loaded.proof) == (None, None, None, ())


def test_starts_between_a_given_problems_ticks_are_refused(tmp_path: Path) -> None:
    """A start at half a tick of the given problem cannot be kept."""
    words = words_of(SCHEDULE) | {"ticks_per_unit": 2}
    with pytest.raises(ValueError, match=r"starts\[0\]\[1\]: 1 is no wh.* \(--order-only\)"):
        load_schedule(written(tmp_path / "s.json", words), PROBLEM)


def test_an_order_alone_has_neither_starts_nor_claims(tmp_path: Path) -> None:
    """Only the problem, the rows and how they were made are left."""
    save(SCHEDULE, tmp_path / "s.json")
    loaded = load_schedule(tmp_path / "s.json", order_only=True)
    assert loaded == Schedule(SCHEDULE.problem, SCHEDULE.rows, source=SCHEDULE.source)


SPOILED: dict[str, dict[str, object]] = {
    "rows: 1 rows for 2 devices": {"rows": [["0F0"]]},
    r"rows\[1\]\[1\]: '1X0' is not an op": {"rows": [["0F0"], ["1F0", "1X0"]]},
    r"rows\[0\]\[0\]: 5 is no op": {"rows": [[5], []]},
    r"rows\[0\]: a list of ops is expected": {"rows": [5, []]},
    "rows: a list with one row for each device": {"rows": None},
    r"starts\[1\]: 1 starts for 4 ops": {"starts": [[0, 1, 4, 7], [1]]},
    "starts: 1 lists for 2 rows": {"starts": [[0, 1, 4, 7]]},
    r"starts\[0\]\[1\]: -1 is no start": {"starts": [[0, -1, 4, 7], [1, 2, 4, 5]]},
    r"starts\[0\]\[1\]: 1.5 is no start": {"starts": [[0, 1.5, 4, 7], [1, 2, 4, 5]]},
    r"starts\[0\]: a list of ticks": {"starts": [0, 1]},
    "starts: a list of ticks for each device": {"starts": 0},
    "ticks_per_unit: 0 is out of range": {"ticks_per_unit": 0},
    "objective: '9' is not a finite number": {"objective": "9"},
    r"bound: 8.5 is no whole number of ticks \(1 per unit\)": {"bound": 8.5},
    "status: optimal, but objective 9 and bound 8 are not the same": {"bound": 8},
    "status: 'best' is unknown; accepted are \"optimal\"": {"status": "best"},
    "source: 3 is not a text": {"source": 3},
    "proof: a list of bounds": {"proof": {}},
    r"proof\[0\]: an object is expected": {"proof": [1]},
    r"proof\[0\]\.text is missing": {"proof": [{"name": "work", "bound": 9}]},
    r"proof\[0\]: 'ticks' is unknown": {"proof": [{"ticks": 9}]},
    r"proof\[0\]\.device: -1": {"proof": [{"name": "a", "bound": 9, "text": "", "device": -1}]},
    r"proof\[0\]\.terms: an object": {"proof": [{"name": "a", "bound": 9, "text": "", "terms": 1}]},
    r"proof\[0\]\.terms\.x: 'y' is not": {
        "proof": [{"name": "a", "bound": 9, "text": "", "terms": {"x": "y"}}]
    },
    "problem is missing": {"problem": None},
    "in problem: a problem is an object": {"problem": 3},
    "in problem: format is missing": {"problem": {}},
    "'row' is unknown; did you mean rows": {"row": []},
    'format: .* is no format of a schedule; "bubbleproof.schedule/1"': {"format": "x/2"},
}


@pytest.mark.parametrize("message", sorted(SPOILED))
def test_a_schedule_file_with_a_bad_field_is_refused_by_its_name(
    message: str, tmp_path: Path
) -> None:
    """One field of a good file is replaced; the message has the field and what is wrong."""
    path = written(tmp_path / "s.json", words_of(SCHEDULE) | SPOILED[message])
    with pytest.raises(ValueError, match=message) as caught:
        load_schedule(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a = 1\na = [\n1,\n2]\n", "2:1: 'a'"),
        ('a = 1\r\n a = """\nb = 3\n"""\r\n', "2:2: 'a'"),
        ('a = 1\n"a" = 2', "2:1: '\"a\"'"),
        ('"[" = 1\n"[" = 2\n', "2:1: '\"\\[\"'"),
        ("a.b = 1\n[[c]]\nb = 2\n[a.b]\n", r"4:2: 'a\.b'"),
        ("a = 1\na = [\n" + "1,\n" * 200 + "]\n", "203:1: a key"),
    ],
)
def test_a_key_that_toml_has_twice_is_named(tmp_path: Path, text: str, place: str) -> None:
    """However the key is written, and wherever its value ends; not after hundreds of lines."""
    (tmp_path / "p.toml").write_text(text, newline="")
    with pytest.raises(ValueError, match=rf"p\.toml:{place} is given twice; once is right"):
        load_problem(tmp_path / "p.toml")


def test_the_reader_of_the_wrong_kind_names_the_right_one(tmp_path: Path) -> None:
    """CSV is no problem, TOML no schedule, and an extension that is neither cannot be written."""
    (tmp_path / "x.csv").write_text("0F0\n")
    (tmp_path / "x.toml").write_text("a = 1\n")
    with pytest.raises(ValueError, match=r"x\.csv: a problem is JSON or TOML, not CSV; a sch"):
        load_problem(tmp_path / "x.csv")
    with pytest.raises(ValueError, match=r"x\.toml: a schedule is JSON or CSV, not TOML; a prob"):
        load_schedule(tmp_path / "x.toml")
    save(PROBLEM, tmp_path / "p.json")
    with pytest.raises(ValueError, match=r"p\.json: this is a problem, not a schedule; solve, fam"):
        load_schedule(tmp_path / "p.json")
    with pytest.raises(ValueError, match=r"x\.csv: a problem is written as \.json or \.toml"):
        save(PROBLEM, tmp_path / "x.csv")
    with pytest.raises(ValueError, match=r"x\.yaml: a schedule is written as \.json or \.csv"):
        save(SCHEDULE, tmp_path / "x.yaml")


def test_without_a_known_extension_the_content_decides(tmp_path: Path) -> None:
    """A text that starts with a brace is JSON; else a problem is TOML and a schedule CSV."""
    plain = tmp_path / "plain"
    for text in (problem_text(PROBLEM), problem_text(PROBLEM, ".toml")):
        plain.write_text(text)
        assert load_problem(plain) == PROBLEM
    plain.write_text(schedule_text(SCHEDULE))
    assert load_schedule(plain) == SCHEDULE
    plain.write_text(schedule_text(SCHEDULE, ".csv"))
    assert load_schedule(plain).rows == SCHEDULE.rows


def test_a_path_that_is_no_file_is_refused_with_the_resolved_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing file, a folder and a device are named, with where the relative path led."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ValueError, match=r"^no\.json: there is no such file \(.*/no\.json\)$"):
        load_problem("no.json")
    with pytest.raises(ValueError, match=r"^folder\.json: is a folder \(/.*/folder\.json\)"):
        load_problem("folder.json")
    with pytest.raises(ValueError, match=r"^/dev/null: is no regular file"):
        load_schedule("/dev/null")
    with pytest.raises(ValueError, match=r"^'a\\x00b': a file name cannot have a NUL"):
        load_problem("a\0b")


def test_an_unreadable_file_is_refused_with_the_resolved_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions are no traceback; root, who may run this, has them all, so open is told to."""
    path = tmp_path / "p.json"
    save(PROBLEM, path)

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", denied)
    with pytest.raises(ValueError, match=r"cannot be read \(.*p\.json\): Permission denied"):
        load_problem(path)


def test_a_file_name_with_a_line_end_keeps_the_message_on_one_line(tmp_path: Path) -> None:
    """The name is shown escaped."""
    path = tmp_path / "a\nb.json"
    path.write_text("[")
    with pytest.raises(ValueError, match="cut off") as caught:
        load_problem(path)
    assert str(caught.value).isprintable()


def test_a_new_file_has_the_permissions_of_a_new_file_and_an_old_one_keeps_its(
    tmp_path: Path,
) -> None:
    """Not those of a private temporary file."""
    (tmp_path / "usual").touch()
    save(PROBLEM, tmp_path / "new.json")
    usual, new = (stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("usual", "new.json"))
    assert new == usual
    (tmp_path / "new.json").chmod(0o640)
    save(PROBLEM, tmp_path / "new.json")
    assert stat.S_IMODE((tmp_path / "new.json").stat().st_mode) == 0o640


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text goes to a file beside it, which takes the name only when it is complete."""
    path = tmp_path / "p.json"
    save(PROBLEM, path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match=r"p\.json: cannot be written .*No space left"):
        save(replace(PROBLEM, name="other"), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_saving_through_a_link_writes_what_it_points_to(tmp_path: Path) -> None:
    """The link stays a link."""
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    save(PROBLEM, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert load_problem(tmp_path / "real.json") == PROBLEM


def test_saving_where_no_folder_is_names_the_folder(tmp_path: Path) -> None:
    """Nothing is made on the way."""
    with pytest.raises(ValueError, match=r"the folder .*missing does not exist; make it first"):
        save(PROBLEM, tmp_path / "missing" / "p.json")
    (tmp_path / "d.json").mkdir()
    with pytest.raises(ValueError, match=r"d\.json: is a folder"):
        save(PROBLEM, tmp_path / "d.json")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="the system has no /proc")
def test_a_folder_that_takes_no_file_is_not_called_missing() -> None:
    """/proc answers "not found" to a new file; the folder is there all the same."""
    with pytest.raises(ValueError, match="no file can be made in the folder /proc; give another"):
        require_writable("/proc/p.json")
    with pytest.raises(ValueError, match="no file can be made in the folder /proc; give another"):
        save(PROBLEM, "/proc/p.json")


def test_asking_whether_a_file_can_be_written_leaves_no_trace(tmp_path: Path) -> None:
    """What would fail at the end fails at once; what would not is left as it is."""
    path = tmp_path / "p.json"
    require_writable(path)
    assert not list(tmp_path.iterdir())
    save(PROBLEM, path)
    before = path.read_bytes()
    require_writable(path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before
    with pytest.raises(ValueError, match=r"cannot be written .*Not a directory"):
        require_writable(path / "p.json")
    with pytest.raises(ValueError, match=r"the folder .*missing does not exist; make it first"):
        require_writable(tmp_path / "missing" / "p.json")
    with pytest.raises(ValueError, match=r"is a folder"):
        require_writable(tmp_path)


def test_rows_may_be_written_as_one_text_each(tmp_path: Path) -> None:
    """A row is a list of ops, or a text with spaces between them."""
    words = words_of(SCHEDULE) | {"rows": ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]}
    assert load_schedule(written(tmp_path / "s.json", words)) == SCHEDULE


def test_rows_that_do_not_fit_are_not_written() -> None:
    """A file that could not be read back is not made."""
    with pytest.raises(ValueError, match="rows: 1 rows for 2 devices"):
        schedule_text(replace(SCHEDULE, rows=SCHEDULE.rows[:1], starts=None))
    with pytest.raises(ValueError, match=r"starts\[0\]: from 0"):
        schedule_text(replace(SCHEDULE, starts=((-1, 1, 4, 7), (1, 2, 4, 5))))


def test_a_schedule_file_stays_readable() -> None:
    """Short values take a line, rows a line each."""
    lines = schedule_text(
        replace(SCHEDULE, rows=tuple(row * 5 for row in SCHEDULE.rows), starts=None)
    )
    assert '\n  "status": "optimal",\n' in lines
    assert lines.count("\n    [") == 2


@pytest.mark.slow
def test_400_000_ops_load_in_a_few_seconds(tmp_path: Path) -> None:
    """Eight devices, 50,000 ops each, with starts; twice the time that a slow machine takes."""
    import time

    n = 25_000
    problem = Problem(devices=8, microbatches=n, cost={"F": 1, "I": 1, "W": 1}, backward="fused")
    kinds = (OpKind.FORWARD, OpKind.BACKWARD)
    rows = tuple(tuple(Op(d, k, m) for m in range(n) for k in kinds) for d in range(8))
    schedule = Schedule(problem, rows, tuple(tuple(range(len(row))) for row in rows))
    save(schedule, tmp_path / "s.json")
    before = time.perf_counter()
    loaded = load_schedule(tmp_path / "s.json")
    assert time.perf_counter() - before < 8
    assert loaded == schedule


@anywhere
@given(data=st.binary(max_size=60), name=st.sampled_from(["x.json", "x.toml", "x.csv", "x"]))
@example(data=b"\xff\xfe{", name="x.json")
@example(data=b"{" * 3000, name="x")
def test_any_bytes_give_a_value_or_one_line(data: bytes, name: str, tmp_path: Path) -> None:
    """No input whatever gives anything but a value or a ValueError of one line."""
    path = tmp_path / name
    path.write_bytes(data)
    for load in (load_problem, load_schedule):
        one_line(path, load)


@anywhere
@given(data=st.data())
def test_a_mutated_file_gives_a_value_or_one_line(data: st.DataObject, tmp_path: Path) -> None:
    """Good files of every form with a piece cut out, doubled or replaced."""
    name, text = data.draw(
        st.sampled_from(
            [
                ("x.json", problem_text(PROBLEM)),
                ("x.toml", problem_text(PROBLEM, ".toml")),
                ("x.json", schedule_text(SCHEDULE)),
                ("x.csv", schedule_text(SCHEDULE, ".csv")),
            ]
        )
    )
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 12)))
    new = data.draw(st.one_of(st.just(""), st.just(text[start:end] * 2), st.text(max_size=4)))
    path = tmp_path / name
    path.write_text(text[:start] + new + text[end:], encoding="utf-8", errors="surrogatepass")
    for load in (load_problem, load_schedule):
        one_line(path, load)


@anywhere
@given(data=st.data())
def test_any_value_in_any_place_gives_a_value_or_one_line(
    data: st.DataObject, tmp_path: Path
) -> None:
    """A random JSON tree takes the place of a value anywhere in a good file."""
    words = words_of(data.draw(st.sampled_from([PROBLEM, SCHEDULE])))
    place = data.draw(st.sampled_from(list(places(words))))
    path = written(tmp_path / "x.json", replaced(words, place, data.draw(JSON_VALUES)))
    for load in (load_problem, load_schedule):
        one_line(path, load)


def places(value: object) -> Iterator[tuple[str | int, ...]]:
    """Yield the path to every value within a JSON value."""
    yield ()
    inner: Iterable[tuple[str | int, object]] = ()
    if is_object(value):
        inner = value.items()
    elif is_list(value):
        inner = enumerate(value)
    for key, item in inner:
        for rest in places(item):
            yield (key, *rest)


def replaced(value: object, place: Sequence[str | int], new: object) -> object:
    """Return a JSON value with another value at the end of a path."""
    if not place:
        return new
    if is_object(value):
        return {
            key: replaced(item, place[1:], new) if key == place[0] else item
            for key, item in value.items()
        }
    assert is_list(value)
    return [
        replaced(item, place[1:], new) if index == place[0] else item
        for index, item in enumerate(value)
    ]


def one_line(path: Path, load: Callable[[Path], object]) -> None:
    """Load a file; if it is refused, it must be with one printable line that starts with it."""
    try:
        load(path)
    except ValueError as error:
        message = str(error)
        assert message.startswith(f"{path}:")
        assert message.isprintable()
        assert len(message) < 400 + len(str(path))
