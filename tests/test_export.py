"""Export: what torch and torchtitan get, judged as they will execute it, or why they cannot."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import bubbleproof as bp
from bubbleproof.cli import main
from bubbleproof.schedules.program import Program, parse_step
from bubbleproof.schedules.torch_comms import ungrouped

COST = {"F": 10, "I": 12, "W": 8, "transfer": 1}


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command line left behind."""

    status: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``bubbleproof export`` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def ran(*arguments: str) -> Ran:
        status = main(("export", *arguments))
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return ran


def saved(value: bp.Schedule | Program, name: str = "s.json") -> str:
    """Write a schedule or a program and return its file's name."""
    bp.save(value, name)
    return name


def two_devices(*rows: str) -> Program:
    """Return a program of 1F1B's problem on two devices; a place for each word."""
    problem = bp.Problem(devices=2, microbatches=2, cost=COST, backward="fused")
    return Program(problem, tuple(tuple(map(parse_step, row.split())) for row in rows))


def test_compute_comms_is_the_lowered_schedule(run: Run) -> None:
    """The CSV has the safe order, without groups, and its settings beside it."""
    schedule = bp.families.zb_v(bp.Problem(devices=2, placement="v", microbatches=4, cost=COST))
    file = saved(schedule)
    ran = run(file, "--to", "torch-compute-comms", "-o", "p.csv")
    assert (ran.status, ran.out) == (0, "")
    assert bp.load_program("p.csv", schedule.problem).rows == bp.lower(schedule, grouped=False).rows
    assert "_load_csv('p.csv', format=\"compute_comms\")" in ran.err
    assert "leave defer_pp_recv unset" in ran.err
    assert "pipeline_parallel_schedule" not in ran.err
    printed = run(file, "--to", "torch-compute-comms")
    assert printed.out == Path("p.csv").read_text(encoding="utf-8")


def test_a_program_that_is_safe_keeps_its_messages(run: Run) -> None:
    """What someone has chosen is not replaced by another order."""
    chosen = two_devices(
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1",
    )
    for name in ("p.json", "p.csv"):
        ran = run(saved(chosen, name), "--to", "torch-compute-comms")
        assert ran.status == 0
        assert ran.out.splitlines() == [",".join(map(str, row)) for row in chosen.rows]


def test_a_program_that_hangs_without_its_groups_is_not_exported(run: Run) -> None:
    """Torch has no groups: what is judged is what it will execute (PiPPy#1088)."""
    problem = bp.Problem(devices=2, microbatches=2, cost=COST, backward="fused")
    rows = (
        ["0F0", "0SEND_F0", "0F1", "{0SEND_F1 0RECV_B0}", "0B0", "0RECV_B1", "0B1"],
        ["1RECV_F0", "1F0", "1B0", "{1SEND_B0 1RECV_F1}", "1F1", "1B1", "1SEND_B1"],
    )
    grouped = Program(problem, tuple(tuple(map(parse_step, row)) for row in rows))
    ran = run(saved(grouped), "--to", "torch-compute-comms")
    assert (ran.status, ran.out) == (1, "")
    assert "not exported to torch-compute-comms, since it is not valid" in ran.err
    assert "deadlock" in ran.err
    assert "0SEND_F1" in ran.err
    assert ungrouped(grouped).rows != grouped.rows


def test_a_programs_computations_are_exported_alone(run: Run) -> None:
    """Where the target makes the messages itself."""
    schedule = bp.families.zb_h1(bp.Problem(devices=4, microbatches=8, cost=COST))
    file = saved(bp.lower(schedule))
    ran = run(file, "--to", "torch-compute-only")
    assert ran.status == 0
    assert ran.out.splitlines() == [",".join(map(str, row)) for row in schedule.rows]


def test_an_invalid_schedule_is_not_lowered(run: Run) -> None:
    """The rule that it breaks is told, as for any target."""
    problem = bp.Problem(devices=1, microbatches=1, cost=COST)
    file = saved(bp.Schedule(problem, ((),)))
    ran = run(file, "--to", "torch-compute-comms")
    assert (ran.status, ran.out) == (1, "")
    assert "complete" in ran.err


@pytest.mark.parametrize(
    ("placement", "family", "name"),
    [
        ("linear", "zb_h1", "1F1B"),
        ("v", "zb_v", "ZBVZeroBubble"),
        ("loop:2", "interleaved_1f1b", "Interleaved1F1B"),
        ("loop:3", "interleaved_1f1b", "Interleaved1F1B"),
    ],
)
def test_torchtitan_gets_the_computations_and_the_name_of_the_placement(
    run: Run, placement: str, family: str, name: str
) -> None:
    """It lowers itself; its loader takes the placement from a schedule's name."""
    problem = bp.Problem(devices=4, placement=placement, microbatches=8, cost=COST)
    schedule = bp.families.build(family, problem)
    ran = run(saved(schedule), "--to", "torchtitan", "-o", "t.csv")
    assert ran.status == 0
    assert bp.load_schedule("t.csv", problem).rows == schedule.rows
    assert "parallelism.pipeline_parallel_schedule_csv = 't.csv'" in ran.err
    assert f'parallelism.pipeline_parallel_schedule = "{name}"' in ran.err
    assert "num_pp_microbatches = 8" in ran.err
    assert ("such that there are 12 stages" in ran.err) == (placement == "loop:3")
    assert "_load_csv" not in ran.err


def test_torchtitan_is_refused_a_placement_that_it_cannot_build(run: Run) -> None:
    """A wave has no schedule name there; torch's runtime alone can take it."""
    problem = bp.Problem(devices=2, placement="wave:4", microbatches=4, cost=COST, backward="fused")
    file = saved(bp.families.hanayo(problem))
    ran = run(file, "--to", "torchtitan")
    assert (ran.status, ran.out) == (2, "")
    assert "placement: wave:4 is none that torchtitan builds" in ran.err
    assert "export to torch-compute-only" in ran.err
    assert run(file, "--to", "torch-compute-comms").status == 0


@pytest.mark.parametrize("target", ["torch-compute-comms", "torchtitan"])
def test_two_chains_are_refused_by_every_target(run: Run, target: str) -> None:
    """Torch's stages talk to their neighbours by number."""
    problem = bp.Problem(devices=2, placement="bidirectional", microbatches=4, cost=COST)
    ran = run(saved(bp.families.chimera(problem)), "--to", target)
    assert (ran.status, ran.out) == (2, "")
    assert "placement: bidirectional has 2 chains" in ran.err
