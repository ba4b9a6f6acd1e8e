"""The command line: what it prints, what it exits with, and that nothing gives a traceback."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import bubbleproof as bp
from bubbleproof.cli import main
from bubbleproof.schedules.schedule import parse_rows

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = str(EXAMPLES / "small.toml")

SOLVE_KEYS = [
    "status",
    "objective",
    "bound",
    "gap",
    "makespan",
    "span",
    "bubble_ratio",
    "peak_memory",
    "seconds",
    "source",
    "proof",
]
PROOF_KEYS = ["name", "bound", "device", "terms", "text"]
VERIFY_KEYS = [
    "valid",
    "makespan",
    "span",
    "peak_memory",
    "violations",
    "deadlock",
    "certificate",
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
    """Run a command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def ran(*arguments: str) -> Ran:
        status = main(arguments)
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return ran


@pytest.fixture
def schedule_file(tmp_path: Path) -> str:
    """Return a file with a valid schedule: ZB-H1 on the small example."""
    path = tmp_path / "zb_h1.json"
    bp.save(bp.families.zb_h1(bp.load_problem(SMALL)), path)
    return str(path)


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Return the small example with the memory of 1F1B: ZB-H1's 294 ms is optimal there."""
    path = tmp_path / "small.toml"
    text = Path(SMALL).read_text(encoding="utf-8")
    path.write_text(text.replace("limit = 12", "limit = 8"), encoding="utf-8")
    return str(path)


def problem_file(folder: Path, **changes: object) -> str:
    """Write a problem with two devices and return its name."""
    words: dict[str, object] = {
        "format": "bubbleproof.problem/1",
        "name": "two",
        "devices": 2,
        "placement": "linear",
        "microbatches": 2,
        "cost": {"F": 1, "I": 1, "W": 1},
    }
    path = folder / "two.json"
    path.write_text(json.dumps({**words, **changes}), encoding="utf-8")
    return str(path)


def test_help_starts_without_heavy_imports() -> None:
    """``bubbleproof --help`` imports no solver, no plotting, no graphs and no torch."""
    code = (
        "import sys; from bubbleproof.cli import main; status = main(['--help']); "
        "heavy = {'ortools', 'matplotlib', 'networkx', 'torch', 'numba'} & set(sys.modules); "
        "sys.exit(f'{status} {heavy}' if status or heavy else 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    for command in ("solve", "family", "compare", "verify", "show", "export"):
        assert command in ran.stdout


def test_version_is_the_package_s(run: Run) -> None:
    """``--version`` prints the version and nothing else."""
    ran = run("--version")
    assert (ran.status, ran.out.strip()) == (0, bp.__version__)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["slove", "x.json"], 'Unknown command "slove". Did you mean "solve"?'),
        (["--nope"], 'Unknown command "--nope"'),
        (["solve"], "PROBLEM requires an argument"),
        (["solve", SMALL, "other.toml"], "'other.toml' is an argument too many"),
        (["compare", SMALL, "b", "c\nd"], "'b' 'c\\nd' are arguments too many"),
        (["solve", "-"], "- is no file; give its name, or /dev/stdin for what comes through"),
        (["solve", SMALL, "--time-limt", "3"], "Unknown option: --time-limt. Did you mean"),
        (["solve", SMALL, "--time-limit", "0"], "'0' is no time limit; a number above 0"),
        (["solve", SMALL, "--time-limit", "nan"], "'nan' is no time limit; a number above 0"),
        (["solve", SMALL, "--time-limit", "soon"], "'soon' is no time limit; a number above 0"),
        (["solve", SMALL, "--workers", "0"], "0 is out of range; 1..1024 is accepted"),
        (["solve", SMALL, "--seed", "1.5"], "'1.5' is not a whole number; write one, as 1"),
        (["solve", SMALL, "--workers", "16.0"], "'16.0' is not a whole number; write one, as 16"),
        (["solve", SMALL, "--seed", "-1"], "-1 is out of range; 0..2147483647 is accepted"),
        (["solve", SMALL, "-o", "s.txt"], "s.txt: this is written as .json or .csv"),
        (["solve", SMALL, "-o", "no/s.json"], "no does not exist; make it first"),
        (["solve", SMALL, "-o", "."], ".: this is written as .json or .csv"),
        (["family", "zb_h1", SMALL, "-o", "s.svg"], "s.svg: this is written as .json or .csv"),
        (["show", "x.json", "-o", "s.csv"], "s.csv: this is written as .svg or .png or .pdf"),
        (
            ["export", "x.json", "--to", "torchtitan", "-o", "s.json"],
            "s.json: this is written as .csv",
        ),
        (["solve", "missing.json"], "missing.json: there is no such file"),
        (["solve", "."], "is a folder"),
        (["family", "zb_h3", SMALL], "'zb_h3' is unknown; did you mean zb_h"),
        (["verify", SMALL], "not TOML; a problem goes to solve, family or compare"),
        (["verify", "--transport", "gloo", "x.json"], 'Invalid value "gloo" for --transport'),
        (["export", "x.json"], "--to requires an argument"),
        (["export", "x.json", "--to", "nccl"], 'Invalid value "nccl" for --to'),
        (["show", "a\nb.json"], "there is no such file"),
    ],
)
def test_what_cannot_be_used_exits_2_with_one_line(
    run: Run, arguments: list[str], expected: str
) -> None:
    """A wrong command, option, value or file is one line on stderr that says what would do."""
    ran = run(*arguments)
    assert ran.status == 2
    assert expected in ran.err
    assert ran.err.count("\n") == 1
    assert ran.out == ""


