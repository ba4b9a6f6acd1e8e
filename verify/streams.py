"""Every rule on a schedule of components, restated from its definition (SPEC.md, "Streams")."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TypeAlias

from bubbleproof.schedules.components import Components, Part
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Status
from bubbleproof.schedules.streams import (
    STREAMS,
    Component,
    StreamSchedule,
    require_components,
    require_stream_rows,
)
from bubbleproof.verify.report import Report, Violation

Times: TypeAlias = Mapping[Component, tuple[int, int]]
"""When each component starts and ends."""

_DOWN = (Part.ATTN_F, Part.DISPATCH_F, Part.MLP_F, Part.COMBINE_F)
_UP = (Part.COMBINE_B, Part.MLP_B, Part.DISPATCH_B, Part.ATTN_B)
_MADE_BY = {Part.MLP_W: Part.MLP_B, Part.ATTN_W: Part.ATTN_B}
_MOST_NAMED = 8


def verify_streams(schedule: StreamSchedule, problem: Problem | None = None) -> Report:
    """Judge a schedule of components, independently of how it was made.

    Parameters
    ----------
    schedule
        The schedule. Without starts each component runs as early as the order allows.
    problem
        Take this problem instead of the schedule's own; claims are then not judged.

    Raises
    ------
    ValueError
        If there are not two rows for each device, or the problem has no components.
    """
    judged = schedule if problem is None else replace(schedule, problem=problem)
    require_stream_rows(judged.problem, judged.rows)
    components = require_components(judged.problem)
    violations = [*_complete(judged, components), *_placed(judged)]
    if judged.starts is not None and [list(map(len, d)) for d in judged.starts] != [
        list(map(len, d)) for d in judged.rows
    ]:
        violations.append(
            Violation("timing", "the starts do not fit the rows; one for each component is right")
        )
    if violations:
        return Report(tuple(violations), None, None, ())
    needs = {
        component: _needs(judged.problem, components, component)
        for device in judged.rows
        for row in device
        for component in row
    }
    times = _times(judged, components, needs)
    if times is None:
        stuck = Violation("order", "the order cannot run: its streams wait for each other")
        return Report((stuck,), None, None, ())
    begin = min(start for start, _ in times.values())
    makespan = max(end for _, end in times.values()) - begin
    span = max(
        max(times[c][1] for row in device for c in row)
        - min(times[c][0] for row in device for c in row)
        for device in judged.rows
        if any(device)
    )
    peaks = [_memory(judged, device, times) for device in range(judged.problem.devices)]
    violations = [
        *_exclusive(judged, times),
        *_after_inputs(judged, needs, times),
        *_within_limits(judged.problem, peaks),
        *(() if problem is not None else _claims(judged, makespan)),
    ]
    time, amount = judged.problem.time, judged.problem.amount
    return Report(tuple(violations), time(makespan), time(span), tuple(map(amount, peaks)))


def _complete(schedule: StreamSchedule, components: Components) -> Iterator[Violation]:
    """Each component of each stage and microbatch that takes time runs exactly once."""
    found = Counter(c for device in schedule.rows for row in device for c in row)
    due = {
        Component(stage, part, microbatch, layer)
        for stage in range(schedule.problem.stages)
        for part, layer in (*_forward(components, stage), *_backward(components, stage, Part))
        for microbatch in schedule.problem.microbatches_of_stage(stage)
    }
    for message, wrong in (
        ("missing", sorted(due - found.keys())),
        ("no component of the problem", sorted(found.keys() - due)),
        ("there more than once", sorted(c for c, times in found.items() if times > 1)),
    ):
        if wrong:
            named = tuple(map(str, wrong[:_MOST_NAMED]))
            more = f" and {len(wrong) - len(named)} more" if len(wrong) > len(named) else ""
            yield Violation("complete", f"{', '.join(named)}{more}: {message}", ops=named)


def _placed(schedule: StreamSchedule) -> Iterator[Violation]:
    """A component runs on the device of its stage, on the stream of its part."""
    device_of = schedule.problem.placement.device_of_stage
    for device, streams in enumerate(schedule.rows):
        for stream, row in zip(STREAMS, streams, strict=True):
            for position, c in enumerate(row):
                if c.stage >= len(device_of):
                    continue  # Rule complete reports it.
                if device_of[c.stage] != device or c.part.stream is not stream:
                    yield Violation(
                        "placement",
                        f"{c} is on the {stream} stream of device {device}; right is the "
                        f"{c.part.stream} stream of device {device_of[c.stage]}",
                        device,
                        position,
                        (str(c),),
                    )


def _exclusive(schedule: StreamSchedule, times: Times) -> Iterator[Violation]:
    """A stream runs one component at a time, in the order of its row."""
    for device, streams in enumerate(schedule.rows):
        for stream, row in zip(STREAMS, streams, strict=True):
            for position, (earlier, later) in enumerate(pairwise(row), 1):
                if times[later][0] < times[earlier][1]:
                    yield Violation(
                        "exclusive",
                        f"the {stream} stream of device {device} starts {later} at "
                        f"{schedule.problem.time(times[later][0])}, before {earlier} ends at "
                        f"{schedule.problem.time(times[earlier][1])}",
                        device,
                        position,
                        (str(earlier), str(later)),
                    )


def _after_inputs(
    schedule: StreamSchedule,
    needs: Mapping[Component, list[tuple[Component, int]]],
    times: Times,
) -> Iterator[Violation]:
    """A component starts after what it waits for has ended and been transferred."""
    time = schedule.problem.time
    for device, streams in enumerate(schedule.rows):
        for row in streams:
            for position, component in enumerate(row):
                start = times[component][0]
                if start < 0:
                    yield Violation("timing", f"{component} starts before 0", device, position)
                for needed, lag in needs[component]:
                    if start < times[needed][1] + lag:
                        yield Violation(
                            "timing",
                            f"{component} starts at {time(start)}, but {needed} is there at "
                            f"{time(times[needed][1] + lag)}",
                            device,
                            position,
                            (str(needed), str(component)),
                        )


def _within_limits(problem: Problem, peaks: list[int]) -> Iterator[Violation]:
    """No device holds more than its limit; copies of weights count on each device."""
    for device, (peak, limit) in enumerate(zip(peaks, problem.memory.limit, strict=True)):
        if limit is not None and peak > limit:
            yield Violation(
                "memory",
                f"device {device} holds {problem.amount(peak)} at its peak; its limit is "
                f"{problem.amount(limit)}",
                device,
            )


def _claims(schedule: StreamSchedule, makespan: int) -> Iterator[Violation]:
    """The objective is the makespan, no bound is above it, and optimal means equal to the bound."""
    time = schedule.problem.time
    if schedule.objective is not None and schedule.objective != makespan:
        yield Violation(
            "certificate",
            f"the objective is said to be {time(schedule.objective)}; it is {time(makespan)}",
        )
    if schedule.bound is not None and schedule.bound > makespan:
        yield Violation(
            "certificate",
            f"the bound {time(schedule.bound)} is above what this schedule reaches, "
            f"{time(makespan)}",
        )
    if schedule.status is Status.OPTIMAL and schedule.bound != makespan:
        yield Violation("certificate", "optimal is said, but the bound is not the makespan")
    if schedule.status is Status.INFEASIBLE:
        yield Violation("certificate", "infeasible is said of a schedule")


def _forward(components: Components, stage: int) -> list[tuple[Part, int]]:
    """Return what a forward runs, in order."""
    layers = components.layers[stage]
    order = [(part, layer) for layer in range(layers) for part in _DOWN]
    order.append((Part.SEND_F, layers - 1))
    return [place for place in order if components.of(place[0])[stage] > 0]


def _backward(
    components: Components, stage: int, parts: "type[Part] | tuple[Part, ...]"
) -> list[tuple[Part, int]]:
    """Return which of some parts a backward runs, each weight part behind the one it is made by."""
    order: list[tuple[Part, int]] = []
    for layer in reversed(range(components.layers[stage])):
        for part in _UP:
            order.append((part, layer))
            order += [(weight, layer) for weight, made_by in _MADE_BY.items() if made_by is part]
    order.append((Part.SEND_B, 0))
    return [place for place in order if place[0] in parts and components.of(place[0])[stage] > 0]


def _needs(
    problem: Problem, components: Components, component: Component
) -> list[tuple[Component, int]]:
    """Return what a component waits for, each with the transfer behind it."""
    stage, microbatch = component.stage, component.microbatch
    place = (component.part, component.layer)
    inputs = (*_UP, Part.SEND_B)

    def here(there: int, needed: tuple[Part, int]) -> Component:
        return Component(there, needed[0], microbatch, needed[1])

    chain = problem.placement.chains[problem.placement.chain_of_stage[stage]]
    at = chain.index(stage)
    if component.part.kind is OpKind.FORWARD:
        order = _forward(components, stage)
        if order.index(place):
            return [(here(stage, order[order.index(place) - 1]), 0)]
        if not at:
            return []
        previous = chain[at - 1]
        arrived = here(previous, _forward(components, previous)[-1])
        return [(arrived, problem.lag(previous, stage))]
    everything = _backward(components, stage, Part)
    earlier = [p for p in everything[: everything.index(place)] if p[0] in inputs]
    if earlier:
        return [(here(stage, earlier[-1]), 0)]
    own = [p for p in _forward(components, stage) if p[0] is not Part.SEND_F][-1]
    needed = [(here(stage, own), 0)]
    if at + 1 < len(chain):
        following = chain[at + 1]
        arrived = here(following, _backward(components, following, inputs)[-1])
        needed.append((arrived, problem.lag(following, stage)))
    return needed


def _times(
    schedule: StreamSchedule,
    components: Components,
    needs: Mapping[Component, list[tuple[Component, int]]],
) -> dict[Component, tuple[int, int]] | None:
    """Return given times, or the earliest that the order allows; None if it cannot run."""
    times: dict[Component, tuple[int, int]] = {}
    if schedule.starts is not None:
        for streams, begun in zip(schedule.rows, schedule.starts, strict=True):
            for row, starts in zip(streams, begun, strict=True):
                for c, start in zip(row, starts, strict=True):
                    times[c] = (start, start + components.of(c.part)[c.stage])
        return times
    waiting = {component: len(needed) for component, needed in needs.items()}
    behind: dict[Component, list[tuple[Component, int]]] = {component: [] for component in needs}
    for component, needed in needs.items():
        for source, lag in needed:
            behind[source].append((component, lag))
    for device in schedule.rows:
        for row in device:
            for earlier, later in pairwise(row):
                behind[earlier].append((later, 0))
                waiting[later] += 1
    ready = [component for component, number in waiting.items() if not number]
    earliest = dict.fromkeys(needs, 0)
    while ready:
        c = ready.pop()
        end = earliest[c] + components.of(c.part)[c.stage]
        times[c] = (earliest[c], end)
        for later, lag in behind[c]:
            earliest[later] = max(earliest[later], end + lag)
            waiting[later] -= 1
            if not waiting[later]:
                ready.append(later)
    return times if len(times) == len(needs) else None


def _memory(schedule: StreamSchedule, device: int, times: Times) -> int:
    """Return the most that a device holds, in grains.

    An F, I or W allocates when its first component starts and frees when its last one ends; what
    ends frees before what starts at the same instant allocates.
    """
    problem = schedule.problem
    first: dict[tuple[int, int, OpKind], int] = {}
    last: dict[tuple[int, int, OpKind], int] = {}
    for row in schedule.rows[device]:
        for c in row:
            key = (c.stage, c.microbatch, c.part.kind)
            start, end = times[c]
            first[key] = min(first.get(key, start), start)
            last[key] = max(last.get(key, end), end)
    changes = [(tick, problem.memory.of(kind)[s][0]) for (s, _, kind), tick in first.items()]
    changes += [(tick, -problem.memory.of(kind)[s][1]) for (s, _, kind), tick in last.items()]
    amounts = (change for _, change in sorted(changes))
    return max(accumulate(amounts, initial=problem.static(device)))
