# pyright: reportUnknownMemberType=false
# Torch leaves backward untyped.
"""Steps of training by a runtime, held against the same steps on one process in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from processes import World
from torch import Tensor, nn

import bubbleproof as bp
from bubbleproof.runtime import Runtime, load
from bubbleproof.runtime.load import Options, assemble
from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.program import Program, schedule_of
from bubbleproof.schedules.schedule import Schedule

WIDTH = 4
ROWS = 2
RATE = 0.1
EXACT = 1e-12


@dataclass(frozen=True, slots=True)
class Outcome:
    """What training on one rank came to.

    Parameters
    ----------
    loss_error, gradient_error
        The largest difference to the baseline, over all steps.
    losses
        How many losses a step returned.
    peak
        The most activations that the rank held at once.
    """

    loss_error: float
    gradient_error: float
    losses: int
    peak: int


def stage_module(stage: int) -> nn.Module:
    """Return a stage's module; its weights depend on its number alone."""
    generator = torch.Generator().manual_seed(stage)
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.6)
    return module


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """Return a loss that no other microbatch's target would give."""
    return ((output - target) ** 2).mean()


def batch(step: int, microbatches: int) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets of a step."""
    generator = torch.Generator().manual_seed(1000 + step)
    shape = (microbatches * ROWS, WIDTH)
    inputs, targets = (torch.randn(shape, generator=generator).double() for _ in range(2))
    return inputs, targets


def modules_of(placement: Placement, rank: int) -> dict[int, nn.Module]:
    """Return a rank's modules; what is a copy has other weights until it is loaded."""
    return {stage: stage_module(stage) for stage in placement.stages_of_device[rank]}


def train(rank: int, plan: Schedule | Program, checked: bool = True, steps: int = 3) -> Outcome:
    """Train on this rank, and compare losses and gradients after each step."""
    problem = plan.problem
    modules = modules_of(problem.placement, rank)
    if checked:
        runtime = load(plan, modules, loss_fn=loss_of)
    else:
        assert isinstance(plan, Program)
        runtime = assemble(plan, modules, Options(loss_fn=loss_of))
    return against_baseline(runtime, steps)


def assert_trains_alike(world: World, plan: Schedule | Program) -> None:
    """Train with a verified plan on all ranks: as one process would, and holding what is said."""
    outcomes = world.results(train, plan)
    schedule = schedule_of(plan) if isinstance(plan, Program) else plan
    worst = max(max(each.loss_error, each.gradient_error) for each in outcomes)
    assert worst <= EXACT, f"{schedule.source} differs by {worst}"
    assert sum(each.losses for each in outcomes) == plan.problem.total_microbatches
    assert tuple(each.peak for each in outcomes) == bp.verify(schedule).peak_memory


def against_baseline(runtime: Runtime, steps: int) -> Outcome:
    """Run steps of a runtime and of plain torch."""
    problem = runtime.program.problem
    placement, number = problem.placement, problem.total_microbatches
    whole = {stage: stage_module(stage) for stage in sorted(set(placement.replica_of))}
    loss_error = gradient_error = 0.0
    losses: list[Tensor] = []
    for step in range(steps):
        inputs, targets = batch(step, number)
        expected: list[Tensor] = []
        for chain, stages in enumerate(placement.chains):
            for microbatch in problem.microbatches_of(chain):
                mine = slice(microbatch * ROWS, (microbatch + 1) * ROWS)
                output = inputs[mine]
                for stage in stages:
                    output = whole[placement.replica_of[stage]](output)
                expected.append(loss_of(output, targets[mine]))
        (torch.stack(expected).sum() / number).backward()
        losses = runtime.step(inputs, targets)
        own = [
            expected[microbatch].detach()
            for microbatch in sorted(
                microbatch
                for stage in runtime.stages
                if placement.following[stage] is None
                for microbatch in problem.microbatches_of_stage(stage)
            )
        ]
        if len(losses) != len(own):
            loss_error = float("inf")
        for one, other in zip(losses, own, strict=False):
            loss_error = max(loss_error, (one - other).abs().item())
        for stage, held in runtime.stages.items():
            reference = whole[placement.replica_of[stage]]
            for ours, theirs in zip(held.submod.parameters(), reference.parameters(), strict=True):
                if ours.grad is None or theirs.grad is None:
                    # A chain without microbatches leaves none, here and there.
                    difference = 0.0 if ours.grad is theirs.grad else float("inf")
                else:
                    difference = float((ours.grad - theirs.grad).abs().max())
                gradient_error = max(gradient_error, difference)
        for module in (*whole.values(), *(stage.submod for stage in runtime.stages.values())):
            with torch.no_grad():
                for parameter in module.parameters():
                    if parameter.grad is not None:
                        parameter -= RATE * parameter.grad
                    parameter.grad = None
    return Outcome(loss_error, gradient_error, len(losses), runtime.live.peak)
