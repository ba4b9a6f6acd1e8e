"""Training by a runtime and a post-validated optimizer, held against one process in plain torch."""

from dataclasses import dataclass
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from training import ROWS, batch, loss_of, modules_of, stage_module

from bubbleproof.runtime import load
from bubbleproof.runtime.ahead import step_ahead
from bubbleproof.runtime.optimizer import PostValidatedOptimizer
from bubbleproof.schedules.intervals import Interval
from bubbleproof.schedules.ops import OpKind, ops_of
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Schedule

STEPS = 12
MAX_NORM = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What training on one rank came to.

    Parameters
    ----------
    loss_error, parameter_error
        The largest differences to the baseline: of losses in any step, of parameters in the end.
    wrong
        How many steps were to be scaled or skipped, by the baseline's norms.
    batches
        How many batches were run.
    """

    loss_error: float
    parameter_error: float
    wrong: int
    batches: int


@cache
def norms() -> dist.ProcessGroup:
    """Return a group for norms beside that of the pipeline."""
    group = dist.new_group()  # pyright: ignore[reportUnknownMemberType]
    assert isinstance(group, dist.ProcessGroup)
    return group


def data(step: int, microbatches: int) -> tuple[Tensor, Tensor]:
    """Return a batch; some have large gradients, and one has an infinity in a microbatch."""
    inputs, targets = batch(step, microbatches)
    if step % 4 == 2:
        targets *= 30
    if step == 5:
        targets[0] = torch.inf
    return inputs, targets


def baseline(problem: Problem) -> tuple[list[Tensor], dict[int, torch.nn.Module], int]:
    """Return the losses of each step and microbatch, the modules, and how many steps were wrong."""
    placement, number = problem.placement, problem.total_microbatches
    modules = {stage: stage_module(stage) for stage in sorted(set(placement.replica_of))}
    held = [parameter for module in modules.values() for parameter in module.parameters()]
    optimizer = AdamW(held, lr=0.05)
    history: list[Tensor] = []
    wrong = 0
    for step in range(STEPS):
        inputs, targets = data(step, number)
        losses: list[Tensor] = []
        for chain, stages in enumerate(placement.chains):
            for microbatch in problem.microbatches_of(chain):
                mine = slice(microbatch * ROWS, (microbatch + 1) * ROWS)
                output = inputs[mine]
                for stage in stages:
                    output = modules[placement.replica_of[stage]](output)
                losses.append(loss_of(output, targets[mine]))
        torch.autograd.backward(torch.stack(losses).sum() / number)
        norm = clip_grad_norm_(held, MAX_NORM)
        if torch.isfinite(norm):
            optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        wrong += not norm < MAX_NORM
        optimizer.zero_grad()
        history.append(torch.stack(losses).detach())
    return history, modules, wrong


def train(rank: int, schedule: Schedule, ahead: bool) -> Outcome:
    """Train on this rank, with steps validated in the next batch or before it."""
    problem = schedule.problem
    placement, number = problem.placement, problem.total_microbatches
    ops: list[Interval] = []
    modules = modules_of(placement, rank)
    runtime = load(schedule, modules, loss_fn=loss_of, recorder=ops.append)
    held = [p for stage in runtime.stages.values() for p in stage.submod.parameters()]
    copies = [
        parameter
        for number, stage in runtime.stages.items()
        if placement.replica_of[number] != number
        for parameter in stage.submod.parameters()
    ]
    optimizer = PostValidatedOptimizer(
        AdamW(held, lr=0.05), max_norm=MAX_NORM, group=norms(), counted_elsewhere=copies
    )
    history, whole, wrong = baseline(problem)
    loss_error = 0.0
    own = sorted(
        microbatch
        for stage in runtime.stages
        if placement.following[stage] is None
        for microbatch in problem.microbatches_of_stage(stage)
    )
    for step in range(STEPS):
        inputs, targets = data(step, number)
        if ahead:
            losses = step_ahead(runtime, optimizer, inputs, targets)
        else:
            optimizer.zero_grad()
            losses = runtime.step(inputs, targets)
        for loss, microbatch in zip(losses, own, strict=True):
            expected = history[step][microbatch]
            if not loss.equal(expected):
                loss_error = max(loss_error, float((loss - expected).abs()))
        optimizer.step()
    optimizer.finish()
    pairs = (
        zip(module.parameters(), whole[placement.replica_of[stage]].parameters(), strict=True)
        for stage, module in modules.items()
    )
    parameter_error = max(float((p - q).detach().abs().max()) for pair in pairs for p, q in pair)
    forwards = sum(interval.op.kind is OpKind.FORWARD for interval in ops)
    each = sum(op.kind is OpKind.FORWARD for block in schedule.rows[rank] for op in ops_of(block))
    return Outcome(loss_error, parameter_error, wrong, batches=forwards // each)
