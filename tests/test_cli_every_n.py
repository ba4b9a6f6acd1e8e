"""``bubbleproof verify --all-n``: a yes for every n, or the n at which a rule is broken."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import bubbleproof as bp
from bubbleproof.cli import main
from bubbleproof.schedules.periodic import Periodic
from bubbleproof.schedules.periodic_search import periodic_of
from bubbleproof.schedules.periodic_words import save_periodic
from bubbleproof.schedules.schedule import parse_rows


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, in which the command line runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def one_f_one_b(microbatches: int, limit: int | None = None) -> bp.Schedule:
    """Return 1F1B on three devices."""
    problem = bp.Problem(
        devices=3,
        microbatches=microbatches,
        cost={"F": 1, "I": 1, "W": 1},
        memory={"limit": limit},
    )
    return bp.families.one_f_one_b(problem)


def kernel_of(schedule: bp.Schedule) -> Periodic:
    """Return a schedule as a periodic one."""
    found = periodic_of(schedule)
    assert found is not None
    return found


def test_a_schedule_is_proven_by_what_it_repeats(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer has the least n and the kernel."""
    bp.save(one_f_one_b(9), folder / "s.json")
    assert main(["verify", "s.json", "--all-n"]) == 0
    text = capsys.readouterr().out
    assert "valid for every n >= 2" in text
    assert "kernel, 1 a repetition in each chain:" in text
    bp.save(one_f_one_b(9), folder / "s.csv")
    assert main(["verify", "s.csv", "--all-n"]) == 0


def test_a_periodic_file_is_judged_as_it_stands(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The JSON says at which n a kernel breaks which rule."""
    periodic = kernel_of(one_f_one_b(9, limit=3))
    save_periodic(periodic, folder / "good.json")
    assert main(["verify", "good.json", "--all-n", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["valid"], answer["first"], answer["failing"]) == (True, 2, None)
    swapped = tuple(tuple(reversed(row)) for row in periodic.kernel)
    save_periodic(replace(periodic, kernel=swapped), folder / "bad.json")
    assert main(["verify", "bad.json", "--all-n", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["valid"], answer["failing"]) == (False, 3)
    assert answer["report"]["violations"][0]["rule"] == "causal"
    assert main(["verify", "bad.json", "--all-n"]) == 1
    assert "not valid for every n >= 2: broken at n = 3" in capsys.readouterr().out


def test_what_repeats_nothing_or_is_not_valid_gets_no_yes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One microbatch has no middle, and a broken schedule none worth looking for."""
    bp.save(one_f_one_b(1), folder / "one.json")
    assert main(["verify", "one.json", "--all-n"]) == 1
    assert "nothing in it repeats" in capsys.readouterr().err
    broken = replace(one_f_one_b(2), rows=parse_rows(["0F0", "1F0", "2F0"]))
    bp.save(broken, folder / "broken.json")
    assert main(["verify", "broken.json", "--all-n"]) == 1
    assert "complete" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"step": 0}, "step: "),
        ({"step": [1, 1]}, "step: 2 numbers for 1 chains"),
        ({"kernel": [["0F0"]]}, "kernel: 1 rows for 3 devices"),
        ({"kernel": "0F0"}, "kernel: a list with one row for each device"),
        ({"epilogue": [["0X0"], [], []]}, "epilogue[0][0]: '0X0' is not an op"),
        ({"prologue": [[7], [], []]}, "prologue[0][0]: 7 is no op"),
        ({"colour": 1}, "colour"),
    ],
)
def test_a_malformed_periodic_file_is_told_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], cause: str
) -> None:
    """The line has the field and what is wrong with it."""
    save_periodic(kernel_of(one_f_one_b(6)), folder / "p.json")
    words = json.loads((folder / "p.json").read_text()) | change
    (folder / "p.json").write_text(json.dumps(words))
    assert main(["verify", "p.json", "--all-n"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("bubbleproof: p.json: ")
    assert cause in error
    assert error.count("\n") == 1


def test_all_n_is_not_asked_together_with_a_target_or_another_problem(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both concern one n."""
    periodic = kernel_of(one_f_one_b(6))
    save_periodic(periodic, folder / "p.json")
    bp.save(periodic.problem, folder / "problem.json")
    assert main(["verify", "p.json", "--all-n", "--target", "torch"]) == 2
    assert "ask one at a time" in capsys.readouterr().err
    assert main(["verify", "p.json", "--all-n", "--problem", "problem.json"]) == 2
    assert "leave --problem out" in capsys.readouterr().err
