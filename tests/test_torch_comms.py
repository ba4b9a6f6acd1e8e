# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# The reader of schedule files is private in torch and partly untyped; it is what these files are
# for.
"""Torch's compute_comms CSV: torch executes what was lowered, and what is read is read strictly."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining.schedules import (
    _Action,
    _PipelineScheduleRuntime,
    _simulate_comms_compute,
)

from bubbleproof.schedules import families
from bubbleproof.schedules.io import (
    load_program,
    load_schedule,
    load_schedule_or_program,
    program_text,
    save,
)
from bubbleproof.schedules.lower import lower
from bubbleproof.schedules.ops import Op, Pair, ops_of
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Action, ActionKind, Program, Step
from bubbleproof.schedules.schedule import Schedule, parse_rows
from bubbleproof.schedules.torch_comms import ungrouped
from bubbleproof.verify.program_rules import verify_program

COST = {"F": 10, "I": 12, "W": 8, "B": 20, "transfer": 1}

FORMS: dict[str, Schedule] = {
    "gpipe": families.gpipe(Problem(devices=3, microbatches=4, cost=COST, backward="fused")),
    "one_f_one_b": families.one_f_one_b(
        Problem(devices=4, microbatches=8, cost=COST, backward="fused")
    ),
    "zb_h1": families.zb_h1(Problem(devices=4, microbatches=8, cost=COST)),
    "interleaved_1f1b": families.interleaved_1f1b(
        Problem(devices=4, placement="loop:2", microbatches=8, cost=COST, backward="fused")
    ),
    "zb_v": families.zb_v(Problem(devices=4, placement="v", microbatches=10, cost=COST)),
    "hanayo": families.hanayo(
        Problem(devices=2, placement="wave:4", microbatches=4, cost=COST, backward="fused")
    ),
    "dualpipe_v": families.dualpipe_v(
        Problem(
            devices=2, placement="v", microbatches=6, cost={**COST, "pair": 25}, backward="free"
        )
    ),
}
"""One schedule of each form: fused, split, several chunks, and pairs."""

Name: TypeAlias = tuple[tuple[int, str, int | None], ...]

anywhere = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def name(step: Step) -> Name:
    """Return a step as torch names its actions: stage, kind and microbatch of each part."""
    if isinstance(step, Op | Pair):
        return tuple((op.stage, op.kind.value, op.microbatch) for op in ops_of(step))
    assert isinstance(step, Action)
    return ((step.stage, step.kind.value, step.microbatch),)


def torch_name(action: _Action | None) -> Name:
    """Return the same of an action of torch."""
    assert action is not None
    return tuple(
        (part.stage_index, part.computation_type.value, part.microbatch_index)
        for part in action.sub_actions or (action,)
    )


def loaded_by_torch(path: Path, problem: Problem, form: str) -> _PipelineScheduleRuntime:
    """Load a file with torch's own runtime, without a process group."""
    runtime = _PipelineScheduleRuntime.__new__(_PipelineScheduleRuntime)
    runtime._stages = []
    runtime._num_stages = problem.stages
    runtime._n_microbatches = problem.total_microbatches
    runtime.pp_group_size = problem.devices
    runtime.rank = 0
    runtime._defer_pp_recv = False
    runtime.pipeline_order = {}
    if form == "compute_only":
        runtime._load_csv(str(path), format="compute_only")
    else:
        runtime._load_csv(str(path), format="compute_comms")
    return runtime


@pytest.mark.parametrize("form", sorted(FORMS))
def test_torch_loads_what_was_lowered_as_the_same_actions(form: str, tmp_path: Path) -> None:
    """Its validator accepts the computations, and it executes the steps in the same order."""
    schedule = FORMS[form]
    program = lower(schedule)
    save(program, tmp_path / "p.csv")
    runtime = loaded_by_torch(tmp_path / "p.csv", schedule.problem, "compute_comms")
    for device, row in enumerate(ungrouped(program).rows):
        executed = runtime.pipeline_order_with_comms[device]
        assert list(map(torch_name, executed)) == list(map(name, row))
    device_of = schedule.problem.placement.device_of_stage
    assert runtime.stage_index_to_group_rank == dict(enumerate(device_of))


