"""Programs for every n: written messages proven by induction, against explicit unrolling."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import bubbleproof as bp
from bubbleproof.cli import main
from bubbleproof.schedules.periodic_cut import periodic_programs_of
from bubbleproof.schedules.periodic_program import PeriodicProgram, repeated_program
from bubbleproof.schedules.periodic_words import (
    periodic_program_of_words,
    save_periodic,
    words_of_periodic,
)
from bubbleproof.schedules.program import Action, Group, Step, parse_step
from bubbleproof.verify.every_n_program import verify_program_every_n
from bubbleproof.verify.program_rules import verify_program

FAMILIES = ("one_f_one_b", "zb_h1", "interleaved_1f1b", "zb_v", "dualpipe", "dualpipe_v", "chimera")


def lowered(name: str, devices: int, microbatches: int, *, grouped: bool = True) -> bp.Program:
    """Return a family's program."""
    problem = bp.Problem(
        devices=devices,
        placement=bp.families.describe(name).placement.replace(":V", ":2"),
        microbatches=microbatches,
        cost={"F": 3, "I": 4, "W": 2, "pair": 5, "transfer": 1},
        backward="free",
    )
    return bp.lower(bp.families.build(name, problem), grouped=grouped)


def proven(program: bp.Program) -> PeriodicProgram:
    """Return the first kernel of a program that serves every n."""
    return next(
        found for found in periodic_programs_of(program) if verify_program_every_n(found).valid
    )


@cache
def kernels() -> list[PeriodicProgram]:
    """Return families on two devices as periodic programs, with groups and without."""
    return [
        proven(lowered(name, 2, 12, grouped=grouped))
        for name in FAMILIES
        for grouped in (True, False)
    ]


def parts(text: str) -> tuple[tuple[Step, ...], ...]:
    """Read a row of steps for each line; a group is written without spaces: ``{0SEND_F1+...}``."""
    return tuple(
        tuple(parse_step(step.replace("+", " ")) for step in line.split())
        for line in text.strip().splitlines()
    )


def two_devices(kernel: str) -> PeriodicProgram:
    """Return 1F1B on two devices with messages in the kernel that is given."""
    return PeriodicProgram(
        problem=bp.Problem(
            devices=2, microbatches=1, cost={"F": 1, "B": 2}, backward="fused", memory={"limit": 3}
        ),
        step=(1,),
        prologue=parts("0F0 0SEND_F0\n1RECV_F0 1F0"),
        kernel=parts(kernel),
        epilogue=parts("0RECV_B0 0B0\n1B0 1SEND_B0"),
    )


GROUPED = "0F1 {0SEND_F1+0RECV_B0} 0B0\n1B0 {1SEND_B0+1RECV_F1} 1F1"
FACING = "0F1 0SEND_F1 0RECV_B0 0B0\n1B0 1SEND_B0 1RECV_F1 1F1"
RECEIVED_FIRST = "0F1 0SEND_F1 0RECV_B0 0B0\n1B0 1RECV_F1 1SEND_B0 1F1"
BEHIND_ITS_USE = "0F1 0SEND_F1 0B0 0RECV_B0\n1B0 1RECV_F1 1SEND_B0 1F1"


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_written_messages_of_a_family_are_proven_for_every_n(name: str, grouped: bool) -> None:
    """Found in a program for one n, which they give again; as twenty unrollings more say."""
    program = lowered(name, 2, 12, grouped=grouped)
    periodic = proven(program)
    more = (sum(program.problem.microbatches) - sum(periodic.problem.microbatches)) // sum(
        periodic.step
    )
    assert repeated_program(periodic, more).rows == program.rows
    verdict = verify_program_every_n(periodic)
    for repetitions in range(verdict.unrolled + 20):
        assert verify_program(repeated_program(periodic, repetitions)).valid


def test_a_kernel_in_which_sends_face_each_other_hangs_for_some_n() -> None:
    """As a group, or with one device receiving first, it ends for all."""
    assert verify_program_every_n(two_devices(GROUPED)).valid
    assert verify_program_every_n(two_devices(RECEIVED_FIRST)).valid
    facing = verify_program_every_n(two_devices(FACING))
    assert (facing.valid, facing.failing) == (False, 2)
    assert [v.rule for v in facing.report.violations] == ["deadlock"]
    assert facing.report.deadlock is not None
    assert facing.report.deadlock["transport"] == "rendezvous"
    late = verify_program_every_n(two_devices(BEHIND_ITS_USE))
    assert [v.rule for v in late.report.violations] == ["received"]


