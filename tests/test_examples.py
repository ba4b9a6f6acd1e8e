"""The examples are what they say they are, and the README works as it is written."""

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

import bubbleproof as bp
from bubbleproof.cli import main

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
DATA = Path(__file__).parent / "data"
FILES = sorted([*EXAMPLES.glob("*.json"), *EXAMPLES.glob("*.toml")])
README = (ROOT / "README.md").read_text(encoding="utf-8")


def amounts(problem: bp.Problem, changes: tuple[tuple[int, int], ...]) -> list[tuple[float, float]]:
    """Return what an op kind allocates and frees on each stage, in the problem's unit."""
    return [(problem.amount(allocate), problem.amount(free)) for allocate, free in changes]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_example_loads_and_is_described(path: Path) -> None:
    """Each file is a problem without warnings, and examples/README.md has a line for it."""
    problem = bp.load_problem(path)
    assert problem.name
    assert problem.warnings() == ()
    assert f"[{path.name}]({path.name})" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_example_is_solved_at_once_and_verifies(path: Path) -> None:
    """Even a hundredth of a second gives a valid schedule with a bound below its objective."""
    result = bp.solve(bp.load_problem(path), time_limit_s=0.01, workers=1)
    assert bp.verify(result.schedule).valid
    assert result.bound <= result.objective


@pytest.mark.parametrize(
    ("stem", "model", "microbatches"),
    [("zb_1_5b", "1.5B", 24), ("zb_6_2b", "6.2B", 24), ("zb_14_6b", "14.6B", 48)],
)
@pytest.mark.parametrize("times", [1, 2])
def test_the_zero_bubble_examples_are_the_paper_s_numbers(
    stem: str, model: str, microbatches: int, times: int
) -> None:
    """Times, memory and limit are those of the paper's row (arXiv 2401.10241, tables 5, 8, 9)."""
    rows = json.loads((DATA / "zb_paper.json").read_text(encoding="utf-8"))["flat"]
    (row,) = [r for r in rows if (r["model"], r["microbatches"]) == (model, microbatches)]
    (path,) = EXAMPLES.glob(f"{stem}_{times}p.*")
    problem = bp.load_problem(path)
    p, held, weights = row["devices"], row["M_B"], row["M_W"]
    assert (problem.devices, problem.total_microbatches) == (p, microbatches)
    cost = problem.cost
    assert tuple((row[kind],) * p for kind in "FIW") == (cost.F, cost.I, cost.W)
    assert cost.transfer == row["transfer"]
    memory = problem.memory
    assert ((held, 0),) * p == memory.F
    assert ((0, held - weights),) * p == memory.I
    assert ((0, weights),) * p == memory.W
    assert memory.limit == (times * p * held,) * p
    assert problem.objective is bp.Objective.SPAN


def test_the_deepseek_example_is_the_measured_layer() -> None:
    """Blocks of the public trace, and DualPipe's own memory as the limit."""
    text = (DATA / "deepseek_v3_profile.json").read_text(encoding="utf-8")
    blocks = json.loads(text)["blocks"]
    problem = bp.load_problem(EXAMPLES / "deepseek_v3.toml")
    cost = problem.cost
    assert set(cost.F) == {blocks["F"]}
    assert set(cost.I) == {blocks["I"]}
    assert set(cost.W) == {blocks["W"]}
    assert set(cost.B) == {blocks["B_serial"]}
    assert set(cost.pair) == {blocks["FB_measured"]}
    peak = bp.simulate(bp.families.dualpipe(problem)).peak_memory
    assert set(peak) == {problem.devices + 1}
    assert problem.memory.limit == peak


def test_the_llama_example_follows_from_its_configuration() -> None:
    """Operations and bytes, counted anew from the model's sizes as examples/README.md says."""
    hidden, keys, inner, words, tokens = 4096, 1024, 14336, 128256, 8192
    layers = [4, 5, 5, 4, 4, 4, 4, 2]
    last = len(layers) - 1
    projections = 2 * (2 * hidden**2 + 2 * hidden * keys)
    feed_forward = 2 * 3 * hidden * inner
    attention = 2 * tokens * hidden
    head = 2 * hidden * words
    flops = {
        "F": Fraction(projections + feed_forward + attention),
        "I": projections + feed_forward + Fraction(5, 2) * attention,
        "W": Fraction(projections + feed_forward),
    }
    problem = bp.load_problem(EXAMPLES / "llama3_8b.toml")
    given = {"F": problem.cost.F, "I": problem.cost.I, "W": problem.cost.W}
    for kind, per_layer in flops.items():
        assert given[kind] == tuple(
            round((count * per_layer + head * (stage == last)) * tokens / (400 * 10**6))
            for stage, count in enumerate(layers)
        )
    assert problem.cost.transfer == round(hidden * tokens * 2 / 50e3)

    mib = 2**20
    kept = 34 * tokens * hidden / mib
    gradients = 21 * tokens * hidden / mib
    logits = tokens * words * 4 / mib
    memory = problem.memory
    assert amounts(problem, memory.F) == [
        (count * kept + logits * (stage == last), 0) for stage, count in enumerate(layers)
    ]
    assert amounts(problem, memory.I) == [
        (
            count * gradients + logits / 2 * (stage == last),
            count * gradients + logits * (stage == last),
        )
        for stage, count in enumerate(layers)
    ]
    assert amounts(problem, memory.W) == [
        (0, count * kept + logits / 2 * (stage == last)) for stage, count in enumerate(layers)
    ]
    layer = 2 * hidden**2 + 2 * hidden * keys + 3 * hidden * inner + 2 * hidden
    assert [problem.amount(grains) for grains in memory.static] == [
        (count * layer + words * hidden * (stage in (0, last))) * 16 / mib
        for stage, count in enumerate(layers)
    ]


