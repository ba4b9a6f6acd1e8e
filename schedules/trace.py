"""A timeline as a trace that Perfetto and chrome://tracing open (Trace Event Format, JSON).

A process is the prediction, and another one the run where there is one; their threads are the
devices. What is computed is of category ``computation``, whatever its kind; a program's messages
are ``communication`` and its steps on weights ``weights``, both without a length.
"""

import json
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TypeAlias

from bubbleproof.schedules.intervals import UNIT_NS
from bubbleproof.schedules.marks import Mark
from bubbleproof.schedules.ops import ops_of
from bubbleproof.schedules.simulate import Timeline

Event: TypeAlias = dict[str, object]

PREDICTED, MEASURED = 1, 2
"""The numbers of the processes."""


def trace_text(
    timeline: Timeline, *, measured: Timeline | None = None, marks: Sequence[Mark] = ()
) -> str:
    """Return a trace as strict JSON.

    Parameters
    ----------
    timeline
        The prediction. Where its time unit is none that a clock has, one unit is drawn as one
        microsecond.
    measured
        The run.
    marks
        The actions of the program that the timeline is of.
    """
    problem = timeline.schedule.problem
    events = [
        *_process(timeline, PREDICTED, "predicted"),
        *(_mark(mark, timeline) for mark in marks),
    ]
    if measured is not None:
        events += _process(measured, MEASURED, "measured")
    unit = problem.time_unit if problem.time_unit in UNIT_NS else "one unit is drawn as 1 us"
    words = {
        "displayTimeUnit": "ms",
        "otherData": {"problem": problem.name, "time_unit": unit, **_facts(timeline)},
        "traceEvents": events,
    }
    return json.dumps(words, allow_nan=False, separators=(",", ":")) + "\n"


def _facts(timeline: Timeline) -> dict[str, object]:
    return {
        "source": timeline.schedule.source,
        "makespan": timeline.makespan,
        "span": timeline.span,
        "bubble_ratio": timeline.bubble_ratio,
    }


def _process(timeline: Timeline, process: int, name: str) -> Iterator[Event]:
    problem = timeline.schedule.problem
    yield _name("process_name", process, 0, name)
    for device, row in enumerate(timeline.schedule.rows):
        yield _name("thread_name", process, device, f"device {device}")
        for block, start, end in zip(
            row, timeline.starts[device], timeline.ends[device], strict=True
        ):
            yield {
                "name": str(block),
                "cat": "computation",
                "ph": "X",
                "ts": _microseconds(timeline, start),
                "dur": _microseconds(timeline, end - start),
                "pid": process,
                "tid": device,
                "args": {
                    "ops": [
                        {"kind": op.kind.value, "stage": op.stage, "microbatch": op.microbatch}
                        for op in ops_of(block)
                    ]
                },
            }
    unit = problem.memory.unit or "memory"
    for device, curve in enumerate(timeline.memory):
        # What is freed and allocated at one tick is one step.
        for tick, grains in dict(curve).items():
            yield {
                "name": f"memory of device {device}",
                "ph": "C",
                "ts": _microseconds(timeline, tick),
                "pid": process,
                "tid": device,
                "args": {unit: problem.amount(grains)},
            }


def _name(what: str, process: int, thread: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _mark(mark: Mark, timeline: Timeline) -> Event:
    return {
        "name": str(mark.action),
        "cat": "communication" if mark.action.kind.is_message else "weights",
        "ph": "i",
        "s": "t",
        "ts": _microseconds(timeline, mark.tick),
        "pid": PREDICTED,
        "tid": mark.device,
    }


def _microseconds(timeline: Timeline, ticks: int) -> int | float:
    cost = timeline.schedule.problem.cost
    unit_ns = UNIT_NS.get(timeline.schedule.problem.time_unit, 1000)
    time = Fraction(ticks * unit_ns, cost.ticks_per_unit * 1000)
    return time.numerator if time.denominator == 1 else float(time)
