"""What a run reports: an op with its start and end, and the timeline that they make of a schedule.

All intervals are on one clock. Where several machines took part, whoever collects them has brought
their clocks together before.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from bubbleproof.schedules.ops import Op, ops_of
from bubbleproof.schedules.schedule import Measured, Schedule

UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "\N{MICRO SIGN}s": 10**3, "ns": 1}
"""The units of time that a problem may name, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An op that ran, with its start and end on a clock, in nanoseconds."""

    op: Op
    start_ns: int
    end_ns: int


def unit_ns(time_unit: str) -> int:
    """Return the nanoseconds in a problem's unit of time.

    Raises
    ------
    ValueError
        If it is none that a clock has.
    """
    if time_unit not in UNIT_NS:
        raise ValueError(f"time_unit: {time_unit!a} is no time on a clock; write s, ms, us or ns")
    return UNIT_NS[time_unit]


def measured_timeline(
    schedule: Schedule, intervals: Iterable[Interval], *, unit_ns: int, source: str
) -> Measured:
    """Return when the blocks of a schedule ran in one step; its ticks are nanoseconds from 0.

    A pair lasts from the first start to the last end of its two ops.

    Parameters
    ----------
    schedule
        What was run.
    intervals
        One for each op, in any order.
    unit_ns
        Nanoseconds in one unit of the problem's time.
    source
        Where and how it was measured.

    Raises
    ------
    ValueError
        If an op of the schedule was not reported, or was reported twice.
    """
    found: dict[Op, Interval] = {}
    for interval in intervals:
        if interval.op in found:
            raise ValueError(f"{interval.op} was reported twice in one step; once is right")
        found[interval.op] = interval
    starts: list[tuple[int, ...]] = []
    ends: list[tuple[int, ...]] = []
    zero = min((interval.start_ns for interval in found.values()), default=0)
    for device, row in enumerate(schedule.rows):
        for block in row:
            for op in ops_of(block):
                if op not in found:
                    raise ValueError(f"device {device} reported no {op}, which is in its row")
        halves = [[found[op] for op in ops_of(block)] for block in row]
        starts.append(tuple(min(half.start_ns for half in each) - zero for each in halves))
        ends.append(tuple(max(half.end_ns for half in each) - zero for each in halves))
    return Measured(tuple(starts), tuple(ends), unit_ns, source)