def test_solve_json_has_exactly_the_documented_keys(run: Run, small: str) -> None:
    """``solve --json`` prints one object on one line, in the user's unit."""
    ran = run("solve", small, "--json")
    answer = json.loads(ran.out)
    assert ran.status == 0
    assert list(answer) == SOLVE_KEYS
    assert answer["status"] == "optimal"
    assert answer["objective"] == answer["bound"] == answer["span"] == 294
    assert answer["gap"] == 0
    assert isinstance(answer["objective"], int)
    assert len(answer["peak_memory"]) == 4
    assert max(answer["peak_memory"]) <= 8
    assert answer["proof"][0]["bound"] == 294
    assert all(list(proof) == PROOF_KEYS for proof in answer["proof"])


def test_solve_says_what_is_proven_in_words(run: Run, small: str) -> None:
    """The summary has the objective, the proof, the best published schedule and the verdict."""
    ran = run("solve", small)
    assert ran.status == 0
    assert "optimal: no valid schedule has a smaller span" in " ".join(ran.out.split())
    assert "zb_h1 at 294 ms" in " ".join(ran.out.split())
    assert "valid, by the independent verifier" in ran.out
    assert "proof" in ran.out
    assert ran.err == "bubbleproof: to keep the schedule: bubbleproof solve ... -o schedule.json\n"


def test_solve_writes_a_schedule_that_verifies(run: Run, small: str) -> None:
    """The file of ``-o`` is a valid schedule with its bound in it."""
    assert run("solve", small, "-o", "s.json").status == 0
    schedule = bp.load_schedule("s.json")
    assert bp.verify(schedule).valid
    assert schedule.objective == schedule.bound == 294
    assert run("verify", "s.json").status == 0


def test_a_hundredth_of_a_second_still_gives_a_valid_schedule(run: Run) -> None:
    """A tiny limit returns a heuristic's schedule, "feasible" or proven, never "no solution"."""
    ran = run("solve", str(EXAMPLES / "zb_6_2b_1p.toml"), "--time-limit", "0.01", "-o", "s.json")
    assert ran.status == 0
    assert bp.verify(bp.load_schedule("s.json")).valid


