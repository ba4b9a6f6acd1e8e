"""Two pipelines of two devices beside each other, held against one process in plain torch.

Process 2·r + c is device r of pipeline c. Each pipeline has its own half of the data.
"""

from collections.abc import Mapping
from functools import cache
from time import perf_counter_ns, sleep

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from training import ROWS, batch, loss_of, modules_of, stage_module

from bubbleproof.runtime import Runtime, load
from bubbleproof.runtime.ahead import step_ahead
from bubbleproof.runtime.data_parallel import average_gradients
from bubbleproof.runtime.optimizer import Outcome, PostValidatedOptimizer
from bubbleproof.runtime.rollback import Rollback
from bubbleproof.schedules.intervals import Interval
from bubbleproof.schedules.ops import Op
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Program
from bubbleproof.schedules.schedule import Schedule

DEVICES = PIPELINES = 2


@cache
def mesh() -> DeviceMesh:
    """Return the processes as a grid of devices and pipelines."""
    return init_device_mesh("cpu", (DEVICES, PIPELINES), mesh_dim_names=("device", "pipeline"))


def whole_stages(problem: Problem) -> dict[int, nn.Module]:
    """Return all stages but copies, as one process holds them."""
    return {stage: stage_module(stage) for stage in sorted(set(problem.placement.replica_of))}


def accumulate(whole: Mapping[int, nn.Module], problem: Problem, step: int) -> None:
    """Add the gradients of the mean loss over the data of all pipelines in a step."""
    placement, number = problem.placement, problem.total_microbatches
    losses: list[Tensor] = []
    for pipeline in range(PIPELINES):
        inputs, targets = batch(10 * step + pipeline, number)
        for chain, stages in enumerate(placement.chains):
            for microbatch in problem.microbatches_of(chain):
                mine = slice(microbatch * ROWS, (microbatch + 1) * ROWS)
                output = inputs[mine]
                for stage in stages:
                    output = whole[placement.replica_of[stage]](output)
                losses.append(loss_of(output, targets[mine]))
    torch.autograd.backward(torch.stack(losses).mean())


def gradient_error(runtime: Runtime, whole: Mapping[int, nn.Module], scale: float) -> float:
    """Return the largest difference of a gradient of this device's stages, the others scaled."""
    worst = 0.0
    replica_of = runtime.program.problem.placement.replica_of
    for stage, held in runtime.stages.items():
        reference = whole[replica_of[stage]].parameters()
        for ours, theirs in zip(held.submod.parameters(), reference, strict=True):
            assert ours.grad is not None
            assert theirs.grad is not None
            worst = max(worst, float((_whole(ours.grad) - scale * theirs.grad).abs().max()))
    return worst


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def pipeline_group() -> ProcessGroup:
    """Return the processes of this one's pipeline."""
    group = mesh().get_group("device")
    assert isinstance(group, ProcessGroup)
    return group


def copies_group() -> ProcessGroup:
    """Return the processes that are the same device of each pipeline."""
    group = mesh().get_group("pipeline")
    assert isinstance(group, ProcessGroup)
    return group


def shard(modules: Mapping[int, nn.Module], *, nested: bool = False, reshard: bool = False) -> None:
    """Shard each module, or each of its layers as well, over the pipelines."""
    for module in modules.values():
        for layer in module.children() if nested else ():
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh()["pipeline"], reshard_after_forward=reshard)
        fully_shard(module, mesh=mesh()["pipeline"], reshard_after_forward=reshard)


def errors(runtime: Runtime, pipeline: int, scale: float = 1.0) -> float:
    """Run three steps, of which two add up, and return the largest difference of a gradient."""
    plan, worst = runtime.program, 0.0
    whole = whole_stages(plan.problem)
    for step in range(3):
        accumulate(whole, plan.problem, step)
        inputs, targets = batch(10 * step + pipeline, plan.problem.total_microbatches)
        runtime.step(inputs, targets)
        worst = max(worst, gradient_error(runtime, whole, scale))
        if step == 1:
            for module in (*whole.values(), *(each.submod for each in runtime.stages.values())):
                module.zero_grad()
    return worst


def train_sharded(rank: int, plan: Schedule | Program, nested: bool, reshard: bool) -> float:
    """Train with FSDP2 and return the largest difference of a gradient to one process's."""
    device, pipeline = divmod(rank, PIPELINES)
    modules = modules_of(plan.problem.placement, device)
    shard(modules, nested=nested, reshard=reshard)
    runtime = load(plan, modules, loss_fn=loss_of, group=pipeline_group())
    return errors(runtime, pipeline)


def train_averaged(rank: int, plan: Schedule | Program) -> float:
    """Train with whole weights, which differ before they are loaded, averaging gradients."""
    device, pipeline = divmod(rank, PIPELINES)
    modules = modules_of(plan.problem.placement, device)
    if pipeline > 0:
        for module in modules.values():
            nn.init.zeros_(next(module.parameters()))
    runtime = load(plan, modules, loss_fn=loss_of, group=pipeline_group())
    average_gradients(runtime, copies_group())
    return errors(runtime, pipeline)


