# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# The reader of schedule files is private in torch and partly untyped; it is what these files are
# for.
"""Torch's CSV: what is written torch loads as the same actions, what is read is read strictly."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining.schedules import (
    _Action,
    _PipelineScheduleRuntime,
)

from bubbleproof.schedules import families
from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.io import load_schedule, save, schedule_text
from bubbleproof.schedules.ops import Block, Op, OpKind, Pair, ops_of
from bubbleproof.schedules.placement import loop, wave
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Schedule, parse_rows
from bubbleproof.schedules.simulate import simulate
from bubbleproof.schedules.torch_csv import GUESSED, problem_of_rows

COST = {"F": 1, "I": 1, "W": 1, "B": 2}

FORMS: dict[str, tuple[Callable[[Problem], Schedule], Problem]] = {
    "gpipe": (families.gpipe, Problem(devices=3, microbatches=4, cost=COST, backward="fused")),
    "one_f_one_b": (
        families.one_f_one_b,
        Problem(devices=4, microbatches=8, cost=COST, backward="fused"),
    ),
    "zb_h1": (families.zb_h1, Problem(devices=4, microbatches=8, cost=COST)),
    "interleaved_1f1b": (
        families.interleaved_1f1b,
        Problem(devices=4, placement="loop:2", microbatches=8, cost=COST, backward="fused"),
    ),
    "zb_v": (families.zb_v, Problem(devices=4, placement="v", microbatches=10, cost=COST)),
    "dualpipe_v": (
        families.dualpipe_v,
        Problem(
            devices=2, placement="v", microbatches=6, cost={**COST, "pair": 3}, backward="free"
        ),
    ),
}
"""One schedule of each form: fused, split, several chunks, and pairs."""

TorchOp = tuple[int, str, int | None]


def names(block: Block) -> tuple[TorchOp, ...]:
    """Return a block as torch names its actions: stage, kind and microbatch of each op."""
    return tuple((op.stage, op.kind.value, op.microbatch) for op in ops_of(block))


def torch_names(action: _Action) -> tuple[TorchOp, ...]:
    """Return the same of an action of torch."""
    return tuple(
        (part.stage_index, part.computation_type.value, part.microbatch_index)
        for part in action.sub_actions or (action,)
    )


def loaded_by_torch(path: Path, problem: Problem) -> _PipelineScheduleRuntime:
    """Load a file with torch's own runtime, which validates and lowers it; no process group."""
    runtime = _PipelineScheduleRuntime.__new__(_PipelineScheduleRuntime)
    runtime._stages = []
    runtime._num_stages = problem.stages
    runtime._n_microbatches = problem.total_microbatches
    runtime.pp_group_size = problem.devices
    runtime.rank = 0
    runtime._defer_pp_recv = False
    runtime.pipeline_order = {}
    runtime._load_csv(str(path), format="compute_only")
    return runtime


@pytest.mark.parametrize("form", sorted(FORMS))
def test_torch_loads_and_validates_what_was_written(form: str, tmp_path: Path) -> None:
    """Same actions in the same order, stages on the same devices, and torch can lower it."""
    build, problem = FORMS[form]
    schedule = build(problem)
    save(schedule, tmp_path / "s.csv")
    runtime = loaded_by_torch(tmp_path / "s.csv", problem)
    for device, row in enumerate(schedule.rows):
        actions = [action for action in runtime.pipeline_order[device] if action is not None]
        assert [torch_names(action) for action in actions] == [names(block) for block in row]
    assert runtime.stage_index_to_group_rank == dict(enumerate(problem.placement.device_of_stage))
    assert len(runtime.pipeline_order_with_comms) == problem.devices


@pytest.mark.parametrize("form", sorted(FORMS))
def test_rows_read_back_with_the_problem_and_without(form: str, tmp_path: Path) -> None:
    """With the problem the same rows for it; without, the placement and backward are found."""
    build, problem = FORMS[form]
    schedule = build(problem)
    save(schedule, tmp_path / "s.csv")
    given_problem = load_schedule(tmp_path / "s.csv", problem)
    assert (given_problem.problem, given_problem.rows) == (problem, schedule.rows)
    inferred = load_schedule(tmp_path / "s.csv")
    assert inferred.rows == schedule.rows
    assert inferred.problem == replace(problem, memory={}, name=GUESSED)
    assert simulate(inferred).makespan == simulate(schedule).makespan


@pytest.mark.parametrize("form", sorted(FORMS))
def test_torchs_own_dump_is_read(form: str, tmp_path: Path) -> None:
    """Torch pads idle steps with empty cells and ends lines in CRLF."""
    build, problem = FORMS[form]
    schedule = build(problem)
    save(schedule, tmp_path / "s.csv")
    runtime = loaded_by_torch(tmp_path / "s.csv", problem)
    for row in runtime.pipeline_order.values():
        row[1:1] = [None, None]
    runtime._dump_csv(str(tmp_path / "dumped.csv"), format="compute_only")
    data = (tmp_path / "dumped.csv").read_bytes()
    assert b"\r\n" in data
    assert b",,," in data
    assert load_schedule(tmp_path / "dumped.csv").rows == schedule.rows


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text("0123456789FIWB();,OVERLAP_ \n\t\"'x", max_size=40))
def test_what_is_read_torch_reads_the_same(text: str, tmp_path: Path) -> None:
    """A file that the strict grammar takes has one reading, and it is torch's."""
    path = tmp_path / "s.csv"
    path.write_text(text)
    try:
        schedule = load_schedule(path)
    except ValueError:
        return
    lines = text.removesuffix("\n").split("\n")
    for row, line in zip(schedule.rows, lines, strict=True):
        actions = [_Action.from_str(cell) for cell in line.split(",")]
        read = [torch_names(action) for action in actions if action is not None]
        assert read == [names(block) for block in row]


