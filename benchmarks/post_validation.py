# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# Torch leaves collective calls and the starting of processes untyped.
"""How long an iteration takes with a barrier before the optimizer's step, and without.

    python benchmarks/post_validation.py

prints Markdown. Four processes on gloo run published schedules, whose stages sleep for 30 ms in F,
I and W and whose optimizer sleeps for 30 ms in its step. The step is synchronous (the norm of all
gradients is reduced first), or post-validated with the validation before the next batch, or in it
(``step_ahead``); no step is wrong. An iteration is the median time from start to start, of the
slowest device; idle is what its work leaves of it, on the mean over devices.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable
from datetime import date
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import start_processes
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import SGD

import bubbleproof as bp
from bubbleproof.runtime import Runtime, load
from bubbleproof.runtime.ahead import step_ahead
from bubbleproof.runtime.emulate import emulated
from bubbleproof.runtime.model import Model
from bubbleproof.runtime.optimizer import PostValidatedOptimizer

DEVICES, MICROBATCHES = 4, 8
OP_S = STEP_S = 0.03
ITERATIONS = 12
MAX_NORM = 1e6
FAMILIES = {"one_f_one_b": "linear", "zb_h2": "linear", "zb_v": "v"}
WAYS = ("barrier", "validated before the batch", "validated in the batch")


class Sleepy(SGD):
    """An optimizer whose step takes its time."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Sleep, and step."""
        time.sleep(STEP_S)
        return super().step(closure)


def schedule_of(family: str) -> bp.Schedule:
    """Return a published schedule with F, I and W of one unit."""
    problem = bp.Problem(
        devices=DEVICES,
        placement=FAMILIES[family],
        microbatches=MICROBATCHES,
        cost={"F": 1, "I": 1, "W": 1},
        backward="free",
    )
    return bp.families.build(family, problem)


def synchronous(optimizer: SGD, held: list[Tensor]) -> None:
    """Reduce the norm over all devices, clip, and step."""
    square = get_total_norm([p.grad for p in held if p.grad is not None]) ** 2
    dist.all_reduce(square)
    clip_grads_with_norm_(held, MAX_NORM, square.sqrt())
    optimizer.step()


def iterations(runtime: Runtime, model: Model, way: str) -> float:
    """Return how long an iteration takes, in seconds, from start to start on this device."""
    held: list[Tensor] = [p for s in runtime.stages.values() for p in s.submod.parameters()]
    optimizer = Sleepy(held, lr=1e-3)
    norms = dist.new_group()
    assert isinstance(norms, dist.ProcessGroup)
    validated = PostValidatedOptimizer(optimizer, max_norm=MAX_NORM, group=norms)
    starts: list[float] = []
    dist.barrier()
    for iteration in range(ITERATIONS):
        inputs, targets = model.batch(iteration)
        if way == WAYS[1]:
            validated.zero_grad()
        starts.append(time.perf_counter())
        if way == WAYS[0]:
            optimizer.zero_grad()
            runtime.step(inputs, targets)
            synchronous(optimizer, held)
        elif way == WAYS[1]:
            runtime.step(inputs, targets)
            validated.step()
        else:
            step_ahead(runtime, validated, inputs, targets)
            validated.step()
    validated.finish()
    # Connections are made in the first, and in the next devices settle into their shifts.
    return median(after - before for before, after in list(pairwise(starts))[2:])


def process(rank: int, folder: Path) -> None:
    """Run everything as one device, and write down its times."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=DEVICES
    )
    lines: list[str] = []
    for family in FAMILIES:
        schedule = schedule_of(family)
        model = emulated(schedule.problem, unit_ns=OP_S * 1e9)
        for way in WAYS:
            held = schedule.problem.placement.stages_of_device[rank]
            modules = {stage: model.stage(stage) for stage in held}
            runtime = load(schedule, modules, loss_fn=model.loss_fn)
            lines.append(str(iterations(runtime, model, way)))
    (folder / f"times-{rank}").write_text("\n".join(lines))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Run all and print Markdown."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        start_processes(process, (folder,), nprocs=DEVICES)
        times = [
            [float(line) for line in (folder / f"times-{rank}").read_text().split()]
            for rank in range(DEVICES)
        ]
    slowest = iter([max(each) for each in zip(*times, strict=True)])
    torch_version = torch.__version__.split("+")[0]
    print(f"{date.today():%d %B %Y}; {os.cpu_count()} cores;", end=" ")
    print(f"Python {platform.python_version()}, torch {torch_version}.\n")
    ways = " | ".join(f"{way}, ms (idle)" for way in WAYS)
    print(f"| family | makespan + step, ms | span + step, ms | {ways} |")
    print("|---|---|---|" + "---|" * len(WAYS))
    for family in FAMILIES:
        schedule = schedule_of(family)
        timeline = bp.simulate(schedule)
        stages = schedule.problem.placement.stages // DEVICES
        work_s = 3 * MICROBATCHES * stages * OP_S + STEP_S
        told = [f"{1000 * (t * OP_S + STEP_S):.0f}" for t in (timeline.makespan, timeline.span)]
        took = [next(slowest) for _ in WAYS]
        cells = [f"{1000 * each:.0f} ({1 - work_s / each:.1%})" for each in took]
        print(f"| {family} | {' | '.join(told + cells)} |")


if __name__ == "__main__":
    main()
