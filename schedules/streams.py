"""A schedule of components: what each stream of each device runs, in which order, and when."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bubbleproof.schedules.components import Components, Part, Stream
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.quantity import shown
from bubbleproof.schedules.schedule import Status


@dataclass(frozen=True, slots=True, order=True)
class Component:
    """One part of one layer of a stage on one microbatch; prints as ``2attn_F0``.

    Behind the first layer of the stage with the layer: ``2attn_F0@1``.
    """

    stage: int
    part: Part
    microbatch: int
    layer: int = 0

    def __str__(self) -> str:
        """``{stage}{part}{microbatch}``, and ``@{layer}`` behind the first layer."""
        layer = f"@{self.layer}" if self.layer else ""
        return f"{self.stage}{self.part.value}{self.microbatch}{layer}"


StreamRow: TypeAlias = tuple[Component, ...]
"""The components of one stream in the order in which it runs them."""

STREAMS = tuple(Stream)
"""The streams of a device, in the order of its rows."""

_NUMBER = "(0|[1-9][0-9]{0,8})"
_COMPONENT = re.compile(f"{_NUMBER}({'|'.join(Part)}){_NUMBER}(?:@([1-9][0-9]{{0,8}}))?")


@dataclass(frozen=True, slots=True)
class StreamSchedule:
    """The streams of all devices for a problem whose cost has components.

    Parameters
    ----------
    problem
        What the schedule is for.
    rows
        For each device the rows of its streams: compute, comm.
    starts
        For each device and stream when each component starts, in ticks; None: as early as the
        order allows.
    source
        How it was made.
    objective, bound
        The makespan and the proven bound on it in ticks, where they are known.
    status
        What is proven; None where nothing was asked.
    mirrored_bound
        A bound, in ticks, that holds only for schedules in which both directions of a
        bidirectional placement mirror each other; None where there is none beyond ``bound``.
    """

    problem: Problem
    rows: tuple[tuple[StreamRow, ...], ...]
    starts: tuple[tuple[tuple[int, ...], ...], ...] | None = None
    source: str = ""
    objective: int | None = None
    bound: int | None = None
    status: Status | None = None
    mirrored_bound: int | None = None

    def __str__(self) -> str:
        """One line of components per stream."""
        return "\n".join(" ".join(map(str, row)) for device in self.rows for row in device)


def parse_component(text: str) -> Component:
    """Read ``2attn_F0`` or ``2attn_F0@1``; the whole text must be the component.

    Raises
    ------
    ValueError
        If the text is no component, with an accepted form in the message.
    """
    match = _COMPONENT.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{shown(text)} is no component; write stage, part ({', '.join(Part)}), microbatch, "
            "as 2attn_F0, and behind the first layer the layer, as 2attn_F0@1"
        )
    stage, part, microbatch, layer = match.groups()
    return Component(int(stage), Part(part), int(microbatch), int(layer or 0))


def require_components(problem: Problem) -> Components:
    """Return the components of a problem.

    Raises
    ------
    ValueError
        If its cost has none.
    """
    components = problem.cost.components
    if components is None:
        raise ValueError(
            "cost.components is missing; streams need what F, I and W consist of, "
            'as {"attn_F": 4, "mlp_F": 5, ...}'
        )
    return components


def require_stream_rows(problem: Problem, rows: Sequence[Sequence[object]]) -> None:
    """Refuse rows that are not two for each device, or a problem without components.

    Raises
    ------
    ValueError
        With what is missing.
    """
    require_components(problem)
    if len(rows) != problem.devices:
        raise ValueError(
            f"rows: {len(rows)} devices where the problem has {problem.devices}; "
            "one item for each is right"
        )
    for device, streams in enumerate(rows):
        if len(streams) != len(STREAMS):
            raise ValueError(
                f"rows[{device}]: {len(streams)} streams; {len(STREAMS)} are right: "
                f"{', '.join(STREAMS)}"
            )
