"""What ``profile`` and ``run`` do, on every process that torchrun started, or on one alone.

What all processes refuse alike, the first one says. What happens to one of them alone, as an error
in the user's own code, it says itself and then ends at once: the others stand in calls that nothing
but its end takes them out of.
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, TypeVar

from bubbleproof import runs
from bubbleproof.steps import (
    FINE,
    NO,
    UNUSABLE,
    Refusal,
    require_place,
    say_if_guessed,
    usable,
    write,
)
from bubbleproof.terminal import put, put_json, say

if TYPE_CHECKING:
    import torch

    from bubbleproof.runtime.model import Model
    from bubbleproof.schedules.problem import Problem
    from bubbleproof.schedules.profile import Profile

T = TypeVar("T")

PROBLEM_FORMS = (".json", ".toml")

_PACKAGE = os.path.join(os.path.dirname(__file__), "")

_LOST_S = 5
"""How long a process that lost another one leaves that one to be found."""


class _SharedRefusal(Refusal):
    """What every process refuses with the same words."""


def run_schedule(
    file: Path,
    problem: Path | None,
    model: str | None,
    output: Path | None,
    *,
    steps: int,
    unit_ms: float | None,
    as_json: bool,
) -> int:
    """Train some steps of a schedule and say how far off the prediction was.

    Without a model, modules sleep for the times of the problem.
    """
    with _together() as device:
        from bubbleproof.runtime.emulate import emulated
        from bubbleproof.runtime.run import Session, held_modules
        from bubbleproof.schedules.io import load_problem, load_schedule_or_program

        if output is not None:
            _agreed(lambda: require_place(output, (".json",), problem))
        asked = None if problem is None else _agreed(lambda: load_problem(problem))
        plan = _agreed(lambda: load_schedule_or_program(file, asked))
        _agreed(lambda: _require_processes(plan.problem.devices))
        unit_ns = _agreed(lambda: _unit_ns(plan.problem, unit_ms))
        trained = (
            emulated(plan.problem, unit_ns=unit_ns)
            if model is None
            else _built(model, plan.problem)
        )
        modules = held_modules(trained, plan.problem.placement, device)
        try:
            session = Session(plan, trained, modules, device)
        except ValueError as error:
            raise _SharedRefusal(f"{file}: {error}") from error
        ran = session.run(steps=steps, unit_ns=unit_ns)
        if not _leads():
            return FINE
        say_if_guessed(file, plan.problem)
        if output is not None:
            write(ran.with_step(ran.usual_step), output)
        if as_json:
            put_json(runs.of_run(ran))
        else:
            put(runs.summary(ran))
            hint = "to keep the timeline: -o FILE; bubbleproof show FILE --measured draws it"
            say(hint if output is None else f"written: {output}")
    return FINE


def profile_model(
    model: str,
    output: Path | None,
    *,
    microbatches: int,
    devices: int | None,
    placement: str,
    rounds: int,
    as_json: bool,
) -> int:
    """Measure a model's stages on the processes of torchrun, or all of them on one alone."""
    with _together() as device:
        from bubbleproof.runtime.measure import measure, require_processes
        from bubbleproof.schedules.problem import Problem

        processes = int(os.environ.get("WORLD_SIZE", "1"))
        asked = _agreed(
            lambda: Problem(
                devices=processes if devices is None else devices,
                placement=placement,
                microbatches=microbatches,
                # Times are what is asked for; nothing reads these.
                cost={"F": 1, "I": 1, "W": 1},
            )
        )
        _agreed(lambda: require_processes(processes, asked.devices))
        if output is not None:
            _agreed(lambda: require_place(output, PROBLEM_FORMS))
        measured = measure(_built(model, asked), asked, device=device, rounds=rounds)
        if _leads():
            if measured.transfer_ns is None and asked.devices > 1:
                say("transfers are not measured by one process; start one per device with torchrun")
            _show(measured, microbatches, output, as_json=as_json)
    return FINE


