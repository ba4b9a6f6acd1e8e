"""Rule target: what torch's runtime needs silently is found, with its place and its remedy."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import problem_of, written
from random_programs import random_program
from strategies import garbage_schedules, schedules

import bubbleproof as bp
from bubbleproof.cli import main
from bubbleproof.schedules.placement import explicit
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.renumber import renumbered
from bubbleproof.schedules.schedule import Schedule, parse_rows
from bubbleproof.verify.program_rules import verify_program
from bubbleproof.verify.target import Fitness, verify_for_target

CYCLES = {"causal", "deadlock"}
LATE = "0F1,0F0,0B1,0B0\n1F1,1F0,1B1,1B0\n"


def asked(problem: Problem, *rows: str) -> Fitness:
    """Return torch's needs of rows written as text."""
    return verify_for_target(Schedule(problem, parse_rows(rows)), "torch")


def only(found: Sequence[bp.Violation]) -> bp.Violation:
    """Return the one finding and check its rule."""
    (finding,) = found
    assert finding.rule == "target"
    return finding


def places(report: bp.Report) -> Counter[tuple[str, int | None]]:
    """Return how often each rule is broken in each row; a cycle may be told from any device."""
    return Counter((v.rule, v.device) for v in report.violations if v.rule not in CYCLES)


def texts(fitness: Fitness) -> str:
    """Return all notes in one text."""
    return " ".join(note.message for note in fitness.notes)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, in which the command line runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_last_forwards_out_of_order_are_found_at_the_one_that_comes_too_late() -> None:
    """Torch appends losses as they come and finds them by number; only the last stage matters."""
    rows = ("0F1 0F0 0B1 0B0", "1F1 1F0 1B1 1B0")
    finding = only(asked(problem_of(2, 2), *rows).violations)
    assert (finding.device, finding.position, finding.ops) == (1, 1, ("1F1", "1F0"))
    assert "--renumber" in finding.message
    assert asked(problem_of(2, 2), "0F1 0F0 0B0 0B1", "1F0 1F1 1B0 1B1").fits


def test_forwards_inside_pairs_are_in_the_order_too() -> None:
    """A pair's F appends its loss as any other."""
    row = "0F1 0B1 0F2 (0F0;0B2)OVERLAP_F_B 0B0"
    finding = only(asked(problem_of(1, 3), row).violations)
    assert (finding.position, finding.ops) == (3, ("0F2", "0F0"))


def test_a_chain_in_another_order_than_the_numbers_is_found_with_its_stages() -> None:
    """Torch's stage s talks to s - 1 and s + 1 alone."""
    placement = explicit(2, (0, 1, 0), chains=[[0, 2, 1]])
    problem = Problem(devices=2, placement=placement, microbatches=1, cost={"F": 1, "I": 1, "W": 1})
    finding = only(asked(problem, "0F0 2F0 2I0 2W0 0I0 0W0", "1F0 1I0 1W0").violations)
    assert finding.ops == ("0F", "2F")
    assert "number the stages in the order in which microbatches pass them" in finding.message


def test_two_chains_are_found_with_what_their_own_runtime_needs() -> None:
    """DualPipe's labels cross over, and gradients of copies are summed between two devices."""
    problem = problem_of(4, 8, "bidirectional", "split")
    fitness = verify_for_target(bp.families.dualpipe(problem))
    assert "has 2 chains, from stages 0 and 4" in only(fitness.violations).message
    text = texts(fitness)
    assert "device 3 needs the labels of what enters at device 0" in text
    assert "device 0 needs the labels of what enters at device 3" in text
    assert "stages 0 (device 0) and 4 (device 3) must start equal, sum their gradients" in text


def test_a_device_without_a_stage_is_found() -> None:
    """Torch takes the rank from the first stage of a device."""
    placement = explicit(3, (0, 2))
    problem = Problem(devices=3, placement=placement, microbatches=1, cost={"F": 1, "I": 1, "W": 1})
    finding = only(asked(problem, "0F0 0I0 0W0", "", "1F0 1I0 1W0").violations)
    assert (finding.device, finding.position) == (1, None)
    assert "solve for fewer devices" in finding.message


def test_an_empty_row_is_found_beside_the_missing_ops() -> None:
    """A blank line is none for torch's loader."""
    finding = only(asked(problem_of(2, 1), "0F0 0B0", "").violations)
    assert finding.device == 1
    assert "give it the ops of its stages" in finding.message


def test_a_program_without_reductions_is_found_and_one_with_some_left_to_rule_weights() -> None:
    """Torch executes a program as it is and divides gradients in REDUCE_GRAD alone."""
    problem = problem_of(2, 1)
    rows = ("0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0")
    finding = only(verify_for_target(written(problem, *rows)).violations)
    assert finding.ops == ("0REDUCE_GRAD", "1REDUCE_GRAD")
    half = written(problem, f"{rows[0]} 0REDUCE_GRAD", rows[1])
    assert verify_for_target(half).fits
    assert [violation.rule for violation in verify_program(half).violations] == ["weights"]