def test_infeasible_limits_exit_1_with_the_least_that_would_do(run: Run, tmp_path: Path) -> None:
    """A memory limit that nothing fits is an honest no, with device, limit and remedy."""
    memory = {"F": 2, "I": -1, "W": -1, "limit": 1, "unit": "GiB"}
    file = problem_file(tmp_path, memory=memory)
    ran = run("solve", file)
    assert ran.status == 1
    assert "infeasible" in ran.out
    assert "2 GiB would do" in ran.out
    answer = json.loads(run("solve", file, "--json").out)
    assert list(answer) == SOLVE_KEYS
    assert (answer["status"], answer["objective"]) == ("infeasible", None)
    (proof,) = answer["proof"]
    assert (proof["device"], proof["limit"], proof["least"]) == (0, 1, 2)
    assert set(proof) == {*PROOF_KEYS, "limit", "least", "standing"}
    assert proof["standing"] == "confirmed"
    assert "one microbatch alone needs 2 GiB on device 0, recomputed" in " ".join(ran.out.split())


def test_exact_decimals_come_back_as_they_were_written(run: Run, tmp_path: Path) -> None:
    """0.29 + 0.57 is 0.86, and a whole number is printed as one."""
    file = problem_file(tmp_path, devices=1, microbatches=1, cost={"F": 0.29, "I": 0.57, "W": 0.14})
    ran = run("family", "gpipe", file, "--json")
    assert json.loads(ran.out)["makespan"] == 1
    assert '"makespan": 1,' in ran.out
    file = problem_file(tmp_path, devices=1, microbatches=1, cost={"F": 0.29, "I": 0.57, "W": 0})
    assert '"makespan": 0.86,' in run("family", "gpipe", file, "--json").out


def test_warnings_go_to_stderr(run: Run, tmp_path: Path) -> None:
    """What is allowed but probably not meant is said, and does not stop the work."""
    file = problem_file(tmp_path, cost={"F": [1, 0], "I": [1, 0], "W": [1, 0]})
    ran = run("family", "gpipe", file, "--json")
    assert ran.status == 0
    assert "two.json: warning: cost: stage 1 takes no time at all" in ran.err
    json.loads(ran.out)


def test_a_family_over_the_limit_exits_1_and_is_written(run: Run) -> None:
    """GPipe holds every microbatch: it is drawn up, written, and said to break the limit."""
    ran = run("family", "gpipe", SMALL, "-o", "gpipe.json")
    assert ran.status == 1
    assert "memory" in ran.err
    assert not bp.verify(bp.load_schedule("gpipe.json")).valid


def test_compare_has_every_family_and_the_solver(run: Run, small: str) -> None:
    """Each family is in the table or has its reason; what fits comes first."""
    ran = run("compare", small, "--json")
    answer = json.loads(ran.out)
    assert ran.status == 0
    assert answer["minimized"] == "span"
    candidates, refused = answer["candidates"], answer["refused"]
    assert sorted(c["name"] for c in [*candidates, *refused]) == sorted(
        [*bp.families.names(), "solve"]
    )
    fits = [c["fits"] for c in candidates]
    assert fits == sorted(fits, reverse=True)
    spans = [c["span"] for c in candidates if c["fits"]]
    assert spans == sorted(spans)
    assert all(r["reason"] for r in refused)
    text = run("compare", small).out
    assert "over, device 0" in text
    assert "; zb_h1 reaches it, so it is optimal" in " ".join(text.split())


@pytest.mark.slow
def test_compare_says_who_reaches_the_bound(run: Run, tmp_path: Path) -> None:
    """Solve alone; a published schedule; or neither, then how much is to be gained over each."""
    file = problem_file(
        tmp_path,
        devices=4,
        microbatches=8,
        memory={"F": 2, "I": -1, "W": -1, "limit": 12},
        objective="span",
    )
    words = " ".join(run("compare", file).out.split())
    assert "a smaller span than 25; solve reaches it, so it is optimal: 7.41 % below zb_h1" in words
    hard = problem_file(
        tmp_path,
        devices=8,
        placement="v",
        microbatches=24,
        cost={"F": 7, "I": 9, "W": 4, "transfer": 1},
        memory={"F": 1, "W": -1, "limit": 10},
    )
    words = " ".join(run("compare", hard, "--time-limit", "0.1").out.split())
    assert re.search(r"is to be gained over \w+, and [0-9.]+ % over solve", words)


