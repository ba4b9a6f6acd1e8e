"""The command frontier: its table, its object, its files and its exit status."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

import bubbleproof as bp
from bubbleproof.cli import main

KEYS = [
    "problem",
    "minimized",
    "complete",
    "bound",
    "points",
    "floors",
    "published",
    "least",
    "seconds",
    "interrupted",
]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command line left behind."""

    status: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``frontier`` in this process, in an empty folder, with one worker."""
    monkeypatch.chdir(tmp_path)

    def ran(*arguments: str) -> Ran:
        status = main(["frontier", *arguments, "--workers", "1"])
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return ran


def problem_file(folder: Path, **words: object) -> str:
    """Write a problem that is proven at all limits in a second, or another one."""
    known: dict[str, object] = {
        "format": "bubbleproof.problem/1",
        "name": "three",
        "devices": 3,
        "microbatches": 5,
        "cost": {"F": 10, "I": 12, "W": 8, "transfer": 1},
        "memory": {"F": 2, "I": -1, "W": -1, "unit": "GiB"},
        "objective": "span",
        "time_unit": "ms",
    }
    path = folder / "problem.json"
    path.write_text(json.dumps(known | words), encoding="utf-8")
    return str(path)


def test_the_object_has_the_curve_and_what_stands_beside_it(run: Run, tmp_path: Path) -> None:
    """Points, bounds, published schedules and the gain over them, in the user's units."""
    ran = run(problem_file(tmp_path), "--json", "--time-limit", "30")
    assert ran.status == 0
    found = json.loads(ran.out)
    assert list(found) == KEYS
    assert found["complete"]
    assert found["least"] is None
    assert [point["memory"] for point in found["points"]] == [2, 3, 4, 5, 6, 7, 8, 10]
    assert all(point["status"] == "optimal" for point in found["points"])
    assert found["points"][-1]["objective"] == found["bound"]
    zb_h1 = next(family for family in found["published"] if family["name"] == "zb_h1")
    assert zb_h1["memory"] == 6
    there = next(point for point in found["points"] if point["memory"] == 6)
    assert zb_h1["best_within"] == there["objective"] <= zb_h1["objective"]
    assert max(there["peak_memory"]) == 6


def test_the_table_names_all_that_matters(run: Run, tmp_path: Path) -> None:
    """Every memory with its time, the published schedules, and that more memory is no use."""
    ran = run(problem_file(tmp_path), "--time-limit", "30")
    assert ran.status == 0
    assert "zb_h1" in ran.out
    assert "more memory than 10 GiB gains nothing" in ran.out
    assert "times in ms, memory in GiB" in ran.out


def test_files_are_a_picture_the_object_and_schedules(run: Run, tmp_path: Path) -> None:
    """-o draws or writes the object; each schedule verifies, and keeps the memory in its name."""
    problem = problem_file(tmp_path)
    assert run(problem, "-o", "curve.svg", "--schedules", "kept", "--time-limit", "30").status == 0
    assert (tmp_path / "curve.svg").read_text(encoding="utf-8").startswith("<?xml")
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert "memory-10.json" in names
    for name in names:
        schedule = bp.load_schedule(tmp_path / "kept" / name)
        assert bp.verify(schedule).valid
        assert max(bp.simulate(schedule).peak_memory) == int(name[7:-5])
        assert main(["verify", str(tmp_path / "kept" / name)]) == 0
    assert run(problem, "-o", "curve.json", "--time-limit", "30").status == 0
    assert list(json.loads((tmp_path / "curve.json").read_text(encoding="utf-8"))) == KEYS


def test_the_least_memory_for_a_bubble_in_either_notation(run: Run, tmp_path: Path) -> None:
    """10% and 0.1 are the same question, and its answer says what is proven."""
    problem = problem_file(tmp_path)
    answers = [
        json.loads(run(problem, "--max-bubble", text, "--json").out)["least"]
        for text in ("10%", "0.1")
    ]
    assert answers[0] == answers[1]
    assert answers[0]["exact"]
    assert answers[0]["memory"] == answers[0]["proven_short_below"]
    ran = run(problem, "--max-bubble", "10%")
    assert ran.status == 0
    assert "and it is proven that less does not" in " ".join(ran.out.split())


def test_a_bubble_that_no_memory_reaches_is_an_honest_no(run: Run, tmp_path: Path) -> None:
    """Exit 1, with the proof that no memory does."""
    problem = problem_file(tmp_path, objective="makespan")
    ran = run(problem, "--max-bubble", "0%")
    assert ran.status == 1
    assert "proven that no memory does" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--max-bubble", "2"], "'2' is no bubble; write one below 100 %, as 2% or 0.02"),
        (["--max-bubble=-1%"], "'-1%' is no bubble"),
        (["--max-bubble", "nan"], "'nan' is no bubble"),
        (["--max-bubble", "lots%"], "'lots%' is no bubble"),
        (["--points", "1"], "1 is out of range; 2..1000 is accepted"),
        (["-o", "curve.txt"], "curve.txt: this is written as .svg or .png or .pdf or .json"),
        (["--schedules", "no/such"], "no/such: is no folder, and none can be made there"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    run: Run, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    """Exit 2 before the search, with what would be right."""
    ran = run(problem_file(tmp_path), *arguments)
    assert ran.status == 2
    assert complaint in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("by", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_curve_is_shown_and_written(
    tmp_path: Path, by: signal.Signals, status: int
) -> None:
    """Ctrl-C, or SIGTERM: what there is of the curve is printed and written, exit 130 or 143."""
    output = tmp_path / "curve.json"
    problem = problem_file(tmp_path, devices=8, placement="v", microbatches=24)
    command = [sys.executable, "-m", "bubbleproof", "frontier", problem, "-o", str(output)]
    with subprocess.Popen(
        [*command, "--time-limit", "100", "--json", "--workers", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        # Whoever runs the tests in the background may have them ignore Ctrl-C, which is inherited.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        time.sleep(8)
        process.send_signal(by)
        out, err = process.communicate(timeout=20)
    assert process.returncode == status, err
    found = json.loads(out)
    assert found["interrupted"]
    assert found == json.loads(output.read_text(encoding="utf-8"))
    times = [point["objective"] for point in found["points"]]
    assert times == sorted(times, reverse=True)
    assert len(times) > 1