def test_a_schedule_needs_no_reductions_of_its_own() -> None:
    """Torch makes them where it lowers."""
    assert verify_for_target(bp.families.one_f_one_b(problem_of(2, 4))).fits


def test_a_group_is_found_and_gone_without_groups() -> None:
    """Torch posts each message alone."""
    schedule = bp.families.one_f_one_b(problem_of(2, 4))
    finding = only(verify_for_target(bp.lower(schedule)).violations)
    assert finding.position is not None
    assert finding.ops[0].startswith("{")
    assert verify_for_target(bp.lower(schedule, grouped=False)).fits


@pytest.mark.parametrize(
    ("backward", "row", "version"),
    [
        ("fused", "0F0 0B0 0F1 0B1", "F, I, W and B need torch 2.6 or newer"),
        ("fused", "0F0 (0F1;0B0)OVERLAP_F_B 0B1", "OVERLAP_F_B needs torch 2.9 or newer"),
        ("fused", "0F0 0B0 0F1 0B1 0REDUCE_GRAD", "REDUCE_GRAD needs torch 2.10 or newer"),
    ],
)
def test_words_that_an_older_torch_lacks_are_noted_at_their_first_place(
    backward: str, row: str, version: str
) -> None:
    """With the version that knows them, and nothing is wrong."""
    fitness = verify_for_target(written(problem_of(1, 2, backward=backward), row))
    assert version in texts(fitness)
    for note in fitness.notes:
        if note.position is not None:
            assert note.ops == (row.split()[note.position],)


@pytest.mark.parametrize(
    ("row", "version", "lacking"),
    [
        ("0F0 0B0 0F1 0B1 0REDUCE_GRAD", "2.9", "REDUCE_GRAD needs torch 2.10"),
        ("0F0 0B0 0F1 0B1 0REDUCE_GRAD", "2.10.1+cpu", None),
        ("0F0 (0F1;0B0)OVERLAP_F_B 0B1 0REDUCE_GRAD", "2.8", "OVERLAP_F_B needs torch 2.9"),
        ("0F0 (0F1;0B0)OVERLAP_F_B 0B1 0REDUCE_GRAD", "2.13", None),
    ],
)
def test_what_a_given_torch_lacks_is_a_violation(
    row: str, version: str, lacking: str | None
) -> None:
    """And a version that has all is told nothing of versions."""
    plan = written(problem_of(1, 2), row)
    fitness = verify_for_target(plan, torch_version=version)
    assert fitness.fits == (lacking is None)
    assert lacking is None or lacking in fitness.violations[0].message
    assert "or newer" not in texts(fitness)


def test_gloos_version_is_told_to_older_ones_alone() -> None:
    """Several stages on a device work on gloo from 2.12 on."""
    schedule = bp.families.zb_v(problem_of(2, 4, "v", "split"))
    assert "2.12 or newer" in texts(verify_for_target(schedule, torch_version="2.11"))
    assert "2.12 or newer" not in texts(verify_for_target(schedule, torch_version="2.12"))


def test_no_version_is_refused_with_one_that_is() -> None:
    """Major and minor."""
    with pytest.raises(ValueError, match=r"'newest' is no version of torch; write one as 2\.10"):
        verify_for_target(written(problem_of(1, 1), "0F0 0B0"), torch_version="newest")


def test_what_a_split_backward_excludes_is_noted_for_split_backwards_alone() -> None:
    """torch.compile, DistributedDataParallel's hooks, reentrant checkpointing."""
    split = verify_for_target(bp.families.zb_h1(problem_of(2, 4, backward="split")))
    assert "excludes torch.compile, DistributedDataParallel" in texts(split)
    assert "tied weights" in texts(split)
    assert 'solve with backward = "fused"' in texts(split)
    fused = verify_for_target(bp.families.one_f_one_b(problem_of(2, 4)))
    assert "torch.compile" not in texts(fused)


def test_several_stages_on_a_device_are_noted_with_their_order_and_gloos_version() -> None:
    """Stages are given in ascending order; one each is no matter."""
    note = texts(verify_for_target(bp.families.zb_v(problem_of(2, 4, "v", "split"))))
    assert "device 0 has stages 0, 3" in note
    assert "with gloo this needs torch 2.12" in note
    single = verify_for_target(bp.families.one_f_one_b(problem_of(2, 4)))
    assert "ascending order" not in texts(single)


def test_deferred_receives_are_warned_of_where_there_are_messages() -> None:
    """One device has none."""
    assert "never set defer_pp_recv" in texts(
        verify_for_target(bp.families.one_f_one_b(problem_of(2, 4)))
    )
    assert "defer_pp_recv" not in texts(asked(problem_of(1, 1), "0F0 0B0"))