def test_compare_has_one_row_for_families_of_the_same_order(run: Run, small: str) -> None:
    """With one chunk per device interleaving is 1F1B and breadth-first is GPipe."""
    text = run("compare", small, "--time-limit", "1").out
    names = [line.split()[0] for line in text.splitlines() if line]
    assert {"one_f_one_b", "gpipe", "zb_h1", "solve"} <= set(names)
    assert not {"interleaved_1f1b", "looped_bfs"} & set(names)
    assert "one_f_one_b here is also interleaved_1f1b" in text
    assert "gpipe here is also looped_bfs" in text


def test_the_proof_has_each_argument_once(run: Run, small: str) -> None:
    """Bounds of several names that are the same sum here share a row."""
    text = run("solve", small).out
    proof = text[text.rindex("\nproof") :]
    arguments = [line.split("ms", 1)[1].strip() for line in proof.splitlines() if " ms " in line]
    assert len(arguments) > 2
    assert len(arguments) == len(set(arguments))


def test_a_pair_cuts_no_title_short(run: Run, tmp_path: Path) -> None:
    """At 80 columns every title is whole, however wide what stands under the last one is."""
    file = problem_file(
        tmp_path,
        devices=4,
        placement="bidirectional",
        microbatches=20,
        cost={"F": 19285.25, "I": 25000.5, "W": 7000.25, "pair": 32000.5},
        backward="free",
        memory={"F": 1000.5, "W": -1000.5, "limit": 100000.5},
    )
    text = run("family", "dualpipe", file).out
    (titles,) = [line for line in text.splitlines() if line.startswith("device ")]
    assert titles.split()[:5] == ["device", "work", "waiting", "transfer", "tail"]
    assert re.search(r"[0-9]F[0-9]+\+[0-9]B[0-9]+", text)
    assert max(map(len, text.splitlines())) <= 80


def test_verify_json_has_exactly_the_documented_keys(run: Run, schedule_file: str) -> None:
    """A valid schedule: exit 0, no violations, no deadlock."""
    ran = run("verify", schedule_file, "--json")
    answer = json.loads(ran.out)
    assert ran.status == 0
    assert list(answer) == VERIFY_KEYS
    assert answer["valid"] is True
    assert (answer["violations"], answer["deadlock"]) == ([], None)
    assert answer["peak_memory"] == [8, 7, 6, 5]


def test_verify_names_and_marks_the_place(run: Run, tmp_path: Path, schedule_file: str) -> None:
    """A lost W: exit 1, with rule, device and op, and JSON has the same."""
    words = json.loads(Path(schedule_file).read_text(encoding="utf-8"))
    row = words["rows"][2]
    first, second = row.index("2F0"), row.index("2F1")
    row[first], row[second] = row[second], row[first]
    words.pop("starts", None)
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(words), encoding="utf-8")
    row.remove("2W3")
    lost = tmp_path / "lost.json"
    lost.write_text(json.dumps(words), encoding="utf-8")

    ran = run("verify", str(lost))
    assert ran.status == 1
    assert "not valid" in ran.out
    assert "2W3" in ran.out
    answer = json.loads(run("verify", str(lost), "--json").out)
    (complete,) = [v for v in answer["violations"] if v["rule"] == "complete"]
    assert list(complete) == ["rule", "device", "position", "ops", "message"]
    assert complete["ops"] == ["2W3"]


def test_verify_marks_the_cell_in_the_row(run: Run) -> None:
    """The offending cell stands between > and < with its neighbours around it."""
    run("family", "gpipe", SMALL, "-o", "gpipe.json")
    ran = run("verify", "gpipe.json")
    assert " 0F3 0F4 0F5 >0F6< 0F7 0I0 " in ran.out


def test_a_verdict_stays_on_one_screen(run: Run, tmp_path: Path) -> None:
    """Many violations are counted, the first few shown; JSON has them all."""
    memory = {"F": 1, "W": -1, "limit": 1}
    file = problem_file(tmp_path, devices=12, microbatches=12, memory=memory)
    run("family", "gpipe", file, "-o", "s.json")
    ran = run("verify", "s.json")
    assert ran.status == 1
    assert "and 9 more; --json lists all" in ran.out
    assert len(ran.out.splitlines()) <= 24
    assert len(json.loads(run("verify", "s.json", "--json").out)["violations"]) == 12


