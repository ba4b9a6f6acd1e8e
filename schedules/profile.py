"""What was measured of a model, stage by stage, and the problem that it makes. Needs no torch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.intervals import UNIT_NS, Interval
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.placement import Placement, bidirectional, explicit, linear, loop, v
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.words import Words

StageKind: TypeAlias = tuple[int, OpKind]


@dataclass(frozen=True, slots=True)
class Spread:
    """How long an op took: how often it ran, and the median, least and most, in nanoseconds."""

    count: int
    median_ns: int
    least_ns: int
    most_ns: int


@dataclass(frozen=True, slots=True)
class StageBytes:
    """What a stage holds, in bytes.

    Parameters
    ----------
    forward
        What F allocates and a later backward frees.
    backward_input
        What I allocates on top (negative: what it frees already); W frees the rest.
    static
        What is there all the time.
    """

    forward: int
    backward_input: int
    static: int


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured of a model.

    Parameters
    ----------
    placement
        Where its stages are.
    times
        For each stage and op kind that ran how long it took.
    transfer_ns
        Time from one device to another, device x device; None where it was not measured.
    memory
        For each stage what it holds; None where it was not measured.
    """

    placement: Placement
    times: Mapping[StageKind, Spread]
    transfer_ns: tuple[tuple[int, ...], ...] | None = None
    memory: tuple[StageBytes, ...] | None = None


def spreads(intervals: Iterable[Interval]) -> dict[StageKind, Spread]:
    """Return for each stage and op kind how long its ops took."""
    durations: dict[StageKind, list[int]] = {}
    for interval in intervals:
        key = (interval.op.stage, interval.op.kind)
        durations.setdefault(key, []).append(interval.end_ns - interval.start_ns)
    return {
        key: Spread(len(each), round(median(each)), min(each), max(each))
        for key, each in sorted(durations.items())
    }


def problem_of_profile(
    profile: Profile, *, microbatches: int | Sequence[int], name: str = ""
) -> Problem:
    """Return the problem of a profile: medians in whole microseconds, memory in bytes.

    Its backward is ``free`` where both forms were measured, else the one that was.

    Parameters
    ----------
    profile
        What was measured.
    microbatches
        How many the problem has in all, or on each chain.
    name
        Its name.

    Raises
    ------
    ValueError
        If a stage has no F, or no backward of one and the same form on all stages.
    """
    backward = _backward(profile)
    kinds = {
        Backward.SPLIT: "FIW",
        Backward.FUSED: "FB",
        Backward.FREE: "FIWB",
    }[backward]
    cost: dict[str, object] = {
        letter: [
            round(profile.times[stage, OpKind(letter)].median_ns / UNIT_NS["us"])
            for stage in range(profile.placement.stages)
        ]
        for letter in kinds
    }
    if profile.transfer_ns is not None:
        cost["transfer"] = [
            [round(time / UNIT_NS["us"]) for time in row] for row in profile.transfer_ns
        ]
    return Problem(
        devices=profile.placement.devices,
        placement=profile.placement,
        microbatches=microbatches,
        cost=cost,
        memory=_memory(profile, backward),
        backward=backward,
        name=name,
        time_unit="us",
    )


def placement_of(
    device_of_stage: tuple[int, ...], chains: tuple[tuple[int, ...], ...], devices: int
) -> Placement:
    """Return the named placement that has these stages and chains, or a listed one.

    Raises
    ------
    ValueError
        If a device is none of them.
    """
    chunks, rest = divmod(len(device_of_stage), devices)
    named = [] if rest or not chunks else [loop(devices, chunks), v(devices)]
    for placement in (linear(devices), *named, bidirectional(devices)):
        if (placement.device_of_stage, placement.chains) == (device_of_stage, chains):
            return placement
    return explicit(devices, device_of_stage, chains)


def _backward(profile: Profile) -> Backward:
    """Return which forms of a backward were measured on all stages."""
    split, fused = (OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT), (OpKind.BACKWARD,)
    stages = range(profile.placement.stages)

    def missing(kinds: Iterable[OpKind]) -> list[str]:
        return [
            f"{stage}{kind}"
            for stage in stages
            for kind in kinds
            if (stage, kind) not in profile.times
        ]

    if forwards := missing((OpKind.FORWARD,)):
        raise ValueError(
            f"{', '.join(forwards[:4])}: no forward was measured; every stage needs one, so give "
            "what all ranks recorded"
        )
    if not missing(split):
        return Backward.SPLIT if missing(fused) else Backward.FREE
    if not missing(fused):
        return Backward.FUSED
    raise ValueError(
        f"{', '.join(missing(split)[:3])} and {', '.join(missing(fused)[:3])} were not measured; "
        "all stages need I and W, or all need B"
    )


def _memory(profile: Profile, backward: Backward) -> Words | None:
    if profile.memory is None:
        return None
    words: dict[str, object] = {
        "unit": "B",
        "F": [[stage.forward, 0] for stage in profile.memory],
        "static": [stage.static for stage in profile.memory],
    }
    if backward is Backward.FUSED:
        return words | {"B": [[0, stage.forward] for stage in profile.memory]}
    return words | {
        "I": [
            [max(stage.backward_input, 0), max(-stage.backward_input, 0)]
            for stage in profile.memory
        ],
        "W": [[0, stage.forward + stage.backward_input] for stage in profile.memory],
        "B": [[0, stage.forward] for stage in profile.memory],
    }