def test_an_unknown_target_is_refused() -> None:
    """With one that there is."""
    schedule = bp.families.one_f_one_b(problem_of(2, 4))
    with pytest.raises(ValueError, match="target: 'jax' is unknown; torch is accepted"):
        verify_for_target(schedule, "jax")


@given(st.one_of(garbage_schedules(), st.randoms(use_true_random=False).map(random_program)))
def test_any_rows_get_an_answer(plan: Schedule | tuple[bp.Program, list[str]]) -> None:
    """Whatever the rows are, each finding has a rule, a message and a place inside the rows."""
    judged = plan if isinstance(plan, Schedule) else plan[0]
    fitness = verify_for_target(judged)
    for finding in (*fitness.violations, *fitness.notes):
        assert finding.rule == "target"
        assert finding.message
        if finding.position is not None:
            assert finding.device is not None
            assert 0 <= finding.position < len(judged.rows[finding.device])


@given(schedules())
def test_renumbering_keeps_the_verdict_and_puts_the_last_forwards_in_order(
    schedule: Schedule,
) -> None:
    """Microbatches of a chain are alike: same times and memory; a second time changes nothing."""
    before, other = bp.verify(schedule), renumbered(schedule)
    after = bp.verify(other)
    assert (after.valid, after.makespan, after.span, after.peak_memory) == (
        before.valid,
        before.makespan,
        before.span,
        before.peak_memory,
    )
    assert renumbered(other) == other
    if schedule.problem.placement.in_order:
        assert not [v for v in verify_for_target(other).violations if "losses" in v.message]


@given(st.randoms(use_true_random=False).map(random_program))
def test_a_renumbered_program_is_judged_as_before(drawn: tuple[bp.Program, list[str]]) -> None:
    """Messages are renumbered with their ops: the same rules are broken in the same rows."""
    program = drawn[0]
    before, after = verify_program(program), verify_program(renumbered(program))
    assert places(before) == places(after)
    assert (before.deadlock is None) == (after.deadlock is None)


def test_renumbering_leaves_what_the_problem_does_not_have() -> None:
    """A microbatch out of range keeps its number, and one without a last forward comes last."""
    rows = parse_rows(["0F9 0F2 0F0 0B1"])
    assert renumbered(Schedule(problem_of(1, 3), rows)).rows == parse_rows(["0F9 0F0 0F1 0B2"])


def test_verify_with_a_target_says_no_and_notes_what_it_needs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a target the same file is valid."""
    (folder / "s.csv").write_text(LATE)
    assert main(["verify", "s.csv", "--json"]) == 0
    assert "notes" not in json.loads(capsys.readouterr().out)
    assert main(["verify", "s.csv", "--target", "torch", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [(v["rule"], v["ops"]) for v in answer["violations"]] == [("target", ["1F1", "1F0"])]
    assert any("defer_pp_recv" in note["message"] for note in answer["notes"])
    assert main(["verify", "s.csv", "--target", "torch"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "row 1: >1F1< >1F0< 1B1 1B0" in text
    assert "target F, I, W and B need torch 2.6" in text


def test_renumber_writes_a_file_that_fits_the_target(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict is on what is written; FILE stays as it is."""
    (folder / "s.csv").write_text(LATE)
    assert main(["verify", "s.csv", "--target", "torch", "--renumber", "new.csv"]) == 0
    assert "s.csv: microbatches renumbered" in capsys.readouterr().err
    assert (folder / "new.csv").read_text() == "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"
    assert (folder / "s.csv").read_text() == LATE
    assert main(["verify", "new.csv", "--target", "torch", "--renumber", "again.csv"]) == 0
    assert "new.csv: as it was" in capsys.readouterr().err


def test_renumber_keeps_a_result_and_its_certificate(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times and claims do not depend on names."""
    problem = bp.Problem(devices=2, microbatches=3, cost={"F": 1, "I": 1, "W": 1})
    solved = bp.solve(problem, time_limit_s=5, workers=1).schedule
    bp.save(solved, folder / "s.json")
    assert main(["verify", "s.json", "--target", "torch", "--renumber", "r.json"]) == 0
    assert "confirmed" in capsys.readouterr().out
    assert bp.load_schedule("r.json").bound == solved.bound


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--renumber", "n.csv"], "--renumber: numbers matter to a runtime only; add --target"),
        (["--target", "torch", "--renumber", "s.csv"], "s.csv: is what is read here"),
        (["--target", "torch", "--renumber", "n.txt"], "n.txt: this is written as .json or .csv"),
        (["--target", "jax"], "jax"),
        (["--torch-version", "2.10"], "--torch-version: matters to torch only; add --target torch"),
        (["--target", "torch", "--torch-version", "two"], "'two' is no version of torch"),
        (["--all-n", "--transport", "buffered"], "leave --transport out"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], cause: str
) -> None:
    """Exit status 2, and nothing is written."""
    (folder / "s.csv").write_text(LATE)
    assert main(["verify", "s.csv", *arguments]) == 2
    assert cause in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["s.csv"]
    assert (folder / "s.csv").read_text() == LATE