@pytest.mark.parametrize("form", sorted(set(FORMS) - {"dualpipe_v"}))
def test_torchs_simulator_runs_the_messages_to_the_end(form: str, tmp_path: Path) -> None:
    """Each send finds its receive; the simulator knows neither steps on weights nor pairs."""
    schedule = FORMS[form]
    program = lower(schedule, most_unsharded=None, reduction=None)
    save(program, tmp_path / "p.csv")
    runtime = loaded_by_torch(tmp_path / "p.csv", schedule.problem, "compute_comms")
    device_of = schedule.problem.placement.device_of_stage
    ran = _simulate_comms_compute(
        {rank: list(row) for rank, row in runtime.pipeline_order_with_comms.items()},
        lambda stage: device_of[stage],
        schedule.problem.stages,
    )
    for device, row in enumerate(ungrouped(program).rows):
        assert [torch_name(a) for a in ran[device] if a is not None] == list(map(name, row))


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_program_reads_back_with_the_problem_and_without(form: str, tmp_path: Path) -> None:
    """The CSV has all steps but no groups; without a problem its computations explain it."""
    program = lower(FORMS[form])
    save(program, tmp_path / "p.csv")
    read = load_program(tmp_path / "p.csv", program.problem)
    assert (read.problem, read.rows) == (program.problem, ungrouped(program).rows)
    inferred = load_program(tmp_path / "p.csv")
    assert inferred.rows == read.rows
    assert inferred.problem.placement == program.problem.placement
    assert inferred.problem.microbatches == program.problem.microbatches


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_program_is_read_wherever_a_schedule_is(form: str, tmp_path: Path) -> None:
    """The schedule of a program is what it computes, in its order."""
    schedule = FORMS[form]
    for path in (tmp_path / "p.csv", tmp_path / "p.json"):
        save(lower(schedule), path)
        assert load_schedule(path, schedule.problem).rows == schedule.rows


@pytest.mark.parametrize("form", sorted(FORMS))
def test_torchs_own_lowering_is_read_and_valid(form: str, tmp_path: Path) -> None:
    """Torch's dump has CRLF line ends; its messages are in order where it lowers at all."""
    schedule = FORMS[form]
    save(schedule, tmp_path / "s.csv")
    runtime = loaded_by_torch(tmp_path / "s.csv", schedule.problem, "compute_only")
    runtime._dump_csv(str(tmp_path / "dumped.csv"), format="compute_comms")
    assert b"\r\n" in (tmp_path / "dumped.csv").read_bytes()
    program = load_program(tmp_path / "dumped.csv", schedule.problem)
    for device, row in enumerate(program.rows):
        executed = runtime.pipeline_order_with_comms[device]
        assert list(map(torch_name, executed)) == list(map(name, row))
    assert verify_program(program).violations == ()


@given(
    stage=st.integers(0, 10**6), kind=st.sampled_from(ActionKind), microbatch=st.integers(0, 10**6)
)
def test_every_action_is_written_as_torch_reads_it(
    stage: int, kind: ActionKind, microbatch: int
) -> None:
    """Text and action agree, with a microbatch for messages only."""
    action = Action(stage, kind, microbatch if kind.is_message else None)
    assert torch_name(_Action.from_str(str(action))) == name(action)


