# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportPrivateUsage=false
# Torch leaves backward untyped, and its pipeline runtime private and untyped.
"""What the processes do in the tests of ``load`` and of ``step``."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining.schedules import (
    _Action,
    _PipelineContext,
    _PipelineScheduleRuntime,
    _wait_batch_p2p,
)
from training import (
    ROWS,
    WIDTH,
    Outcome,
    against_baseline,
    batch,
    loss_of,
    modules_of,
    stage_module,
)

import bubbleproof as bp
from bubbleproof.runtime import Interval, load
from bubbleproof.runtime.stage import Stage
from bubbleproof.schedules.files import AnyPath
from bubbleproof.schedules.program import Program
from bubbleproof.schedules.schedule import Schedule


def refusal(
    rank: int,
    plans: Mapping[int, Schedule | Program | AnyPath],
    modules: Mapping[int, list[int]] | None = None,
    with_loss: bool = True,
) -> str:
    """Load what is given to this rank, and return why that is refused."""
    plan = plans.get(rank, plans[0])
    stages = (modules or {}).get(rank, [0] if isinstance(plan, str) else None)
    if stages is None:
        assert isinstance(plan, (Schedule, Program))
        held = plan.problem.placement.stages_of_device
        stages = list(held[rank]) if rank < len(held) else [0]
    try:
        load(
            plan,
            {stage: stage_module(stage) for stage in stages},
            loss_fn=loss_of if with_loss else None,
        )
    except ValueError as error:
        return str(error)
    return "nothing"


def refusal_of_a_function(rank: int, schedule: Schedule) -> str:
    """Load with a function for the stage of rank 1, and return why that is refused."""
    given = stage_module(rank) if rank == 0 else loss_of
    try:
        # What is of the wrong type is what is tried.
        load(schedule, [given], loss_fn=loss_of)  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        return str(error)
    return "nothing"


def refusal_of_copies(rank: int, schedule: Schedule) -> str:
    """Load copies of which one is wider, and return why that is refused."""
    modules = modules_of(schedule.problem.placement, rank)
    if rank == 0:
        modules[3] = nn.Sequential(nn.Linear(WIDTH, WIDTH + 1), nn.Tanh()).double()
    try:
        load(schedule, modules, loss_fn=loss_of)
    except ValueError as error:
        return str(error)
    return "nothing"


def copies_after_load(rank: int, schedule: Schedule) -> dict[int, list[list[float]]]:
    """Return the weights of each stage of this rank when it is loaded."""
    modules = modules_of(schedule.problem.placement, rank)
    load(schedule, modules, loss_fn=loss_of)
    return {
        stage: [parameter.detach().flatten().tolist() for parameter in module.parameters()]
        for stage, module in modules.items()
    }


def train_from(rank: int, path: str, in_order: bool) -> Outcome:
    """Train with the schedule of a file, the modules by number or in order."""
    placement = bp.load_schedule(path).problem.placement
    modules = modules_of(placement, rank)
    runtime = load(path, list(modules.values()) if in_order else modules, loss_fn=loss_of)
    return against_baseline(runtime, 2)


def train_beside(rank: int, schedule: Schedule) -> Outcome:
    """Train two pipelines, each on processes of its own."""
    devices = schedule.problem.devices
    groups = [
        dist.new_group(list(range(first, first + devices)))
        for first in range(0, dist.get_world_size(), devices)
    ]
    group = groups[rank // devices]
    assert isinstance(group, dist.ProcessGroup)
    modules = modules_of(schedule.problem.placement, rank % devices)
    return against_baseline(load(schedule, modules, loss_fn=loss_of, group=group), 2)


def train_one_module_for_both(rank: int, schedule: Schedule) -> Outcome:
    """Train with one module for all stages of this rank that hold copies of each other."""
    replica_of = schedule.problem.placement.replica_of
    modules: dict[int, nn.Module] = {}
    for stage in schedule.problem.placement.stages_of_device[rank]:
        modules[stage] = modules.get(replica_of[stage], stage_module(replica_of[stage]))
    return against_baseline(load(schedule, modules, loss_fn=loss_of), 1)


def recorded(rank: int, schedule: Schedule) -> list[Interval]:
    """Return what a recorder is told of a step."""
    intervals: list[Interval] = []
    modules = modules_of(schedule.problem.placement, rank)
    runtime = load(schedule, modules, loss_fn=loss_of, recorder=intervals.append)
    runtime.step(*batch(0, schedule.problem.total_microbatches))
    return intervals


def gradient_error(rank: int, schedule: Schedule, batches: int, mean: bool) -> float:
    """Add up the gradients of some steps, and compare with those of one process."""
    problem = schedule.problem
    modules = modules_of(problem.placement, rank)
    runtime = load(schedule, modules, loss_fn=loss_of, scale_losses=mean)
    whole = {stage: stage_module(stage) for stage in sorted(set(problem.placement.replica_of))}
    for step in range(batches):
        inputs, targets = batch(step, problem.total_microbatches)
        runtime.step(inputs, targets)
        output = inputs
        for module in whole.values():
            output = module(output)
        parts = 1 if mean else problem.total_microbatches
        (loss_of(output, targets) * parts).backward()
    return max(
        float((ours.grad - theirs.grad).abs().max())
        for stage, module in modules.items()
        for ours, theirs in zip(
            module.parameters(),
            whole[problem.placement.replica_of[stage]].parameters(),
            strict=True,
        )
        if ours.grad is not None and theirs.grad is not None
    )


class Embedding(nn.Module):
    """Tokens in; hidden states, a mask of whole numbers and a scalar out."""

    def __init__(self) -> None:
        super().__init__()
        self.table = stage_module(0)

    def forward(self, hidden: Tensor, scale: Tensor, factor: float) -> tuple[Tensor, ...]:
        """Return three tensors of different shapes, and only two that learn."""
        wide = torch.cat([self.table(hidden) * scale, hidden], dim=1) * factor
        return wide, (hidden > 0).to(torch.int64), wide.mean()


class Head(nn.Module):
    """Takes the three."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = stage_module(1)

    def forward(
        self, wide: Tensor, mask: Tensor, mean: Tensor, *, factor: float
    ) -> tuple[Tensor, Tensor]:
        """Return two tensors for the loss."""
        return self.layer(wide[:, :WIDTH] + wide[:, WIDTH:]) * mask * factor, mean


