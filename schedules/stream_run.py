"""Times, memory and loads of a schedule of components."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.quantity import Number
from bubbleproof.schedules.simulate import DeadlockError
from bubbleproof.schedules.stream_graph import inputs_of_stage, instances
from bubbleproof.schedules.streams import (
    STREAMS,
    Component,
    StreamRow,
    StreamSchedule,
    require_components,
    require_stream_rows,
)

StreamStarts = tuple[tuple[tuple[int, ...], ...], ...]
"""For each device and stream when each component starts, in ticks."""


@dataclass(frozen=True, slots=True)
class StreamTimeline:
    """When the components of a schedule run, and what its devices hold.

    Parameters
    ----------
    schedule
        The schedule.
    starts, ends
        For each device and stream those of each component of its row, in ticks.
    peak_grains
        For each device the most that it holds, static part included.
    """

    schedule: StreamSchedule
    starts: StreamStarts
    ends: StreamStarts
    peak_grains: tuple[int, ...]

    @property
    def makespan_ticks(self) -> int:
        """From the first start to the last end, in ticks."""
        begins = [start for device in self.starts for row in device for start in row]
        ends = [end for device in self.ends for row in device for end in row]
        return max(ends, default=0) - min(begins, default=0)

    @property
    def makespan(self) -> Number:
        """The makespan in the problem's unit."""
        return self.schedule.problem.time(self.makespan_ticks)

    @property
    def peak_memory(self) -> tuple[Number, ...]:
        """For each device the most that it holds, in the problem's unit."""
        return tuple(map(self.schedule.problem.amount, self.peak_grains))

    @property
    def busy(self) -> tuple[tuple[float, ...], ...]:
        """For each device and stream the part of the makespan in which it runs something."""
        whole = self.makespan_ticks or 1
        return tuple(
            tuple(
                sum(end - start for start, end in zip(begun, done, strict=True)) / whole
                for begun, done in zip(starts, ends, strict=True)
            )
            for starts, ends in zip(self.starts, self.ends, strict=True)
        )


def simulate_streams(schedule: StreamSchedule) -> StreamTimeline:
    """Return the times of a schedule: its own starts, or the earliest that its order allows.

    Raises
    ------
    DeadlockError
        If the order cannot run.
    ValueError
        If the rows are not those of the problem's devices and streams, or run something else than
        its components.
    """
    problem, rows = schedule.problem, schedule.rows
    require_stream_rows(problem, rows)
    _require_components(problem, rows)
    starts = earliest_stream_starts(problem, rows) if schedule.starts is None else schedule.starts
    if [list(map(len, each)) for each in starts] != [list(map(len, each)) for each in rows]:
        raise ValueError("the starts do not fit the rows; one for each component can be simulated")
    components = require_components(problem)
    ends = tuple(
        tuple(
            tuple(s + components.of(c.part)[c.stage] for c, s in zip(row, begun, strict=True))
            for row, begun in zip(streams, each, strict=True)
        )
        for streams, each in zip(rows, starts, strict=True)
    )
    peaks = tuple(
        _peak(problem, device, rows[device], starts[device], ends[device])
        for device in range(problem.devices)
    )
    return StreamTimeline(schedule, starts, ends, peaks)


def earliest_stream_starts(problem: Problem, rows: Sequence[Sequence[StreamRow]]) -> StreamStarts:
    """Return the earliest start of each component when every stream keeps its order.

    Raises
    ------
    DeadlockError
        If the order cannot run, or a component that another waits for is not there.
    """
    components = require_components(problem)
    needs = [inputs_of_stage(problem, stage) for stage in range(problem.stages)]
    streams = [row for device in rows for row in device]
    begun: list[list[int]] = [[] for _ in streams]
    free = [0] * len(streams)
    ends: dict[Component, int] = {}
    waiters: dict[Component, list[int]] = {}
    ready = deque(range(len(streams)))
    while ready:
        stream = ready.popleft()
        for component in streams[stream][len(begun[stream]) :]:
            inputs = [
                (Component(stage, place[0], component.microbatch, place[1]), lag)
                for stage, place, lag in needs[component.stage][component.part, component.layer]
            ]
            missing = next((needed for needed, _ in inputs if needed not in ends), None)
            if missing is not None:
                waiters.setdefault(missing, []).append(stream)
                break
            start = max([free[stream], *(ends[needed] + lag for needed, lag in inputs)])
            begun[stream].append(start)
            free[stream] = ends[component] = start + components.of(component.part)[component.stage]
            ready.extend(waiters.pop(component, ()))
    stuck = [(stream, needed) for needed, waiting in waiters.items() for stream in waiting]
    if stuck:
        stream, needed = min(stuck, key=lambda each: each[0])
        raise DeadlockError(
            f"the order cannot run: the {STREAMS[stream % len(STREAMS)]} stream of device "
            f"{stream // len(STREAMS)} stands at {streams[stream][len(begun[stream])]} and waits "
            f"for {needed}"
        )
    width = len(STREAMS)
    return tuple(
        tuple(tuple(row) for row in begun[at : at + width]) for at in range(0, len(begun), width)
    )


def _require_components(problem: Problem, rows: Sequence[Sequence[StreamRow]]) -> None:
    known = set(instances(problem))
    for device, streams in enumerate(rows):
        for stream, row in zip(STREAMS, streams, strict=True):
            for component in row:
                if component not in known:
                    raise ValueError(
                        f"device {device}, {stream}: {component} is no component of the problem"
                    )


def _peak(
    problem: Problem,
    device: int,
    rows: Sequence[StreamRow],
    starts: Sequence[Sequence[int]],
    ends: Sequence[Sequence[int]],
) -> int:
    """Return the most that a device holds: an op's first component allocates, its last frees."""
    spans: dict[tuple[int, int, OpKind], tuple[int, int]] = {}
    for row, begun, done in zip(rows, starts, ends, strict=True):
        for component, start, end in zip(row, begun, done, strict=True):
            key = (component.stage, component.microbatch, component.part.kind)
            first, last = spans.get(key, (start, end))
            spans[key] = (min(first, start), max(last, end))
    changes: list[tuple[int, int]] = []
    for (stage, _, kind), (first, last) in spans.items():
        allocate, free = problem.memory.of(kind)[stage]
        changes += ((first, allocate), (last, -free))
    # What ends at an instant frees before what starts then allocates.
    held = accumulate((change for _, change in sorted(changes)), initial=problem.static(device))
    return max(held)