@anywhere
@given(
    cells=st.lists(
        st.one_of(
            st.sampled_from(["0F0", "0B0", "0SEND_F0", "1RECV_B2", "0UNSHARD", "0REDUCE_GRAD"]),
            st.from_regex(r"[01]?[FSRU]?(SEND_F|RECV_B|RESHARD)?[0-9 x]?", fullmatch=True),
        ),
        min_size=1,
        max_size=5,
    ),
    end=st.sampled_from(["", "\n", "\r\n", "\n\n"]),
)
def test_what_is_read_torch_reads_the_same(cells: list[str], end: str, tmp_path: Path) -> None:
    """A file that the strict grammar takes has one reading, and it is torch's."""
    path = tmp_path / "p.csv"
    path.write_bytes((",".join(cells) + end).encode())
    try:
        loaded = load_schedule_or_program(path)
    except ValueError:
        return
    if isinstance(loaded, Program):
        assert list(map(name, loaded.rows[0])) == [torch_name(_Action.from_str(c)) for c in cells]


def test_a_file_is_a_program_if_anything_in_it_is_communication(tmp_path: Path) -> None:
    """Even the last cell alone; pairs are none."""
    path = tmp_path / "p.csv"
    path.write_bytes(b"0F0,0B0,0RESHARD\r\n")
    assert isinstance(load_schedule_or_program(path), Program)
    path.write_text("0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n")
    assert isinstance(load_schedule_or_program(path), Schedule)


def refusal(read: Callable[[], object]) -> str:
    """Return the message of the ValueError that a call ends in."""
    with pytest.raises(ValueError, match=r"\.(csv|json)") as caught:
        read()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_a_problem_lacks_is_refused_with_its_place(tmp_path: Path) -> None:
    """A stage of a computation, a stage of a message, a device."""
    problem = Problem(devices=2, microbatches=1, cost=COST, backward="fused")
    path = tmp_path / "p.csv"
    path.write_text("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,7F0,1B0,1SEND_B0\n")
    stage = "stage 7, but the problem's stages are 0..1"
    assert refusal(lambda: load_program(path, problem)) == f"{path}:2:14: {stage}"
    path.write_text("0F0,0SEND_F0,7RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")
    assert refusal(lambda: load_program(path, problem)) == f"{path}:1:14: {stage}"
    path.write_text("0F0,0SEND_F0,0RECV_B0,0B0\n")
    assert "1 lines, but the problem has 2 devices" in refusal(lambda: load_program(path, problem))


def test_rows_without_an_explanation_are_refused_at_the_computation(tmp_path: Path) -> None:
    """Columns count messages, too."""
    path = tmp_path / "p.csv"
    path.write_text("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,0B0,1SEND_B0\n")
    assert refusal(lambda: load_program(path)) == (
        f"{path}:2:14: stage 0 is on device 0 and here on device 1; a stage is on one device"
    )


def test_a_schedule_is_no_program(tmp_path: Path) -> None:
    """Its messages are not guessed in passing."""
    for path in (tmp_path / "s.csv", tmp_path / "s.json"):
        save(FORMS["zb_h1"], path)
        assert "lower it to get a program" in refusal(lambda path=path: load_program(path))


def test_what_torch_cannot_execute_is_not_written() -> None:
    """No second chain, no device without a step, no other number of rows."""
    cost = {"F": 1, "I": 1, "W": 1}
    two_ways = Problem(devices=2, placement="bidirectional", microbatches=4, cost=cost)
    with pytest.raises(ValueError, match=r"placement: bidirectional has no CSV.*as \.json"):
        program_text(lower(families.chimera(two_ways)), ".csv")
    idle = Problem(devices=2, placement={"device_of_stage": [0]}, microbatches=1, cost=cost)
    lowered = lower(Schedule(idle, parse_rows(["0F0 0I0 0W0", ""])))
    with pytest.raises(ValueError, match="device 1 has no steps; torch executes"):
        program_text(lowered, ".csv")
    with pytest.raises(ValueError, match="rows: 1 rows for 2 devices"):
        program_text(Program(idle, lowered.rows[:1]), ".csv")
    with pytest.raises(ValueError, match=r"a program is written as \.json or \.csv, not '\.toml'"):
        program_text(lowered, ".toml")