@given(
    blocks=st.lists(
        st.one_of(
            st.builds(Op, st.just(0), st.sampled_from(OpKind), st.integers(0, 10**6)),
            st.builds(
                Pair,
                st.builds(Op, st.just(0), st.just(OpKind.FORWARD), st.integers(0, 10**6)),
                st.builds(Op, st.just(0), st.just(OpKind.BACKWARD), st.integers(0, 10**6)),
            ),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_every_block_is_written_as_torch_reads_it(blocks: list[Block]) -> None:
    """Text and action agree for any op and pair."""
    problem = problem_of_rows([tuple(blocks)])
    text = schedule_text(Schedule(problem=problem, rows=(tuple(blocks),)), ".csv")
    for cell, block in zip(text.strip().split(","), blocks, strict=True):
        action = _Action.from_str(cell)
        assert action is not None
        assert torch_names(action) == names(block)
        assert repr(action) == cell


def test_the_inferred_problem_has_unit_times_and_what_the_tokens_show() -> None:
    """F=I=W=1 and B=2, a pair only where there is one, and a backward of both kinds is free."""
    split = problem_of_rows(parse_rows(["0F0 0I0 0W0"]))
    assert (split.backward, split.cost.pair) == (Backward.SPLIT, (None,))
    assert (split.cost.F, split.cost.I, split.cost.W, split.cost.B) == ((1,), (1,), (1,), (2,))
    assert problem_of_rows(parse_rows(["0F0 0B0"])).backward is Backward.FUSED
    free = problem_of_rows(parse_rows(["0F0 0F1 (0F2;0B0)OVERLAP_F_B 0I1 0W1 0B2"]))
    assert (free.backward, free.cost.pair, free.microbatches) == (Backward.FREE, (3,), (3,))


def test_the_inferred_placement_has_its_name_where_it_has_one() -> None:
    """So that families and exporters know it."""
    looped = parse_rows(["0F0 2F0 4F0", "1F0 3F0 5F0"])
    assert problem_of_rows(looped).placement == loop(2, 3)
    waved = parse_rows(["0F0 3F0 4F0", "1F0 2F0 5F0"])
    assert problem_of_rows(waved).placement == wave(2, 3)
    other = problem_of_rows(parse_rows(["0F0 1F0", "2F0", ""])).placement
    assert (other.name, other.device_of_stage) == ("explicit", (0, 0, 1))
    idle = problem_of_rows(parse_rows(["0F0", ""])).placement
    assert (idle.name, idle.device_of_stage) == ("explicit", (0,))


def test_an_idle_device_is_a_line_with_a_comma(tmp_path: Path) -> None:
    """A blank line would be a device to torch, too, but is refused when it is read back."""
    problem = Problem(
        devices=2, placement={"device_of_stage": [0]}, microbatches=1, cost=COST, backward="fused"
    )
    schedule = Schedule(problem=problem, rows=parse_rows(["0F0 0B0", ""]))
    save(schedule, tmp_path / "s.csv")
    assert (tmp_path / "s.csv").read_text() == "0F0,0B0\n,\n"
    assert load_schedule(tmp_path / "s.csv", problem).rows == schedule.rows


def test_a_stage_or_device_that_the_problem_lacks_is_refused_with_its_place(
    tmp_path: Path,
) -> None:
    """Torch gives a bare KeyError for stage 7 of 2."""
    problem = Problem(devices=2, microbatches=1, cost=COST, backward="fused")
    path = tmp_path / "s.csv"
    path.write_text("0F0,0B0\n1F0,,7F0,1B0\n")
    with pytest.raises(ValueError, match=r"s\.csv:2:6: stage 7, but the problem's stages are 0..1"):
        load_schedule(path, problem)
    path.write_text("0F0,0B0\n")
    with pytest.raises(ValueError, match="1 lines, but the problem has 2 devices"):
        load_schedule(path, problem)


def test_a_placement_that_torch_cannot_run_is_not_written() -> None:
    """Torch passes all stages in ascending order: no second chain, no other order."""
    problem = Problem(devices=2, placement="bidirectional", microbatches=4, cost=COST)
    with pytest.raises(ValueError, match=r"placement: bidirectional has no CSV.*save it as \.json"):
        schedule_text(Schedule(problem=problem, rows=((), ())), ".csv")


def test_rows_for_other_devices_are_not_written() -> None:
    """As many lines as devices."""
    problem = Problem(devices=2, microbatches=4, cost=COST)
    with pytest.raises(ValueError, match="rows: 1 rows for 2 devices"):
        schedule_text(Schedule(problem=problem, rows=((),)), ".csv")
