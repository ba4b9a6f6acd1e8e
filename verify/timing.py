"""Rules timing and exclusive: start times that a device can keep."""

from collections.abc import Iterator

from bubbleproof.verify.naming import plural
from bubbleproof.verify.reading import FARTHEST_START, Reading
from bubbleproof.verify.report import Violation

TIMING = "timing"
EXCLUSIVE = "exclusive"


def timing(reading: Reading) -> Iterator[Violation]:
    """Each op starts when its inputs have ended and crossed, and each row is in starting order.

    There is one start for each block.
    """
    if reading.given_starts is None:
        return
    if reading.starts is None:
        yield from _shape(reading)
        return
    for device in range(len(reading.rows)):
        yield from _out_of_order(reading, reading.starts, device)
        yield from _too_early(reading, reading.starts, device)


def exclusive(reading: Reading) -> Iterator[Violation]:
    """A device runs one block at a time.

    A block that takes no time may stand at another's start or end, not inside it.
    """
    starts = reading.starts
    if starts is None:
        return
    for device in range(len(reading.rows)):
        intervals = sorted(
            (starts[block], starts[block] + reading.ticks[block], block)
            for block in range(reading.offsets[device], reading.offsets[device + 1])
        )
        if not intervals:
            continue
        _, busy, by = intervals[0]
        for start, end, block in intervals[1:]:
            if start < busy:
                shared = min(busy, end) - start
                _, position = reading.where(block)
                one, other = reading.block(by), reading.block(block)
                yield Violation(
                    EXCLUSIVE,
                    f"device {device} runs {other} from {reading.time_text(start)} while {one} "
                    f"runs until {reading.time_text(busy)}: they overlap by "
                    f"{_lack(reading, shared)}",
                    device,
                    position,
                    (str(one), str(other)),
                )
            if end > busy:
                busy, by = end, block


def _shape(reading: Reading) -> Iterator[Violation]:
    """Each row has a start for each block, and no start is out of all range."""
    given = reading.given_starts or ()
    if len(given) != len(reading.rows):
        yield Violation(
            TIMING, f"starts of {plural(len(given), 'row')} for {plural(len(reading.rows), 'row')}"
        )
    for device, (starts, row) in enumerate(zip(given, reading.rows, strict=False)):
        if len(starts) != len(row):
            yield Violation(
                TIMING,
                f"{plural(len(starts), 'start')} for the {plural(len(row), 'block')} "
                f"of device {device}",
                device,
            )
            continue
        for position, start in enumerate(starts):
            if abs(start) >= FARTHEST_START:
                yield Violation(
                    TIMING,
                    f"{row[position]} on device {device} starts 2^53 ticks or more from 0",
                    device,
                    position,
                    (str(row[position]),),
                )
                break


def _out_of_order(reading: Reading, starts: list[int], device: int) -> Iterator[Violation]:
    """No block lies before the one that its row has before it."""
    first, stop = reading.offsets[device], reading.offsets[device + 1]
    ticks = reading.ticks
    for block in range(first + 1, stop):
        start, before = starts[block], starts[block - 1]
        if start >= before + ticks[block - 1]:
            continue
        if start < before or start + ticks[block] <= before:
            one, other = reading.block(block - 1), reading.block(block)
            yield Violation(
                TIMING,
                f"device {device} has {other} after {one}, but starts it at "
                f"{reading.time_text(start)} and {one} at {reading.time_text(before)}",
                device,
                block - first,
                (str(one), str(other)),
            )


def _too_early(reading: Reading, starts: list[int], device: int) -> Iterator[Violation]:
    """No op starts before the end of an input and its transfer."""
    needs, find, n, ticks = reading.needs, reading.place.get, reading.microbatches, reading.ticks
    first, stop = reading.offsets[device], reading.offsets[device + 1]
    for block in range(first, stop):
        start = starts[block]
        for code in reading.codes[block]:
            for one, other, lag in needs[code // n]:
                giver = code + one
                source = find(giver)
                if source is None:
                    giver = code + other
                    source = find(giver)
                if source is None or source == block:
                    continue
                end = starts[source] + ticks[source]
                if start < end + lag:
                    yield _early(reading, device, block - first, code, giver, start, end, lag)


def _early(
    reading: Reading,
    device: int,
    position: int,
    code: int,
    giver: int,
    start: int,
    end: int,
    lag: int,
) -> Violation:
    op, needed = reading.op(code), reading.op(giver)
    crossing = f" and takes {reading.time_text(lag)} to cross" if lag else ""
    home, _ = reading.where(reading.place[giver])
    return Violation(
        TIMING,
        f"{op} on device {device} starts at {reading.time_text(start)}, but its input {needed} "
        f"on device {home} ends at {reading.time_text(end)}{crossing}: "
        f"{_lack(reading, end + lag - start)} too early",
        device,
        position,
        (str(op), str(needed)),
    )


def _lack(reading: Reading, ticks: int) -> str:
    """Return ticks both as such and in the problem's unit."""
    unit = reading.problem.time_unit
    if reading.ticks_per_unit == 1 and not unit:
        return plural(ticks, "tick")
    return f"{reading.time_text(ticks)} ({plural(ticks, 'tick')})"
