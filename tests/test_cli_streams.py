"""The command line on problems whose cost has components."""

import json
from pathlib import Path

import pytest

from bubbleproof.cli import main

EXAMPLE = Path(__file__).parents[1] / "examples" / "deepseek_v3_components.toml"

SMALL = """
format = "bubbleproof.problem/1"
devices = 2
placement = "bidirectional"
microbatches = 4
time_unit = "ms"
backward = "free"

[cost.components]
attn_F = 4
dispatch_F = 4
mlp_F = 5
combine_F = 6
combine_B = 3
mlp_B = 5
mlp_W = 5
dispatch_B = 7
attn_B = 9
attn_W = 2
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return a file with a small problem."""
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    return file


def test_overlap_shows_the_order_of_issue(capsys: pytest.CaptureFixture[str]) -> None:
    """The measured layer's, which is DeepSeek's own, with its proof."""
    assert main(["overlap", str(EXAMPLE)]) == 0
    out = capsys.readouterr().out
    assert "31224 us, proven: the work of the compute stream" in out
    assert "31224 us in DeepSeek's order" in out
    assert "combine_B" in out


def test_overlap_prints_a_table_that_a_program_can_follow(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One object with the pairs that it holds for, and each component's stream and times."""
    assert main(["overlap", str(EXAMPLE), "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert {"device": 1, "forward": 1, "backward": 6} in pair["where"]
    assert len(pair["order"]) == 10
    assert [step["start"] for step in pair["order"]] == sorted(
        step["start"] for step in pair["order"]
    )
    assert pair["time"] == pair["bound"] == max(step["end"] for step in pair["order"])


def test_overlap_needs_components(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A problem without them is refused with what to give."""
    file = tmp_path / "plain.json"
    file.write_text(
        '{"format": "bubbleproof.problem/1", "devices": 2, "microbatches": 2, '
        '"cost": {"F": 1, "I": 1, "W": 1}}'
    )
    assert main(["overlap", str(file)]) == 2
    assert "plain.json: cost.components is missing" in capsys.readouterr().err


def test_solve_streams_writes_what_verify_confirms(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says what whole blocks lose."""
    out = tmp_path / "streams.json"
    asked = ["solve", str(small), "--streams", "--time-limit", "2", "--workers", "1"]
    assert main([*asked, "-o", str(out)]) == 0
    assert "whole blocks lose" in capsys.readouterr().out
    assert main(["verify", str(out), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    words = json.loads(out.read_text())
    assert verdict["valid"]
    assert verdict["makespan"] == words["objective"] >= words["bound"]
    assert main(["verify", str(out)]) == 0
    assert "peak memory" in capsys.readouterr().out
    assert main(["verify", str(out), "--all-n"]) == 2
    assert "takes no option but --problem" in capsys.readouterr().err
    assert main(["show", str(out)]) == 2
    assert "this is a schedule of components, not a schedule; verify" in capsys.readouterr().err


def test_solve_streams_prints_one_object(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what blocks reach beside it."""
    asked = ["solve", str(small), "--streams", "--time-limit", "1", "--workers", "1", "--json"]
    assert main(asked) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["bound"] <= answer["objective"] <= answer["blocks"]["objective"]
    assert answer["status"] in ("optimal", "feasible")


def test_verify_tells_what_is_wrong_with_streams(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A component left out, by name."""
    out = tmp_path / "streams.json"
    asked = ["solve", str(small), "--streams", "--time-limit", "1", "--workers", "1"]
    assert main([*asked, "-o", str(out)]) == 0
    words = json.loads(out.read_text())
    left_out = words["rows"][0]["compute"].pop()
    del words["starts"]
    out.write_text(json.dumps(words))
    capsys.readouterr()
    assert main(["verify", str(out)]) == 1
    assert f"{left_out}: missing" in capsys.readouterr().out


def test_blocks_take_what_their_components_take(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --streams pairs and B's of the derived costs are scheduled, and kept in the file."""
    out = tmp_path / "blocks.json"
    assert main(["solve", str(small), "--time-limit", "1", "-o", str(out), "--json"]) == 0
    cost = json.loads(out.read_text())["problem"]["cost"]
    assert (cost["F"], cost["I"], cost["W"], cost["B"], cost["pair"]) == (19, 24, 7, 26, 30)
    capsys.readouterr()
    assert main(["verify", str(out)]) == 0


@pytest.mark.parametrize("option", ["--all-n", "--deterministic"])
def test_streams_take_no_option_that_they_do_not_keep(
    option: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused before the search."""
    assert main(["solve", str(small), "--streams", option]) == 2
    assert "--streams: takes no --all-n" in capsys.readouterr().err
