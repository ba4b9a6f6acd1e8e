# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# Torch prints and lowers its schedules by private methods, partly untyped.
"""Torch's built-in schedules as programs, lowered by torch's own passes, without process groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

from bubbleproof.schedules.ops import Row
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Program, parse_step
from bubbleproof.schedules.schedule import parse_rows

SINGLE = ("ScheduleGPipe", "Schedule1F1B")
LOOPED = ("ScheduleInterleaved1F1B", "ScheduleLoopedBFS", "ScheduleInterleavedZeroBubble")
ON_A_V = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")


@dataclass
class Stage:
    """What torch's schedules read of a stage when they are made."""

    stage_index: int
    num_stages: int
    group_rank: int
    group_size: int
    stage_index_to_group_rank: dict[int, int] = field(default_factory=dict[int, int])
    has_backward: bool = True
    submod: None = None
    group: None = None


def torch_program(name: str, devices: int, chunks: int, microbatches: int) -> Program:
    """Return what torch executes for a schedule of its own.

    Raises
    ------
    ValueError, AssertionError
        If torch does not build or lower the schedule.
    """
    problem = Problem(
        devices=devices,
        placement="linear" if name in SINGLE else "v" if name in ON_A_V else f"loop:{chunks}",
        microbatches=microbatches,
        cost={"F": 1, "I": 1, "W": 1, "pair": 2},
        backward="free",
    )
    build = getattr(torch_schedules, name)
    chunks = problem.stages // devices
    local = [Stage(chunk * devices, problem.stages, 0, devices) for chunk in range(chunks)]
    if name in SINGLE:
        order = build(local[0], microbatches).pipeline_order
        rows = {rank: [each for each in row if _computes(each)] for rank, row in order.items()}
        lowered = lowered_by_torch(problem, rows)
    else:
        lowered = build(local, microbatches).pipeline_order_with_comms
    return Program(
        problem,
        tuple(tuple(parse_step(str(each)) for each in lowered[rank]) for rank in range(devices)),
        source=name,
    )


def printed_rows(name: str, devices: int, microbatches: int) -> tuple[Row, ...]:
    """Return the order that torch prints for a schedule with one stage on each device.

    Idle cells and reductions are left out.
    """
    build = getattr(torch_schedules, name)
    order = build(Stage(0, devices, 0, devices), microbatches).pipeline_order
    return parse_rows([[str(each) for each in order[d] if _computes(each)] for d in range(devices)])


def lowered_by_torch(
    problem: Problem, rows: Mapping[int, Sequence[_Action | None]]
) -> dict[int, list[_Action]]:
    """Return rows of computations with the messages and steps on weights that torch adds."""
    runtime = _PipelineScheduleRuntime.__new__(_PipelineScheduleRuntime)
    runtime._stages = []
    runtime._num_stages = problem.stages
    runtime._n_microbatches = problem.total_microbatches
    runtime.pp_group_size = problem.devices
    runtime.rank = 0
    runtime._defer_pp_recv = False
    runtime.stage_index_to_group_rank = dict(enumerate(problem.placement.device_of_stage))
    runtime._prepare_schedule_with_comms({rank: list(row) for rank, row in rows.items()})
    return runtime.pipeline_order_with_comms


def _computes(action: _Action | None) -> bool:
    return action is not None and action.is_compute_op