def profile_traces(
    files: Sequence[Path],
    output: Path | None,
    *,
    microbatches: int | None,
    skip: int,
    as_json: bool,
) -> int:
    """Read the profile that the traces of all ranks make."""
    from bubbleproof.schedules.torch_trace import profile_of_traces, read_trace

    if output is not None:
        require_place(output, PROBLEM_FORMS, *files)
    with usable():
        traces = [read_trace(file) for file in files]
        measured, number = profile_of_traces(traces, skip=skip)
    if not all(trace.on_gpu for trace in traces):
        say("these ranges are of the CPU and cover waits for messages, too: F, I and B may be less")
    if pairs := sum(trace.pairs for trace in traces):
        say(f"{pairs} overlapped pairs are left out: their halves have no times of their own")
    say("a trace has neither memory nor transfers; write them into the problem where they matter")
    _show(measured, microbatches or number, output, as_json=as_json)
    return FINE


def _show(
    measured: "Profile",
    microbatches: int | Sequence[int],
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    from bubbleproof.schedules.profile import problem_of_profile

    with usable():
        problem = problem_of_profile(measured, microbatches=microbatches, name="profile")
    if output is not None:
        write(problem, output)
    if as_json:
        put_json(runs.of_profile(measured))
    else:
        put(runs.profile_table(measured))
        hint = "to keep the problem: -o problem.toml; bubbleproof solve problem.toml takes it"
        say(hint if output is None else f"written: {output}")


def _built(reference: str, problem: "Problem") -> "Model":
    """Return the model that the user's function makes of a problem."""
    from bubbleproof.runtime.model import find_builder, require_model

    builder = _agreed(lambda: find_builder(reference))
    made = builder(problem)
    return _agreed(lambda: require_model(made, reference))


def _require_processes(devices: int) -> None:
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes != devices:
        raise ValueError(
            f"a schedule of {devices} devices needs as many processes, not {processes}; start it "
            f"with torchrun --nproc-per-node {devices} -m bubbleproof run"
        )


def _unit_ns(problem: "Problem", unit_ms: float | None) -> int:
    """Return the nanoseconds in the problem's unit of time, as the user or the problem says."""
    from bubbleproof.schedules.intervals import unit_ns

    if unit_ms is not None:
        return max(1, round(unit_ms * 10**6))
    try:
        return unit_ns(problem.time_unit)
    except ValueError as error:
        raise ValueError(f"{error}, or give --unit-ms, the milliseconds in one unit") from None


def _leads() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _agreed(make: Callable[[], T]) -> T:
    """Return what each process makes, or refuse on all of them what one refuses."""
    from bubbleproof.runtime.agree import all_or_none

    def plain() -> T:
        try:
            return make()
        except Refusal as error:
            raise ValueError(str(error)) from error

    try:
        return all_or_none(plain, None)
    except ValueError as error:
        raise _SharedRefusal(str(error)) from error


@contextmanager
def _together() -> Generator["torch.device"]:
    """Join the other processes, and end this one so that they end, too."""
    try:
        import_module("bubbleproof.runtime")
    except ImportError as error:
        raise Refusal(str(error)) from error
    from bubbleproof.runtime.processes import joined

    # What it would log where an op fails is the whole program, once from each process.
    logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)
    with joined() as device:
        try:
            yield device
        except _SharedRefusal as error:
            if _leads():
                raise
            raise SystemExit(UNUSABLE) from error
        except Exception as error:
            _end(error)


def _end(error: Exception) -> None:
    """Say what happened in this process alone, and end it.

    Raises
    ------
    Refusal
        If there are no others, for what is wrong with the input; anything else is then raised as
        it is.
    """
    rank = os.environ.get("RANK")
    unusable = isinstance(error, Refusal) or (isinstance(error, ValueError) and _ours(error))
    if rank is None:
        if unusable:
            raise Refusal(str(error)) from error
        raise error
    from bubbleproof.runtime.failure import first_failure, root_of

    first = first_failure(error)
    if first is not None:
        # torchrun names what ends first as the cause, and ends the others itself.
        sleep(_LOST_S)
        say(f"rank {rank}: ended, since another process did: {first}")
    elif unusable:
        say(f"rank {rank}: {error}")
    else:
        traceback.print_exception(error)
        cause = root_of(error)
        say(f"rank {rank}: {type(cause).__name__}: {cause}")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # An ordinary end would wait for the process group, which waits for the others.
    os._exit(UNUSABLE if unusable else NO)


def _ours(error: BaseException) -> bool:
    """Whether an error was raised by this package and not by code that it called."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(_PACKAGE)