def test_the_small_example_beats_what_is_published() -> None:
    """With the memory of 12 no published schedule that fits is below 294; 262 is the optimum."""
    problem = bp.load_problem(EXAMPLES / "small.toml")
    fitting = [
        bp.simulate(schedule).span
        for name in ("gpipe", "one_f_one_b", "zb_h1", "zb_h2")
        if bp.verify(schedule := bp.families.build(name, problem)).valid
    ]
    assert min(fitting) == 294
    assert bp.simulate(bp.families.zb_h2(problem)).span == 264


def test_the_readme_s_table_is_what_the_families_say() -> None:
    """Names, placements, conditions, weight copies and sources, in the order of ``names()``."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in README.splitlines()
        if re.match(r"\| `\w+` \|", line)
    ]
    described = [bp.families.describe(name) for name in bp.families.names()]
    assert [[row[0], row[1], row[2], row[5], row[6]] for row in rows] == [
        [f"`{f.name}`", f.placement, f.condition or "any", f"{f.copies}x", f.source]
        for f in described
    ]


@pytest.mark.slow
def test_the_readme_s_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of the README proves its example optimal and leaves both files."""
    section = README.split("## From Python")[1]
    code = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    report = names["report"]
    assert isinstance(report, bp.Report)
    assert report.valid
    assert bp.load_schedule("schedule.json").objective == 262
    assert Path("schedule.svg").stat().st_size > 0


@pytest.mark.slow
def test_the_readme_s_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command of the command line's section exits with 0, in the order given there."""
    section = README.split("## From the command line")[1]
    (block,) = re.findall(r"```\n(bubbleproof .*?)```", section, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    for line in block.splitlines():
        assert main(line.split()[1:]) == 0, (line, capsys.readouterr().err)


def test_the_readme_s_problem_is_one(tmp_path: Path) -> None:
    """The annotated problem file of the README loads and is the small example in other words."""
    (text,) = re.findall(r"```toml\n(.*?)```", README, flags=re.DOTALL)
    path = tmp_path / "problem.toml"
    path.write_text(text, encoding="utf-8")
    problem, small = bp.load_problem(path), bp.load_problem(EXAMPLES / "small.toml")
    memory = replace(small.memory, unit=problem.memory.unit)
    assert (problem.cost, problem.memory) == (small.cost, memory)


REFERENCE = (ROOT / "docs" / "problem.md").read_text(encoding="utf-8")


def described(title: str) -> set[str]:
    """Return the words in the first column of a section's table in docs/problem.md."""
    section = re.split(r"\n##+ ", REFERENCE.split(f"# {title}", 1)[1], maxsplit=1)[0]
    rows = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`(\w+)`", row)}


def test_the_reference_s_files_are_read_as_it_says(tmp_path: Path) -> None:
    """The problem has no warnings, and the schedule is valid with its starts and without."""
    (problem,) = re.findall(r"```toml\n(.*?)```", REFERENCE, flags=re.DOTALL)
    (schedule,) = re.findall(r"```json\n(.*?)```", REFERENCE, flags=re.DOTALL)
    (tmp_path / "p.toml").write_text(problem, encoding="utf-8")
    (tmp_path / "s.json").write_text(schedule, encoding="utf-8")
    assert bp.load_problem(tmp_path / "p.toml").warnings() == ()
    for order_only in (False, True):
        loaded = bp.load_schedule(tmp_path / "s.json", order_only=order_only)
        assert (loaded.starts is None) == order_only
        assert bp.verify(loaded).valid


def test_the_reference_has_every_word_of_a_file(tmp_path: Path) -> None:
    """The words that a reader accepts, as it lists them in refusing another, are all described."""
    for title, words in {
        "A problem": {},
        "Cost": {"cost": {"": 0}},
        "Memory": {"memory": {"": 0}, "cost": {"F": 1, "I": 1, "W": 1}},
    }.items():
        extra = {} if "cost" in words else {"": 0}
        problem = {"format": "bubbleproof.problem/1", "devices": 2, "microbatches": 2}
        (tmp_path / "p.json").write_text(json.dumps({**problem, **words, **extra}))
        with pytest.raises(ValueError, match=r"is unknown \(accepted: ") as caught:
            bp.load_problem(tmp_path / "p.json")
        accepted = str(caught.value).split("accepted: ")[1].rstrip(")").split(", ")
        assert described(title) == set(accepted)
    (tmp_path / "s.json").write_text(json.dumps({"format": "bubbleproof.schedule/1", "": 0}))
    with pytest.raises(ValueError, match=r"is unknown \(accepted: ") as caught:
        bp.load_schedule(tmp_path / "s.json")
    accepted = str(caught.value).split("accepted: ")[1].rstrip(")").split(", ")
    assert described("A schedule") == set(accepted) - {"format"}


def test_a_copied_stage_takes_one_number_as_the_reference_says() -> None:
    """On a bidirectional placement p or 2p numbers are read; anything else is refused."""

    def forwards(given: list[int]) -> tuple[int, ...]:
        cost = {"F": given, "I": 1, "W": 1}
        problem = bp.Problem(devices=3, placement="bidirectional", microbatches=4, cost=cost)
        return problem.cost.F

    assert forwards([1, 2, 3]) == forwards([1, 2, 3, 1, 2, 3]) == (1, 2, 3, 1, 2, 3)
    with pytest.raises(ValueError, match=r"cost\.F: 4 items, but the placement has 6 stages"):
        forwards([1, 2, 3, 4])
