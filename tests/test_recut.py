"""One model cut for every placement: the same work, and what differs."""

import json
from pathlib import Path

import pytest

import bubbleproof as bp
from bubbleproof.cli import main
from bubbleproof.solver.recut import PLACEMENTS, messages, recut

LINEAR = bp.Problem(
    devices=4,
    placement="linear",
    microbatches=8,
    cost={"F": 1.5, "I": 2, "W": 1, "pair": 4, "transfer": 0.25},
    memory={"F": 3, "I": -1, "W": -2, "static": 7, "limit": 40},
    backward="free",
)


@pytest.mark.parametrize("words", PLACEMENTS)
def test_every_cut_has_the_same_work_and_limits(words: str) -> None:
    """All devices together do the same; transfers and limits stay, in the user's unit."""
    cut = recut(LINEAR, words)
    chain = cut.placement.chains[0]
    for ticks, whole in ((cut.cost.F, 6), (cut.cost.I, 8), (cut.cost.W, 4)):
        assert sum(cut.time(ticks[stage]) for stage in chain) == whole
    assert cut.time(cut.transfer(0, 1)) == 0.25
    assert [cut.amount(limit) for limit in cut.memory.limit if limit is not None] == [40] * 4
    assert cut.total_microbatches == 8


def test_two_directions_hold_the_weights_twice_and_a_v_holds_them_once() -> None:
    """A bidirectional stage is as large as a linear one, a stage of a V half as large."""
    static = {words: recut(LINEAR, words) for words in PLACEMENTS}
    held = {words: cut.amount(cut.static(0)) for words, cut in static.items()}
    assert held == {"linear": 7, "loop:2": 7, "v": 7, "wave:4": 7, "bidirectional": 14}
    pairs = {words: cut.time(cut.cost.pair[0] or 0) for words, cut in static.items()}
    assert pairs == {"linear": 4, "loop:2": 2, "v": 2, "wave:4": 1, "bidirectional": 4}


def test_messages_are_those_between_devices() -> None:
    """Three cuts between four devices; a V turns on one device, a loop does not."""
    sent = {words: messages(recut(LINEAR, words)) for words in PLACEMENTS}
    assert sent == {"linear": 48, "loop:2": 112, "v": 96, "wave:4": 192, "bidirectional": 48}


def test_a_cut_there_and_back_is_the_same_problem() -> None:
    """Cutting loses nothing: one family takes as long before and after."""
    back = recut(recut(LINEAR, "v"), "linear")
    before, after = (bp.simulate(bp.families.zb_h1(p)) for p in (LINEAR, back))
    assert (before.makespan, before.peak_memory) == (after.makespan, after.peak_memory)


def test_unequal_stages_are_refused_with_the_place() -> None:
    """Nothing is known of the parts of a stage unlike the others."""
    cost = {"F": [1, 1, 1, 2], "I": 1, "W": 1}
    problem = bp.Problem(devices=4, placement="linear", microbatches=4, cost=cost)
    assert recut(problem, "linear") is problem
    with pytest.raises(ValueError, match=r"cost\.F\[3\]: differs .* the same number for all"):
        recut(problem, "v")


def test_compare_shows_all_placements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Families stand with their placement, and the solver with a bound on each."""
    path = tmp_path / "problem.json"
    words = {"devices": 2, "placement": "linear", "microbatches": 4, "backward": "free"}
    words |= {"format": "bubbleproof.problem/1", "cost": {"F": 1, "I": 1, "W": 1, "pair": 3}}
    path.write_text(json.dumps(words))
    assert main(["compare", str(path), "--placements", "--time-limit", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    solved = {c["placement"]: c for c in answer["candidates"] if c["name"] == "solve"}
    assert set(solved) == set(PLACEMENTS)
    assert all(c["bound"] <= c["objective"] for c in solved.values())
    assert {"one_f_one_b", "zb_h1", "zb_v", "chimera", "hanayo", "dualpipe", "dualpipe_v"} <= {
        c["name"] for c in answer["candidates"]
    }
    assert main(["compare", str(path), "--placements", "--time-limit", "1"]) == 0
    assert "the same devices, model, microbatches" in capsys.readouterr().out


def test_no_number_of_the_comparison_is_cut_off_in_a_narrow_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With times of six digits and names of sixteen letters, in 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "problem.json"
    words = {"devices": 4, "placement": "linear", "microbatches": 8, "backward": "free"}
    words |= {"cost": {"F": 14234, "I": 17123, "W": 8111, "pair": 31224}}
    words |= {"format": "bubbleproof.problem/1", "memory": {"F": 1, "W": -1, "limit": 5}}
    path.write_text(json.dumps(words))
    assert main(["compare", str(path), "--placements", "--time-limit", "0.5"]) == 0
    text = capsys.readouterr().out
    assert "…" not in text
    assert "interleaved_1f1b loop:2" in text
    assert ["wave:4", "16", "1x", "192"] in [line.split() for line in text.splitlines()]


def test_what_does_not_apply_is_told_for_the_placement_that_it_is_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an odd number of microbatches DualPipe's number is at fault, not the placement."""
    path = tmp_path / "problem.json"
    words = {"devices": 2, "placement": "linear", "microbatches": 3}
    words |= {"format": "bubbleproof.problem/1", "cost": {"F": 1, "I": 1, "W": 1}}
    path.write_text(json.dumps(words))
    assert main(["compare", str(path), "--placements", "--time-limit", "0.5", "--json"]) == 0
    refused = json.loads(capsys.readouterr().out)["refused"]
    reasons = {entry["name"]: entry["reason"] for entry in refused}
    assert "microbatches is 3" in reasons["dualpipe"]
    assert not any("placement" in reason for reason in reasons.values())
