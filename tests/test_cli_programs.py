"""Programs on the command line: verify under transports, and repair."""

import json
from pathlib import Path

import pytest
from programs import hanging

import bubbleproof as bp
from bubbleproof.cli import main
from bubbleproof.schedules.io import load_program
from bubbleproof.verify.program_rules import verify_program

HANG = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"
)
IMPOSSIBLE = (
    "0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1\n"
    "1RECV_F1,1F1,1B1,1SEND_B1,1RECV_F0,1F0,1B0,1SEND_B0\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, in which the command line runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_schedule_is_lowered_and_its_messages_judged(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Verify says under which transports a schedule's messages arrive."""
    problem = bp.Problem(devices=3, microbatches=4, cost={"F": 1, "I": 1, "W": 1})
    bp.save(bp.families.zb_h1(problem), folder / "s.json")
    assert main(["verify", "s.json"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "as lowered, all arrive under buffered, rendezvous, pair-fifo, rank-fifo" in text
    assert main(["verify", "s.json", "--transport", "pair-fifo"]) == 0
    assert "as lowered, all arrive under pair-fifo certificate" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_deadlock_is_printed_with_the_place_of_each_device(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As JSON: the transport and where each device of the cycle stands."""
    (folder / "hang.csv").write_text(HANG)
    assert main(["verify", "hang.csv", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["valid"] is False
    assert answer["deadlock"] == {
        "transport": "rendezvous",
        "blocked": {"0": "0SEND_F1", "1": "1SEND_B0"},
    }
    (violation,) = answer["violations"]
    assert (violation["rule"], violation["device"], violation["position"]) == ("deadlock", 0, 3)
    assert main(["verify", "hang.csv"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "row 0: 0F0 0SEND_F0 0F1 >0SEND_F1< 0RECV_B0 0B0" in text
    assert "messages a deadlock under rendezvous" in text


def test_one_transport_can_be_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What hangs with NCCL passes with gloo's buffers."""
    (folder / "hang.csv").write_text(HANG)
    assert main(["verify", "hang.csv", "--transport", "buffered", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deadlock"] is None
    assert main(["verify", "hang.csv", "--transport", "rank-fifo", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["deadlock"]["transport"] == "rank-fifo"


def test_weights_left_unsharded_are_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program is valid, and stderr says what is probably not meant."""
    (folder / "open.csv").write_text("0UNSHARD,0F0,0B0\n")
    assert main(["verify", "open.csv"]) == 0
    errors = capsys.readouterr().err
    assert "open.csv: warning: device 0 has 0UNSHARD: stage 0 is left unsharded" in errors
    assert "open.csv: warning: no stage has a REDUCE_GRAD" in errors


@pytest.mark.parametrize("name", ["fixed.csv", "fixed.json"])
def test_repair_writes_a_program_that_verifies(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """With the same ops in the same order, as CSV or with groups as JSON."""
    (folder / "hang.csv").write_text(HANG)
    assert main(["repair", "hang.csv", "-o", name]) == 0
    assert "hang.csv: was deadlock: the program hangs" in capsys.readouterr().err
    assert main(["verify", name]) == 0
    before, after = bp.load_schedule("hang.csv"), bp.load_schedule(name)
    assert before.rows == after.rows
    assert hanging(load_program(name)) == []


def test_repair_prints_the_program_without_a_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the form of the file that it read."""
    (folder / "hang.csv").write_text(HANG)
    assert main(["repair", "hang.csv"]) == 0
    (folder / "printed.csv").write_text(capsys.readouterr().out)
    assert verify_program(load_program("printed.csv")).valid


def test_repair_leaves_a_valid_program_as_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is rewritten where nothing is wrong."""
    rows = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"
    (folder / "fine.csv").write_text(rows)
    assert main(["repair", "fine.csv"]) == 0
    streams = capsys.readouterr()
    assert streams.out == rows
    assert "fine.csv: as it was" in streams.err


def test_repair_shows_the_cycle_where_no_messages_help(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An order of ops that cannot run is an honest no, and no file is written."""
    (folder / "never.csv").write_text(IMPOSSIBLE)
    assert main(["repair", "never.csv", "-o", "out.csv"]) == 1
    text = " ".join(capsys.readouterr().err.split())
    assert "not repaired, since no messages help what is computed" in text
    assert "the order cannot run, a cycle of 2 waits: device 0 stands at 0B0" in text
    assert not (folder / "out.csv").exists()


def test_repair_says_what_stays_wrong(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Messages are put right; a reduction that is too early is not repair's to move."""
    (folder / "early.csv").write_text("0F0,0SEND_F0,0REDUCE_GRAD,0B0\n1F0,1B0,1REDUCE_GRAD\n")
    assert main(["repair", "early.csv", "-o", "out.csv"]) == 1
    text = " ".join(capsys.readouterr().err.split())
    assert "weights device 0, position 2 0REDUCE_GRAD" in text
    program = load_program("out.csv")
    assert {violation.rule for violation in verify_program(program).violations} == {"weights"}


def test_repair_takes_programs_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A schedule has no messages to repair."""
    (folder / "only.csv").write_text("0F0,0B0\n")
    assert main(["repair", "only.csv"]) == 2
    assert "only.csv: a schedule without messages" in capsys.readouterr().err
