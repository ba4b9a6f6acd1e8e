# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# Torch's validator, lowering and simulator are private and partly untyped.
"""How long verifying takes, and beside it torch's own checks on what those accept.

    python benchmarks/verify.py

prints Markdown: a schedule of 393,216 ops (ZB-V on 64 devices with 1024 microbatches, I and W
apart) under all compute rules, its program under all rules and transports, and 1F1B on 32 devices
with 256 microbatches through torch's three functions and through ours, in one process. Times are
medians of 5, wall and CPU; memory is the most that Python held, traced in a run of its own.
"""

import argparse
import platform
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from statistics import median

import torch
from torch.distributed.pipelining.schedules import (
    _Action,
    _add_send_recv,
    _simulate_comms_compute,
    _validate_schedule,
)

import bubbleproof as bp
from bubbleproof.schedules.ops import Block
from bubbleproof.verify.program_rules import verify_program

REPEATS = 5


@dataclass(frozen=True, slots=True)
class Time:
    """Medians in seconds."""

    wall_s: float
    cpu_s: float

    def __str__(self) -> str:
        """Two cells of a table."""
        return f"{self.wall_s:.3f} | {self.cpu_s:.3f}"


def timed(call: Callable[[], object]) -> Time:
    """Return the medians of some calls."""
    wall: list[float] = []
    cpu: list[float] = []
    for _ in range(REPEATS):
        wall_from, cpu_from = time.perf_counter(), time.process_time()
        call()
        cpu.append(time.process_time() - cpu_from)
        wall.append(time.perf_counter() - wall_from)
    return Time(median(wall), median(cpu))


def peak_mb(call: Callable[[], object]) -> float:
    """Return the most that a call held at a time, in MB."""
    tracemalloc.start()
    call()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak_bytes / 1e6


def valid(report: bp.Report) -> None:
    """Stop where a verdict is not what the benchmark is about."""
    if not report.valid:
        raise SystemExit(report.violations[0].message)


def large() -> None:
    """Print times and memory of a schedule of nearly 400,000 ops."""
    problem = bp.Problem(
        devices=64, placement="v", microbatches=1024, cost={"F": 10, "I": 12, "W": 8, "transfer": 1}
    )
    schedule = bp.families.zb_v(problem)
    program = bp.lower(schedule)
    ops, steps = (sum(map(len, rows)) for rows in (schedule.rows, program.rows))
    print(f"\n{ops:,} ops, lowered to {steps:,} steps:\n")
    print("| what | wall s | CPU s | peak MB |\n|---|---|---|---|")
    calls: tuple[tuple[str, Callable[[], object]], ...] = (
        ("verify: all compute rules", lambda: valid(bp.verify(schedule))),
        ("verify_program: all rules, four transports", lambda: valid(verify_program(program))),
        ("lower", lambda: bp.lower(schedule)),
    )
    for what, call in calls:
        print(f"| {what} | {timed(call)} | {peak_mb(call):.0f} |", flush=True)


def action(block: Block) -> _Action:
    """Return an op as torch has it."""
    found = _Action.from_str(str(block))
    if found is None:
        raise ValueError(f"{block} is no action of torch; an op such as 2F0 is one")
    return found


def beside_torch() -> None:
    """Print the times of torch's three functions and of ours on one schedule."""
    problem = bp.Problem(devices=32, microbatches=256, cost={"F": 1, "B": 2}, backward="fused")
    schedule = bp.families.one_f_one_b(problem)
    program = bp.lower(schedule, most_unsharded=None, reduction=None)
    rows = {device: list(map(action, row)) for device, row in enumerate(schedule.rows)}

    def lowered() -> dict[int, list[_Action]]:
        copy = {device: list(row) for device, row in rows.items()}
        return _add_send_recv(copy, lambda stage: stage, problem.stages)

    with_messages = lowered()
    validate = timed(
        lambda: _validate_schedule({device: list(row) for device, row in rows.items()}, 32, 32, 256)
    )
    add = timed(lowered)
    simulate = timed(
        lambda: _simulate_comms_compute(with_messages, lambda stage: stage, problem.stages)
    )
    torchs = Time(
        validate.wall_s + add.wall_s + simulate.wall_s, validate.cpu_s + add.cpu_s + simulate.cpu_s
    )
    lowering = timed(lambda: bp.lower(schedule, most_unsharded=None, reduction=None))
    judging = timed(lambda: valid(verify_program(program)))
    both = Time(lowering.wall_s + judging.wall_s, lowering.cpu_s + judging.cpu_s)
    print(f"\n1F1B, 32 devices, 256 microbatches, {sum(map(len, rows.values())):,} ops:\n")
    print("| what | wall s | CPU s | CPU, torch's three = 1 |\n|---|---|---|---|")
    for what, each in (
        ("torch `_validate_schedule`", validate),
        ("torch `_add_send_recv`", add),
        ("torch `_simulate_comms_compute`", simulate),
        ("torch's three together", torchs),
        ("`lower`", lowering),
        ("`verify_program`: all rules, four transports", judging),
        ("`lower` and `verify_program` together", both),
    ):
        print(f"| {what} | {each} | {each.cpu_s / torchs.cpu_s:.2f} |")


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print(
        f"{date.today()}, {platform.processor() or platform.machine()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"medians of {REPEATS}; `python benchmarks/verify.py`"
    )
    beside_torch()
    large()