def test_verify_takes_another_problem(run: Run, tmp_path: Path) -> None:
    """A schedule that is valid for its own problem is judged on the given one."""
    run("family", "gpipe", problem_file(tmp_path), "-o", "s.json")
    assert run("verify", "s.json").status == 0
    tight = problem_file(tmp_path, memory={"F": 1, "W": -1, "limit": 1})
    ran = run("verify", "s.json", "--problem", tight)
    assert ran.status == 1
    assert "memory" in ran.out


def test_an_order_is_timed_anew_where_its_start_times_do_not_fit(run: Run, tmp_path: Path) -> None:
    """Re-profiled times: the old starts are judged and said to be of other times, or dropped."""
    assert run("solve", problem_file(tmp_path), "-o", "s.json").status == 0
    slower = problem_file(tmp_path, cost={"F": 2, "I": 3, "W": 2})
    for command in (["verify"], ["show"], ["export", "--to", "torch-compute-only"]):
        ran = run(*command, "s.json", "--problem", slower)
        assert ran.status == 1
        assert "s.json: its start times do not fit the times of" in ran.err
        order = run(*command, "s.json", "--problem", slower, "--order-only")
        assert order.status == 0
        assert "start times" not in order.err
    expected = bp.simulate(bp.load_schedule("s.json", bp.load_problem(slower), order_only=True))
    verdict = json.loads(run("verify", "s.json", "--problem", slower, "--order-only", "--json").out)
    assert verdict["makespan"] == expected.makespan


def test_another_number_of_devices_is_said_before_any_start(run: Run, tmp_path: Path) -> None:
    """The starts of other devices are not judged by the ticks of this problem."""
    cost = {"F": 1.25, "I": 1, "W": 1}
    assert run("solve", problem_file(tmp_path, cost=cost), "-o", "s.json").status == 0
    three = problem_file(tmp_path, devices=3)
    ran = run("verify", "s.json", "--problem", three)
    assert ran.status == 2
    assert "s.json: rows: 2 rows for 3 devices; one for each is right" in ran.err


def test_show_draws_every_device_in_the_terminal(run: Run, schedule_file: str) -> None:
    """Without -o: a line for each device within the terminal's width, and the memory."""
    ran = run("show", schedule_file)
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert [line[:2] for line in lines[:4]] == ["0 ", "1 ", "2 ", "3 "]
    assert lines[0].startswith("0 F0")
    assert max(map(len, lines)) <= 80
    assert "peak memory" in ran.out


@pytest.mark.parametrize("name", ["s.svg", "s.png"])
def test_show_writes_a_picture(run: Run, schedule_file: str, name: str) -> None:
    """With -o the timeline is drawn into a picture."""
    ran = run("show", schedule_file, "-o", name)
    assert ran.status == 0
    start = Path(name).read_bytes()[:100]
    assert start.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")


@pytest.mark.parametrize("output", [(), ("-o", "s.svg")])
def test_show_draws_what_breaks_a_limit_and_says_so(run: Run, output: tuple[str, ...]) -> None:
    """GPipe over the limit has times: it is drawn, with the verdict on stderr, and exits 1."""
    run("family", "gpipe", SMALL, "-o", "gpipe.json")
    ran = run("show", "gpipe.json", *output)
    assert ran.status == 1
    assert "not valid" in ran.err
    assert "memory" in ran.err
    assert Path("s.svg").exists() if output else ran.out.startswith("0 ")


