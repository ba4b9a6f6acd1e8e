"""What the processes of a run test do, where they can import it."""

import os

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from bubbleproof.runtime import clocks
from bubbleproof.runtime.emulate import emulated
from bubbleproof.runtime.measure import measure
from bubbleproof.runtime.model import Model
from bubbleproof.runtime.run import Session, held_modules
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.profile import Profile
from bubbleproof.schedules.program import Program
from bubbleproof.schedules.run import Run
from bubbleproof.schedules.schedule import Schedule

CPU = torch.device("cpu")

ROWS, WIDTH = 8, 32
"""Of a microbatch of the small model."""


def small_model(problem: Problem) -> Model:
    """Return a model of two layers a stage, that learns to halve its inputs."""

    def stage(number: int) -> nn.Module:
        torch.random.manual_seed(number)  # pyright: ignore[reportUnknownMemberType]
        layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        return layers.double()

    def batch(step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(step)
        shape = (problem.total_microbatches * ROWS, WIDTH)
        inputs = torch.randn(shape, generator=generator, dtype=torch.float64)
        return inputs, inputs / 2

    return Model(
        stage=stage,
        batch=batch,
        loss_fn=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    )


def ran(rank: int, plan: Schedule | Program, *, steps: int, unit_ns: int, emulate: bool) -> Run:
    """Run a plan on this process and return what was measured."""
    problem = plan.problem
    model = emulated(problem, unit_ns=unit_ns) if emulate else small_model(problem)
    modules = held_modules(model, problem.placement, CPU)
    return Session(plan, model, modules, CPU).run(steps=steps, unit_ns=unit_ns)


def measured(rank: int, problem: Problem, *, rounds: int, unit_ns: int | None = None) -> Profile:
    """Measure the small model, or with a unit of time one that sleeps."""
    model = small_model(problem) if unit_ns is None else emulated(problem, unit_ns=unit_ns)
    return measure(model, problem, device=CPU, rounds=rounds)


def offset_of_clock(rank: int, late_ns: int) -> tuple[int, int]:
    """Return the offsets of rank 1, by its machine and by round trips, if its clock were late."""
    real = clocks.perf_counter_ns
    if rank == 1:
        clocks.perf_counter_ns = lambda: real() - late_ns
    try:
        return clocks.behind_rank_0_ns(CPU), clocks.round_trip_offset_ns(1, CPU)
    finally:
        clocks.perf_counter_ns = real


def traced(rank: int, plan: Schedule, folder: str, *, unit_ns: int) -> None:
    """Run a plan with modules that sleep under torch's profiler, and export its trace."""
    model = emulated(plan.problem, unit_ns=unit_ns)
    modules = held_modules(model, plan.problem.placement, CPU)
    session = Session(plan, model, modules, CPU)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        session.run(steps=3, unit_ns=unit_ns)
    profiler.export_chrome_trace(f"{folder}/rank{rank}.json")