def loss_of_two(output: tuple[Tensor, Tensor], target: dict[str, Tensor]) -> Tensor:
    """Return a loss of two outputs and a target that is no tensor."""
    return loss_of(output[0], target["wanted"]) + output[1] ** 2


def train_tuples(rank: int, schedule: Schedule) -> float:
    """Train stages with tuples between them, two inputs, a keyword and targets that are no tensors.

    Returns
    -------
    float
        The largest difference of a gradient or loss to one process.
    """
    number = schedule.problem.total_microbatches
    modules: tuple[nn.Module, nn.Module] = (Embedding(), Head())
    embedding, head = Embedding(), Head()
    runtime = load(schedule, [modules[rank]], loss_fn=loss_of_two)
    inputs, targets = batch(0, number)
    scale = torch.linspace(0.5, 1.5, number * ROWS).double().unsqueeze(1)
    expected = [{"wanted": part} for part in targets.chunk(number)]
    losses = runtime.step((inputs, scale), expected, factor=0.7)
    wanted = [
        loss_of_two(head(*embedding(one, by, 0.7), factor=0.7), target)
        for one, by, target in zip(inputs.chunk(number), scale.chunk(number), expected, strict=True)
    ]
    torch.stack(wanted).mean().backward()
    own = (embedding, head)[rank]
    errors = [
        float((ours.grad - theirs.grad).abs().max())
        for ours, theirs in zip(modules[rank].parameters(), own.parameters(), strict=True)
        if ours.grad is not None and theirs.grad is not None
    ]
    errors += [abs((a - b).item()) for a, b in zip(losses, wanted, strict=False)]
    return max(errors)


def missing(rank: int, schedule: Schedule, what: str) -> str:
    """Return the error of a step on all ranks without inputs or targets."""
    runtime = load(schedule, modules_of(schedule.problem.placement, rank), loss_fn=loss_of)
    inputs, targets = batch(0, schedule.problem.total_microbatches)
    if rank != {"inputs": 0, "targets": schedule.problem.devices - 1}[what]:
        return "not asked"
    try:
        runtime.step(None if what == "inputs" else inputs, None if what == "targets" else targets)
    except ValueError as error:
        return str(error)
    return "nothing"


