"""The corpus: for each rule of SPEC.md a file that breaks it alone, and its nearest valid one."""

import json
import re
from pathlib import Path

import pytest

from bubbleproof.cli import main

ROOT = Path(__file__).parent
FEASIBLE, INFEASIBLE = ROOT / "data" / "feasible", ROOT / "data" / "infeasible"

# No file can hold a group that breaks rule group, since reading refuses it (see the last test).
WITHOUT_FILE = {"group"}

NUMBERED = re.compile(r"^\d+\. \*\*(\w+)\*\*", re.MULTILINE)
NAMED = re.compile(r"[Rr]ule \*\*(\w+)\*\*")

PLACES: dict[str, tuple[int | None, int | None]] = {
    "causal": (0, 1),
    "certificate": (1, None),
    "complete": (0, None),
    "deadlock": (0, 3),
    "direction": (1, 2),
    "exclusive": (1, 2),
    "matched": (0, 1),
    "memory": (0, 1),
    "order": (1, 0),
    "pair": (0, 0),
    "peer": (1, 2),
    "placement": (0, 6),
    "produced": (0, 0),
    "received": (1, 0),
    "replicas": (1, 6),
    "target": (1, 1),
    "timing": (0, 2),
    "weights": (0, 3),
}


def rules_of_the_specification() -> set[str]:
    """Return the names of all rules that SPEC.md states."""
    text = (ROOT.parent / "verify" / "SPEC.md").read_text(encoding="utf-8")
    return {*NUMBERED.findall(text), *NAMED.findall(text)}


def arguments(path: Path) -> list[str]:
    """Return the command line that judges a file; only its target's rule needs the target."""
    return ["verify", str(path), "--json", *(["--target", "torch"] * (path.stem == "target"))]


def test_each_rule_has_a_file_that_breaks_it_and_one_that_keeps_it() -> None:
    """No rule is without an example, and no file without a rule."""
    rules = rules_of_the_specification() - WITHOUT_FILE
    assert len(rules) >= 18
    assert {path.stem for path in INFEASIBLE.iterdir()} == rules
    assert {path.stem for path in FEASIBLE.iterdir()} == rules
    assert set(PLACES) == rules


@pytest.mark.parametrize("rule", sorted(PLACES))
def test_an_infeasible_file_breaks_its_rule_alone_at_its_place(
    rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One violation, with the device and the position of the fault."""
    assert main(arguments(INFEASIBLE / f"{rule}.json")) == 1
    answer = json.loads(capsys.readouterr().out)
    assert not answer["valid"]
    assert {violation["rule"] for violation in answer["violations"]} == {rule}
    first = answer["violations"][0]
    assert (first["device"], first["position"]) == PLACES[rule]


@pytest.mark.parametrize("rule", sorted(PLACES))
def test_a_feasible_file_verifies(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a violation, and with the times of a run that ends."""
    assert main(arguments(FEASIBLE / f"{rule}.json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["valid"], answer["violations"], answer["deadlock"]) == (True, [], None)
    assert answer["makespan"] > 0


@pytest.mark.parametrize("rule", sorted(PLACES))
def test_the_two_files_of_a_rule_are_for_one_problem(rule: str) -> None:
    """What one breaks and the other keeps is the rule, not another problem."""
    kept, broken = (
        json.loads((folder / f"{rule}.json").read_text(encoding="utf-8"))
        for folder in (FEASIBLE, INFEASIBLE)
    )
    assert kept["problem"] == broken["problem"]
    assert kept != broken


@pytest.mark.parametrize("group", ["{}", "{0SEND_F1 0REDUCE_GRAD}", "{0SEND_F1 0F1}"])
def test_a_file_with_a_group_that_is_none_is_refused_in_one_line(
    group: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule group can therefore be broken by programs made in Python alone."""
    text = (FEASIBLE / "deadlock.json").read_text(encoding="utf-8")
    spoiled = tmp_path / "group.json"
    spoiled.write_text(text.replace("{0SEND_F1 0RECV_B0}", group), encoding="utf-8")
    assert main(["verify", str(spoiled)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"bubbleproof: {spoiled}: rows[0][3]: ")
