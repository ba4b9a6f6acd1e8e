"""A schedule: what each device runs, in which order, and when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from bubbleproof.schedules.ops import Block, Row, parse_block
from bubbleproof.schedules.problem import Problem

Starts: TypeAlias = tuple[tuple[int, ...], ...]
"""For each device the start of each block of its row, in ticks."""


class Status(StrEnum):
    """What is known of a result: only ``optimal`` where the bound equals the objective."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Flow:
    """What proves that no flow of microbatches ends by a time: multipliers of laws.

    The laws and what they prove are in verify/SPEC.md, under "Flows". Times are in units.

    Parameters
    ----------
    target
        The device whose span is bounded; None for the makespan.
    devices
        The devices that are looked at.
    unit
        In ticks; every time of the problem is a multiple of it.
    horizon
        The time by which not everything can be done.
    instants
        Those at which laws are applied, in runs: the first, the last, and the step between.
    multipliers
        For each law, by its name, places in the instants with its multipliers there. Place 0 is
        the time before 0.
    """

    target: int | None
    devices: tuple[int, ...]
    unit: int
    horizon: int
    instants: tuple[tuple[int, int, int], ...]
    multipliers: Mapping[str, tuple[tuple[int, int], ...]] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven lower bound on the objective, with what it adds up.

    Parameters
    ----------
    name
        The kind of bound: ``work``, ``warm``, ``cool``, ...
    ticks
        No valid schedule has a smaller objective.
    text
        The argument in words, with its numbers.
    device
        The device that it holds for; None for all together.
    terms
        What adds up to ``ticks``, by name.
    flow
        What a bound named ``fluid`` can be recomputed from; None: nothing.
    """

    name: str
    ticks: int
    text: str
    device: int | None = None
    terms: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    flow: Flow | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """When the blocks of a schedule ran: one step of a run, on one clock.

    Parameters
    ----------
    starts, ends
        For each device the start and end of each block of its row, in ticks of its own.
    ticks_per_unit
        Those ticks in one unit of the problem's time.
    source
        Where and how it was measured.
    """

    starts: Starts
    ends: Starts
    ticks_per_unit: int
    source: str = ""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rows of all devices for a problem.

    Parameters
    ----------
    problem
        What the schedule is for.
    rows
        For each device its blocks in order.
    starts
        When each block starts; None: as early as the order allows.
    source
        How it was made.
    objective, bound
        In ticks, where they are known.
    status
        What is proven; None where nothing was asked.
    proof
        The bounds that the status rests on, the strongest first.
    measured
        When the blocks ran; None where nothing was run.
    """

    problem: Problem
    rows: tuple[Row, ...]
    starts: Starts | None = None
    source: str = ""
    objective: int | None = None
    bound: int | None = None
    status: Status | None = None
    proof: tuple[Bound, ...] = ()
    measured: Measured | None = None

    def __str__(self) -> str:
        """One line of ops per device."""
        return "\n".join(" ".join(map(str, row)) for row in self.rows)


def parse_rows(rows: Sequence[Sequence[str] | str]) -> tuple[Row, ...]:
    """Read rows of text, each a list of blocks or one text with spaces between them.

    Raises
    ------
    ValueError
        If a text is not a block; the message has the device and the position.
    """
    read: list[Row] = []
    for device, row in enumerate(rows):
        blocks: list[Block] = []
        for position, text in enumerate(row.split() if isinstance(row, str) else row):
            try:
                blocks.append(parse_block(text))
            except ValueError as error:
                raise ValueError(f"rows[{device}][{position}]: {error}") from None
        read.append(tuple(blocks))
    return tuple(read)


def require_schedule(value: object) -> None:
    """Refuse what is no schedule and say where one is.

    Raises
    ------
    TypeError
        With the type that was given.
    """
    if isinstance(value, Schedule):
        return
    has_one = isinstance(getattr(value, "schedule", None), Schedule)
    remedy = "take its .schedule" if has_one else "load_schedule reads one from a file"
    raise TypeError(f"a Schedule is expected, not a {type(value).__name__}; {remedy}")


def require_all_rows(problem: Problem, rows: Sequence[object]) -> None:
    """Refuse rows that are not one for each device.

    Raises
    ------
    ValueError
        If there are more or fewer.
    """
    if len(rows) != problem.devices:
        raise ValueError(
            f"rows: {len(rows)} rows for {problem.devices} devices; one for each is right"
        )