def train_on_sums(rank: int, plan: Schedule, sharded: bool) -> float:
    """Train on the sum of the losses of a pipeline; compare with as many times their mean."""
    device, pipeline = divmod(rank, PIPELINES)
    modules = modules_of(plan.problem.placement, device)
    if sharded:
        shard(modules)
    runtime = load(plan, modules, loss_fn=loss_of, scale_losses=False, group=pipeline_group())
    if not sharded:
        average_gradients(runtime, copies_group())
    return errors(runtime, pipeline, scale=plan.problem.total_microbatches)


def train_beside_a_late_pipeline(
    rank: int, plan: Schedule | Program, late_s: float
) -> tuple[Op, int, int]:
    """Run a step that the second pipeline begins late; return the last op, its end, and the step's.

    The times are nanoseconds since the late pipeline began.
    """
    device, pipeline = divmod(rank, PIPELINES)
    ops: list[Interval] = []
    modules = modules_of(plan.problem.placement, device)
    group = pipeline_group()
    runtime = load(plan, modules, loss_fn=loss_of, group=group, recorder=ops.append)
    average_gradients(runtime, copies_group())
    inputs, targets = batch(pipeline, plan.problem.total_microbatches)
    # Connections are made in the first step.
    runtime.step(inputs, targets)
    dist.barrier()  # pyright: ignore[reportUnknownMemberType]
    began_ns = perf_counter_ns() + round(late_s * 1e9)
    if pipeline > 0:
        sleep(late_s)
    runtime.step(inputs, targets)
    return ops[-1].op, ops[-1].end_ns - began_ns, perf_counter_ns() - began_ns


def refused(rank: int, plan: Schedule | Program, wrapped: str) -> str:
    """Return why a process does not run with its modules wrapped like this."""
    device, _ = divmod(rank, PIPELINES)
    modules = modules_of(plan.problem.placement, device)
    given: dict[int, nn.Module] = dict(modules)
    match wrapped:
        case "whole":
            pass
        case "layers only":
            for module in modules.values():
                fully_shard(next(module.children()), mesh=mesh()["pipeline"])
        case "ddp":
            given = {
                stage: nn.parallel.DistributedDataParallel(module, process_group=copies_group())
                for stage, module in modules.items()
            }
        case _:
            shard(modules)
    try:
        runtime = load(plan, given, loss_fn=loss_of, group=pipeline_group())
        average_gradients(runtime, copies_group())
    except ValueError as error:
        return str(error)
    return ""


def train_with_steps(
    rank: int, plan: Schedule | Program, sharded: bool, rollback: Rollback
) -> float:
    """Train with post-validated steps, and return the largest difference of a parameter."""
    device, pipeline = divmod(rank, PIPELINES)
    placement, number = plan.problem.placement, plan.problem.total_microbatches
    modules = modules_of(placement, device)
    if sharded:
        shard(modules)
    runtime = load(plan, modules, loss_fn=loss_of, group=pipeline_group())
    if not sharded:
        average_gradients(runtime, copies_group())
    whole = whole_stages(plan.problem)
    held = [parameter for module in modules.values() for parameter in module.parameters()]
    theirs = [parameter for module in whole.values() for parameter in module.parameters()]
    optimizer = PostValidatedOptimizer(
        AdamW(held, lr=0.05), max_norm=0.5, group=norms(), rollback=rollback
    )
    reference = AdamW(theirs, lr=0.05)
    outcomes: set[Outcome] = set()
    for step in range(8):
        inputs, targets = batch(10 * step + pipeline, number)
        step_ahead(runtime, optimizer, inputs, targets)
        optimizer.step()
        validation = optimizer.finish()
        assert validation is not None
        outcomes.add(validation.outcome)
        accumulate(whole, plan.problem, step)
        clip_grad_norm_(theirs, 0.5)
        reference.step()  # pyright: ignore[reportUnknownMemberType]
        reference.zero_grad()
    assert Outcome.KEPT in outcomes
    assert device > 0 or Outcome.REDONE in outcomes
    pairs = (
        zip(module.parameters(), whole[placement.replica_of[stage]].parameters(), strict=True)
        for stage, module in modules.items()
    )
    return max(float((_whole(p) - q).detach().abs().max()) for pair in pairs for p, q in pair)


@cache
def norms() -> ProcessGroup:
    """Return a group for the norms of this process's pipeline."""
    mine = None
    for pipeline in range(PIPELINES):
        ranks = [device * PIPELINES + pipeline for device in range(DEVICES)]
        group = dist.new_group(ranks)  # pyright: ignore[reportUnknownMemberType]
        mine = group if isinstance(group, ProcessGroup) else mine
    assert mine is not None
    return mine