def test_without_matplotlib_show_says_how_to_get_it(
    run: Run, schedule_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, with a command that works wherever bubbleproof came from, and the way without."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    ran = run("show", schedule_file, "-o", "s.svg")
    assert ran.status == 2
    assert "s.svg: pictures need matplotlib: pip install 'matplotlib>=3.8'" in ran.err
    assert "leave -o out for the terminal" in ran.err
    assert not Path("s.svg").exists()


def test_show_refuses_other_pictures(run: Run, schedule_file: str) -> None:
    """An extension that is not drawn is refused with those that are."""
    ran = run("show", schedule_file, "-o", "s.docx")
    assert ran.status == 2
    assert ".svg" in ran.err


def test_show_says_why_a_deadlock_is_not_drawn(run: Run, schedule_file: str) -> None:
    """An order that cannot run has no times: exit 1, with the rule that it breaks."""
    path = Path(schedule_file)
    words = json.loads(path.read_text(encoding="utf-8"))
    words["rows"][3].reverse()
    words.pop("starts", None)
    path.write_text(json.dumps(words), encoding="utf-8")
    ran = run("show", schedule_file)
    assert ran.status == 1
    assert "not drawn" in ran.err
    assert "causal" in ran.err


def test_export_prints_the_csv_and_the_settings(run: Run, schedule_file: str) -> None:
    """Stdout is the file as torch reads it, stderr what must be set beside it."""
    ran = run("export", schedule_file, "--to", "torch-compute-only")
    assert ran.status == 0
    rows = [line.split(",") for line in ran.out.splitlines()]
    assert len(rows) == 4
    assert rows[0][0] == "0F0"
    assert 'pipeline_parallel_schedule = "1F1B"' in ran.err
    assert "num_pp_microbatches = 8" in ran.err
    written = run("export", schedule_file, "--to", "torch-compute-only", "-o", "s.csv")
    assert written.status == 0
    assert Path("s.csv").read_text(encoding="utf-8") == ran.out
    assert "pipeline_parallel_schedule_csv = 's.csv'" in written.err


@pytest.mark.parametrize(
    ("placement", "name", "expected"),
    [
        ("v", "zb_v", '"ZBVZeroBubble"'),
        ("loop:2", "interleaved_1f1b", '"Interleaved1F1B"'),
        ("wave:4", "hanayo", "no schedule name of its has this placement"),
    ],
)
def test_export_names_the_placement_of_torchtitan(
    run: Run, tmp_path: Path, placement: str, name: str, expected: str
) -> None:
    """The loader picks the placement by a schedule's name, so the right name is said."""
    file = problem_file(tmp_path, placement=placement)
    assert run("family", name, file, "-o", "s.json").status == 0
    ran = run("export", "s.json", "--to", "torch-compute-only")
    assert ran.status == 0
    assert expected in ran.err


def test_a_bare_csv_is_said_to_have_a_guessed_problem(run: Run, tmp_path: Path) -> None:
    """Its times and memory are nobody's: each command says so, and JSON stays JSON."""
    problem = problem_file(tmp_path, cost={"F": 10, "I": 12, "W": 8})
    assert run("family", "zb_h1", problem, "-o", "s.csv").status == 0
    for arguments in (
        ["verify", "s.csv"],
        ["verify", "s.csv", "--json"],
        ["show", "s.csv"],
        ["export", "s.csv", "--to", "torch-compute-comms"],
    ):
        ran = run(*arguments)
        assert ran.status == 0
        assert ran.err.count("s.csv: its problem is guessed: F, I and W take 1") == 1
        given = run(*arguments, "--problem", problem)
        assert given.status == 0
        assert "guessed" not in given.out + given.err
    assert "unit times, guessed from a CSV" in run("verify", "s.csv").out
    assert json.loads(run("verify", "s.csv", "--json").out)["valid"] is True


def test_no_command_writes_over_what_it_reads(run: Run, tmp_path: Path) -> None:
    """An input that is named as the output, by whatever path, stays as it was."""
    problem = problem_file(tmp_path)
    assert run("family", "gpipe", problem, "-o", "s.json").status == 0
    assert run("export", "s.json", "--to", "torch-compute-only", "-o", "s.csv").status == 0
    Path("link.csv").symlink_to("s.csv")
    Path("two.svg").symlink_to(problem)
    for arguments in (
        ["solve", problem, "-o", "./two.json"],
        ["family", "gpipe", problem, "-o", "two.json"],
        ["show", "s.json", "--problem", problem, "-o", "two.svg"],
        ["export", "s.csv", "--to", "torch-compute-only", "-o", "link.csv"],
        ["repair", "s.csv", "--problem", problem, "-o", "two.json"],
    ):
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        ran = run(*arguments)
        assert ran.status == 2
        assert "is what is read here and would be lost; give another name" in ran.err
        assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_export_refuses_two_chains(run: Run, tmp_path: Path) -> None:
    """Torch's stages talk to their neighbours by number: no bidirectional placement."""
    file = problem_file(tmp_path, placement="bidirectional", microbatches=4)
    assert run("family", "chimera", file, "-o", "s.json").status == 0
    ran = run("export", "s.json", "--to", "torch-compute-only")
    assert ran.status == 2
    assert "placement: bidirectional has 2 chains, from stages 0 and 2; torch has one" in ran.err
    assert ran.out == ""


def test_export_refuses_a_chain_that_does_not_ascend(run: Run, tmp_path: Path) -> None:
    """Two stages in reverse: torch would send stage 0's output to stage 1, not the other way."""
    file = problem_file(tmp_path, placement={"device_of_stage": [0, 1], "chains": [[1, 0]]})
    rows = ("0F0 0I0 0W0 0F1 0I1 0W1", "1F0 1F1 1I0 1W0 1I1 1W1")
    schedule = bp.Schedule(bp.load_problem(file), parse_rows(rows))
    assert bp.verify(schedule).valid
    bp.save(schedule, "s.json")
    ran = run("export", "s.json", "--to", "torch-compute-only")
    assert ran.status == 2
    assert "placement: after stage 1 comes stage 0, but torch hands what" in ran.err


def test_export_refuses_forwards_out_of_order_on_the_last_stage(run: Run, tmp_path: Path) -> None:
    """Torch looks losses up in the order of forwards: others give wrong gradients silently."""
    problem = bp.load_problem(problem_file(tmp_path, devices=1))
    rows = bp.families.gpipe(problem).rows[0]
    swapped = bp.Schedule(problem, ((rows[1], rows[0], *rows[2:]),))
    assert bp.verify(swapped).valid
    bp.save(swapped, "s.json")
    ran = run("export", "s.json", "--to", "torch-compute-only")
    assert ran.status == 2
    assert "device 0 runs 0F0 after 0F1; torch finds losses by the order" in ran.err


def test_export_refuses_what_is_not_valid(run: Run) -> None:
    """A schedule that breaks a rule is not handed on: exit 1 with the rule."""
    run("family", "gpipe", SMALL, "-o", "gpipe.json")
    ran = run("export", "gpipe.json", "--to", "torch-compute-only")
    assert ran.status == 1
    assert ran.out == ""
    assert "not exported to torch-compute-only, since it is not valid" in ran.err


def test_control_characters_reach_no_terminal(run: Run, tmp_path: Path) -> None:
    """Names from a file are shown escaped, and are no markup."""
    file = problem_file(tmp_path, name="[red]a\x1b[31m\nb")
    ran = run("family", "gpipe", file)
    assert "\x1b" not in ran.out
    assert "[red]a" in ran.out


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_search_keeps_its_best(tmp_path: Path, by: signal.Signals) -> None:
    """Ctrl-C, or SIGTERM: the best schedule is written, exit status 130 or 143, within seconds."""
    output = tmp_path / "best.json"
    problem = problem_file(
        tmp_path,
        devices=8,
        placement="v",
        microbatches=40,
        cost={"F": 7, "I": 9, "W": 4, "transfer": 1},
        memory={"F": 1, "W": -1, "limit": 10},
    )
    command = [sys.executable, "-m", "bubbleproof", "solve", problem]
    with subprocess.Popen(
        [*command, "-o", str(output), "--time-limit", "100"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        # Whoever runs the tests in the background may have them ignore Ctrl-C, which is inherited.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        end = time.monotonic() + 30
        while not output.exists() and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(by)
        sent = time.monotonic()
        out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + by, err
    assert time.monotonic() - sent < 10
    assert "Traceback" not in err
    assert "interrupted" in out
    assert bp.verify(bp.load_schedule(output)).valid


def test_ctrl_c_before_the_command_line_stands_ends_quietly(tmp_path: Path) -> None:
    """Its libraries take a moment to import; there, too, it is exit status 130 and no traceback."""
    (tmp_path / "cyclopts.py").write_text("raise KeyboardInterrupt\n", encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "bubbleproof", "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def test_a_closed_pipe_ends_quietly(schedule_file: str) -> None:
    """``bubbleproof show ... | head -0`` leaves no traceback behind."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        ran = subprocess.run(
            [sys.executable, "-m", "bubbleproof", "show", schedule_file],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_under_stdout_is_one_line(schedule_file: str) -> None:
    """Output that cannot be written is said in one line."""
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "bubbleproof", "verify", schedule_file, "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.returncode == 2
    assert ran.stderr == "bubbleproof: cannot write the output: No space left on device\n"


def test_an_ascii_terminal_gets_escapes_and_no_traceback(small: str) -> None:
    """A narrow encoding of stdout is served as far as it goes."""
    ran = subprocess.run(
        [sys.executable, "-m", "bubbleproof", "solve", small],
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


WORDS = st.sampled_from(
    [
        *("solve", "family", "compare", "verify", "show", "export", "--help", "--version", "--"),
        *("-o", "--json", "--problem", "--to", "torch-compute-only", "--time-limit", "0.01"),
        *("--workers", "--seed", "gpipe", "x.json", "", "-", "--no-json", "--json=1", "-o=", "\0"),
    ]
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(WORDS, st.text(max_size=8)), max_size=6))
@example(["verify", "\ud800"])
@example(["show", "a\0b"])
@example(["export", "x.json", "--to", "torch-compute-only", "--to", "x"])
def test_no_arguments_whatever_give_a_traceback(run: Run, arguments: list[str]) -> None:
    """Any words end in a known exit status, and a refusal is one line."""
    ran = run(*arguments)
    assert ran.status in (0, 1, 2)
    if ran.status == 2:
        assert ran.err.startswith("bubbleproof: ")
        assert ran.err.count("\n") == 1


BYTES = st.one_of(
    st.binary(max_size=64),
    st.text(max_size=64).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["format", "rows", "problem", "devices", "cost"]), inner
            )
        ),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode()),
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    BYTES,
    st.sampled_from([".json", ".toml", ".csv", ""]),
    st.sampled_from(
        [["solve"], ["family", "gpipe"], ["compare"], ["verify"], ["show"], ["verify", "--json"]]
    ),
)
@example(b"[" * 100_000, ".json", ["verify"])
@example(b"\xef\xbb\xbf{}", ".json", ["solve"])
@example(b"0F0;0B0\n", ".csv", ["verify"])
def test_no_file_whatever_gives_a_traceback(
    run: Run, content: bytes, suffix: str, command: list[str]
) -> None:
    """Any bytes as the input file end in a known exit status, and a refusal names the file."""
    name = f"input{suffix}"
    Path(name).write_bytes(content)
    ran = run(*command, name)
    assert ran.status in (0, 1, 2)
    if ran.status == 2:
        assert ran.err.startswith("bubbleproof: input")
        assert ran.err.count("\n") == 1


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_damaged_schedule_gives_a_traceback(
    run: Run, schedule_file: str, data: st.DataObject
) -> None:
    """A schedule file with a piece cut out or put in gets a verdict, a refusal or a picture."""
    text = Path(schedule_file).read_text(encoding="utf-8")
    begin = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 20))
    put = data.draw(st.sampled_from(["", ",", '"', "-", "null", "1e400", "[]", "{}", '"2F0"']))
    Path("damaged.json").write_text(text[:begin] + put + text[begin + cut :], encoding="utf-8")
    for command in (["verify"], ["show"], ["export", "--to", "torch-compute-only"]):
        ran = run(*command, "damaged.json")
        assert ran.status in (0, 1, 2)
        if ran.status == 2:
            assert ran.err.count("\n") == 1
