"""Violations for people: one screen, and the offending cells marked in every row concerned."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import problem_of
from random_programs import random_program
from rich.console import Console
from strategies import garbage_schedules

import bubbleproof as bp
from bubbleproof import report
from bubbleproof.cli import main
from bubbleproof.faults import LINE, cells, faults
from bubbleproof.schedules.program import Program
from bubbleproof.schedules.schedule import Schedule, parse_rows
from bubbleproof.verify.program_rules import verify_program

INFEASIBLE = Path(__file__).parent / "data" / "infeasible"
SCREEN = 24


def printed(verdict: bp.Report, plan: Schedule | Program) -> list[str]:
    """Return the lines of a verdict on a screen of 80 columns."""
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture:
        console.print(report.verdict(verdict, plan))
    return capture.get().splitlines()


@pytest.mark.parametrize(
    ("rule", "rows"),
    [
        ("deadlock", ["row 0: 0F0 0SEND_F0 0F1 >0SEND_F1< ", "row 1: 1RECV_F0 1F0 1B0 >1SEND_B0<"]),
        ("order", ["row 1: >1RECV_F1< 1RECV_F0 ", "row 0: 0F0 0F1 >0SEND_F0< 0SEND_F1"]),
        ("causal", ["row 0: 0F0 >0B1< >0F1< 0B0"]),
        ("target", ["row 1: >1F1< >1F0< 1B1 1B0"]),
        ("replicas", ["row 1: ", ">1REDUCE_GRAD< 2REDUCE_GRAD", "row 0: ", ">0REDUCE_GRAD< 3REDU"]),
        ("pair", ["row 0: >(0F0;0B0)OVERLAP_F_B< 0F1 0B1"]),
    ],
)
def test_all_cells_that_a_violation_is_about_are_marked(
    rule: str, rows: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In the row of its place and in those of the other devices."""
    target = ["--target", "torch"] * (rule == "target")
    assert main(["verify", str(INFEASIBLE / f"{rule}.json"), *target]) == 1
    out = capsys.readouterr().out
    for row in rows:
        assert row in out


@pytest.mark.parametrize("path", sorted(INFEASIBLE.iterdir()), ids=lambda path: path.stem)
def test_the_verdict_on_each_file_of_the_corpus_fits_one_screen(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 lines of 80 characters, messages and certificate included."""
    monkeypatch.setenv("COLUMNS", "80")
    target = ["--target", "torch"] * (path.stem == "target")
    assert main(["verify", str(path), *target]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= 80


def test_many_violations_of_many_devices_fit_one_screen() -> None:
    """As many as fit, how many more there are, and one line for the memory of 32 devices."""
    schedule = bp.families.zb_v(problem_of(32, 64, "v", "split"))
    random = Random(1)
    rows = [list(row) for row in bp.lower(schedule, grouped=False).rows]
    for row in rows:
        one, other = random.sample(range(len(row)), 2)
        row[one], row[other] = row[other], row[one]
    program = Program(schedule.problem, tuple(map(tuple, rows)))
    verdict = verify_program(program)
    lines = printed(verdict, program)
    assert len(verdict.violations) > 20
    assert len(lines) <= SCREEN
    more = int(lines[-1].removeprefix("and ").removesuffix(" more; --json lists all"))
    assert 0 < more < len(verdict.violations)
    assert any("the most on device" in line for line in lines)


@given(st.one_of(garbage_schedules(), st.randoms(use_true_random=False).map(random_program)))
def test_whatever_is_wrong_is_shown(plan: Schedule | tuple[Program, list[str]]) -> None:
    """Each violation that is shown has its rule, and all others are counted."""
    judged = plan if isinstance(plan, Schedule) else plan[0]
    verdict = bp.verify(judged) if isinstance(judged, Schedule) else verify_program(judged)
    lines = printed(verdict, judged)
    assert lines[-1].startswith("and ") or len(verdict.violations) <= lines.count("")
    if verdict.violations:
        assert any(line.startswith(verdict.violations[0].rule) for line in lines)
    else:
        assert list(faults(verdict.violations, judged)) == []


@given(st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True).map(sorted))
def test_a_row_fits_a_line_with_all_its_marks(marked: list[int]) -> None:
    """However far they stand apart, with what is nearest to each and dots between."""
    row = " ".join(f"0F{number}" for number in range(100))
    schedule = Schedule(problem_of(1, 100), parse_rows([row]))
    text = cells(schedule, 0, marked).plain
    assert len(text) <= LINE
    for position in marked:
        assert f" >0F{position}<" in text
    assert text.startswith("row 0: ")
    assert text.endswith("...") or "0F99" in text
