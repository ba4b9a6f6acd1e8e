"""How far the order alone lets every device run, and when its blocks start at the earliest."""

from collections import defaultdict
from dataclasses import dataclass

from bubbleproof.verify.reading import Reading


@dataclass(frozen=True, slots=True)
class Run:
    """The rows, run by their order alone.

    Parameters
    ----------
    starts, ends
        For each block its earliest start and end in ticks; -1 where it never runs.
    heads
        For each row the first block that never runs; the next row's first where all run.
    starved
        Whether an op waits for an input that no row makes.
    """

    starts: list[int]
    ends: list[int]
    heads: list[int]
    starved: bool


def run(reading: Reading) -> Run:
    """Run each row as far as it goes: a block starts when the one before it and its inputs end.

    An input that no row makes is not waited for, nor one that a pair makes for itself.
    """
    offsets, codes, ticks = reading.offsets, reading.codes, reading.ticks
    needs, find, n = reading.needs, reading.place.get, reading.microbatches
    starts = [-1] * len(codes)
    ends = [-1] * len(codes)
    heads = list(offsets[:-1])
    free = [0] * len(heads)
    waiters: defaultdict[int, list[int]] = defaultdict(list)
    ready = list(range(len(heads)))
    starved = False
    while ready:
        device = ready.pop()
        block, stop, now = heads[device], offsets[device + 1], free[device]
        while block < stop:
            ops = codes[block]
            if not ops:
                starts[block] = now
                now = ends[block] = now + ticks[block]
                block += 1
                continue
            start = now
            awaited = -1
            for code in ops:
                for one, other, lag in needs[code // n]:
                    source = find(code + one)
                    if source is None:
                        source = find(code + other)
                        if source is None:
                            starved = True
                            continue
                    end = ends[source]
                    if end < 0:
                        if source != block:
                            awaited = source
                    elif end + lag > start:
                        start = end + lag
            if awaited >= 0:
                waiters[awaited].append(device)
                break
            starts[block] = start
            now = ends[block] = start + ticks[block]
            if block in waiters:
                ready.extend(waiters.pop(block))
            block += 1
        heads[device], free[device] = block, now
    return Run(starts, ends, heads, starved)