def without_gradients(rank: int, schedule: Schedule) -> str:
    """Return the error of a step under no_grad."""
    runtime = load(schedule, modules_of(schedule.problem.placement, rank), loss_fn=loss_of)
    try:
        with torch.no_grad():
            runtime.step(*batch(0, schedule.problem.total_microbatches))
    except ValueError as error:
        return str(error)
    return "nothing"


class Listed(nn.Module):
    """Returns a list with what another stage returns."""

    def __init__(self, inner: nn.Module) -> None:
        """Take the other stage."""
        super().__init__()
        self.inner = inner

    def forward(self, value: Tensor) -> list[Tensor]:
        """Run the other stage."""
        return [self.inner(value)]


def listed(rank: int, schedule: Schedule, stage: int) -> str:
    """Return the error of a step in which a stage returns a list."""
    modules = modules_of(schedule.problem.placement, rank)
    if stage in modules:
        modules[stage] = Listed(modules[stage])
    runtime = load(schedule, modules, loss_fn=loss_of)
    try:
        runtime.step(*batch(0, schedule.problem.total_microbatches))
    except ValueError as error:
        return str(error)
    return "nothing"


def other_shape(rank: int, schedule: Schedule) -> str:
    """Return the error of a step with smaller microbatches than the first."""
    runtime = load(schedule, modules_of(schedule.problem.placement, rank), loss_fn=loss_of)
    number = schedule.problem.total_microbatches
    inputs, targets = batch(0, number)
    runtime.step(inputs, targets)
    if rank:
        return "not asked"
    try:
        runtime.step(inputs[:number], targets[:number])
    except ValueError as error:
        return str(error)
    return "nothing"


def train_overlapped(rank: int, schedule: Schedule) -> tuple[Outcome, int]:
    """Train with a function for pairs, and return how many it ran."""
    pairs: list[str] = []

    def overlap(action: _Action, ctx: _PipelineContext) -> None:
        pairs.append(str(action))
        assert action.sub_actions is not None
        forward, backward = action.sub_actions
        _forward(forward, ctx)
        _backward(backward, ctx)

    modules = modules_of(schedule.problem.placement, rank)
    runtime = load(schedule, modules, loss_fn=loss_of, overlap=overlap)
    return against_baseline(runtime, 1), len(pairs)


def _forward(action: _Action, ctx: _PipelineContext) -> None:
    executor, stages = _held(ctx)
    number, microbatch = action.stage_index, action.microbatch_index
    assert microbatch is not None
    assert ctx.arg_mbs is not None
    assert ctx.kwarg_mbs is not None
    stage = stages[number]
    if not stage.is_first and number - 1 not in stages:
        _wait_batch_p2p(executor.fwd_recv_ops.pop((number, microbatch)))
    output = stage.forward_one_chunk(
        microbatch, ctx.arg_mbs[microbatch], ctx.kwarg_mbs[microbatch], False
    )
    executor._maybe_compute_loss(stage, output, ctx.target_mbs, microbatch)
    if number + 1 in stages:
        stages[number + 1].set_local_fwd_input(output, microbatch)


def _backward(action: _Action, ctx: _PipelineContext) -> None:
    executor, stages = _held(ctx)
    number, microbatch = action.stage_index, action.microbatch_index
    assert microbatch is not None
    stage = stages[number]
    if not stage.is_last and number + 1 not in stages:
        _wait_batch_p2p(executor.bwd_recv_ops.pop((number, microbatch)))
    stage.backward_one_chunk(microbatch, executor._maybe_get_loss(stage, microbatch))
    if number - 1 in stages:
        made = stage.get_local_bwd_output(microbatch)
        stages[number - 1].set_local_bwd_input(made, microbatch)


def _held(ctx: _PipelineContext) -> tuple[_PipelineScheduleRuntime, dict[int, Stage]]:
    executor = ctx.schedule_ref
    assert isinstance(executor, _PipelineScheduleRuntime)
    return executor, {s.stage_index: s for s in executor._stages if isinstance(s, Stage)}
