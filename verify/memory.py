"""Rule memory: no device ever holds more than its limit."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from bubbleproof.verify.reading import B, F, I, Reading, W
from bubbleproof.verify.report import Violation

RULE = "memory"


@dataclass(frozen=True, slots=True)
class Held:
    """What a device holds along its row, in grains.

    Parameters
    ----------
    peak
        The most.
    at
        The position at whose start that is first reached; None for the static part alone.
    excess
        The first position at which the limit is passed, and the grains held there; None where it
        never is.
    """

    peak: int
    at: int | None
    excess: tuple[int | None, int] | None


def held(reading: Reading) -> tuple[Held, ...]:
    """Return what each device of the problem holds.

    A block allocates at its start and frees at its end, in the order of its row, so that what one
    frees is there for the next; a pair allocates for both ops and frees for both.
    """
    memory, n = reading.problem.memory, reading.microbatches
    changes = [
        change
        for each in zip(memory.F, memory.I, memory.W, memory.B, strict=True)
        for change in each
    ]
    static = [0] * reading.problem.devices
    for stage, device in enumerate(reading.layout.device_of_stage):
        static[device] += memory.static[stage]
    found: list[Held] = []
    for device, amount in enumerate(static):
        limit = memory.limit[device]
        peak, at = amount, None
        excess = (None, amount) if limit is not None and amount > limit else None
        codes = (
            reading.codes[reading.offsets[device] : reading.offsets[device + 1]]
            if device < len(reading.rows)
            else []
        )
        for position, ops in enumerate(codes):
            if not ops:
                continue
            freed = 0
            for code in ops:
                allocate, free = changes[code // n]
                amount += allocate
                freed += free
            if amount > peak:
                peak, at = amount, position
                if excess is None and limit is not None and amount > limit:
                    excess = position, amount
            amount -= freed
        found.append(Held(peak, at, excess))
    return tuple(found)


def memory(reading: Reading, amounts: tuple[Held, ...]) -> Iterator[Violation]:
    """No device holds more than its limit, its static part included.

    Each device is reported once, where it first passes its limit. The ops of a row are judged
    only where they are exactly the device's own: else they neither allocate nor free what they
    should.
    """
    for device, of_device in enumerate(amounts):
        limit = reading.problem.memory.limit[device]
        if of_device.excess is None or limit is None:
            continue
        position, grains = of_device.excess
        if position is not None and not _runs_its_own(reading, device):
            continue
        row = reading.rows[device] if device < len(reading.rows) else ()
        where = "before its first op" if position is None else f"at {row[position]}"
        over = (
            f"device {device} holds {reading.amount_text(grains)} {where}, "
            f"{reading.amount_text(grains - limit)} above its limit of "
            f"{reading.amount_text(limit)}"
        )
        if of_device.at is not None and of_device.at != position:
            over += (
                f"; its peak is {reading.amount_text(of_device.peak)} at {row[of_device.at]} "
                f"(position {of_device.at})"
            )
        ops = () if position is None else (str(row[position]),)
        yield Violation(RULE, over, device, position, ops)


def _runs_its_own(reading: Reading, device: int) -> bool:
    """Whether a row has exactly the ops of its device, a B counting for an I and a W."""
    n = reading.microbatches
    blocks = reading.codes[reading.offsets[device] : reading.offsets[device + 1]]
    counts = Counter(code // n for ops in blocks for code in ops)
    own = 0
    for stage, holder in enumerate(reading.layout.device_of_stage):
        if holder == device:
            forwards, inputs, weights, fused = (counts[4 * stage + kind] for kind in (F, I, W, B))
            whole = len(reading.window[stage])
            if forwards != whole or inputs != weights or inputs + fused != whole:
                return False
            own += forwards + inputs + weights + fused
    odd = any(found.device == device for found in (*reading.strangers, *reading.copies))
    return own == sum(counts.values()) and not odd