def mutated(periodic: PeriodicProgram, random: Random) -> PeriodicProgram:
    """Move, exchange, renumber, lose or split messages of one part of one device."""
    name = random.choice(["prologue", "kernel", "kernel", "epilogue"])
    rows = [
        list(row)
        for row in {
            "prologue": periodic.prologue,
            "kernel": periodic.kernel,
            "epilogue": periodic.epilogue,
        }[name]
    ]
    row = random.choice(rows)
    messages = [at for at, step in enumerate(row) if isinstance(step, (Action, Group))]
    if not messages:
        return periodic
    at = random.choice(messages)
    step = row[at]
    match random.choice(["move", "swap", "swap", "later", "lose", "split", "join"]):
        case "move":
            row.insert(random.randrange(len(row)), row.pop(at))
        case "swap":
            other = random.choice(messages)
            row[at], row[other] = row[other], row[at]
        case "later" if isinstance(step, Action) and step.microbatch is not None:
            row[at] = Action(step.stage, step.kind, step.microbatch + random.choice([-1, 1]))
        case "lose":
            del row[at]
        case "split" if isinstance(step, Group):
            row[at : at + 1] = random.sample(step.messages, len(step.messages))
        case "join" if at + 1 in messages:
            following = row[at + 1]
            if (
                isinstance(step, Action)
                and isinstance(following, Action)
                and step.kind.is_message
                and following.kind.is_message
            ):
                row[at : at + 2] = [Group((step, following))]
        case _:
            pass
    changed = tuple(map(tuple, rows))
    match name:
        case "prologue":
            return replace(periodic, prologue=changed)
        case "kernel":
            return replace(periodic, kernel=changed)
        case _:
            return replace(periodic, epilogue=changed)


@st.composite
def mutants(draw: st.DrawFn) -> PeriodicProgram:
    """Draw a periodic program with a few messages of any part changed."""
    periodic = draw(st.sampled_from(kernels()))
    random = draw(st.randoms(use_true_random=False))
    for _ in range(draw(st.integers(0, 3))):
        periodic = mutated(periodic, random)
    return periodic


@given(periodic=mutants())
@example(periodic=two_devices(GROUPED))
@example(periodic=two_devices(FACING))
@example(periodic=two_devices(BEHIND_ITS_USE))
@settings(max_examples=60, deadline=None)
def test_the_proof_says_yes_exactly_where_every_unrolling_verifies(
    periodic: PeriodicProgram,
) -> None:
    """Up to n0 + 20, and at the number that it names where it says no."""
    verdict = verify_program_every_n(periodic)
    first = next(
        (
            sum(program.problem.microbatches)
            for program in (repeated_program(periodic, number) for number in range(21))
            if not verify_program(program).valid
        ),
        None,
    )
    if verdict.failing is None or first is not None:
        assert verdict.failing == first
    assert verdict.failing is None or not verdict.report.valid


def test_a_periodic_program_survives_its_file() -> None:
    """Words and back, without loss."""
    for periodic in kernels():
        assert periodic_program_of_words(words_of_periodic(periodic)) == periodic


def test_the_command_line_judges_programs_for_every_n(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A periodic file as it stands, a program or its CSV by what repeats in it."""
    save_periodic(two_devices(GROUPED), tmp_path / "good.json")
    assert main(["verify", str(tmp_path / "good.json"), "--all-n"]) == 0
    assert "valid for every n >= 1, under every transport" in capsys.readouterr().out
    save_periodic(two_devices(FACING), tmp_path / "bad.json")
    assert main(["verify", str(tmp_path / "bad.json"), "--all-n", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["valid"], answer["failing"]) == (False, 2)
    bp.save(repeated_program(two_devices(RECEIVED_FIRST), 9), tmp_path / "program.csv")
    assert main(["verify", str(tmp_path / "program.csv"), "--all-n"]) == 0
    assert "0SEND_F" in capsys.readouterr().out


def test_a_program_in_which_nothing_repeats_is_not_proven(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A no that says so: it is valid for its own n."""
    bp.save(repeated_program(two_devices(RECEIVED_FIRST), 0), tmp_path / "short.json")
    assert main(["verify", str(tmp_path / "short.json"), "--all-n"]) == 1
    assert "not proven for others" in capsys.readouterr().err
