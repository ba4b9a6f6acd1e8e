"""The shortest cycle of waits in rows that cannot run."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Wait:
    """A block that waits for an input, and the block that gives it."""

    block: int
    source: int


@dataclass(frozen=True, slots=True)
class Stair:
    """The waits of one row for another that reach further than all before them in their row.

    Both lists ascend: a block may run only after those before it in its row, so it waits, in the
    end, for whatever these wait for.
    """

    blocks: list[int]
    sources: list[int]

    def farthest(self, block: int) -> Wait | None:
        """Return the wait, of a block up to this one, that reaches furthest."""
        step = bisect_right(self.blocks, block) - 1
        return Wait(self.blocks[step], self.sources[step]) if step >= 0 else None


Stairs: TypeAlias = Mapping[int, Mapping[int, Stair]]
"""For each row and each row that it waits for the stair of its waits."""


def stairs_of(waits: Iterable[tuple[int, int, Wait]]) -> Stairs:
    """Return the stairs of (row, row waited for, wait), blocks ascending in each row."""
    stairs: dict[int, dict[int, Stair]] = {}
    for row, other, wait in waits:
        stair = stairs.setdefault(row, {}).setdefault(other, Stair([], []))
        if stair.sources and wait.source <= stair.sources[-1]:
            continue
        if stair.blocks and stair.blocks[-1] == wait.block:
            stair.sources[-1] = wait.source
        else:
            stair.blocks.append(wait.block)
            stair.sources.append(wait.source)
    return stairs


def shortest_cycle(stairs: Stairs) -> list[Wait]:
    """Return a cycle with the fewest waits: each waits for a block at or after the next's block.

    Every row of the stairs must have a block that waits for a row of the stairs, as rows that
    stand still have; so there is a cycle with at most one wait for each row.

    Notes
    -----
    What a row's blocks up to x reach with k waits only grows with x. So if from x it comes back
    to the row no further than y < x, then every cycle of k waits through the row lies in its
    blocks up to y, and the search goes on from y. A row that is done takes part in no other
    search; taking the middle rows first leaves short stretches of neighbours.
    """
    last = _last_on_cycles(stairs)
    limit = 1
    while not (cycle := _cycle_within(stairs, last, limit)):
        limit *= 2
    first = min(range(len(cycle)), key=lambda index: cycle[index].block)
    return cycle[first:] + cycle[:first]


def _cycle_within(stairs: Stairs, last: Mapping[int, int], limit: int) -> list[Wait]:
    """Return a cycle with the fewest waits where one has at most ``limit``; else nothing."""
    best: list[Wait] = []
    done: set[int] = set()
    for row in _middle_first(sorted(last)):
        start = last[row]
        while start >= 0 and limit:
            found, start = _returns(stairs, done, row, start, limit)
            if found:
                best, limit = found, len(found) - 1
        done.add(row)
    return best


def _last_on_cycles(stairs: Stairs) -> dict[int, int]:
    """Return for each row that can be on a cycle a block up to which all its waits in cycles lie.

    A block on a cycle lies at or before one that a block on a cycle waits for.
    """
    last = {row: max(s.blocks[-1] for s in others.values()) for row, others in stairs.items()}
    while True:
        reached: dict[int, int] = {}
        for row, block in last.items():
            for other, stair in stairs[row].items():
                wait = stair.farthest(block)
                if wait is not None and other in last:
                    reached[other] = max(reached.get(other, -1), wait.source)
        nearer = {row: min(last[row], block) for row, block in reached.items()}
        if nearer == last:
            return last
        last = nearer


def _returns(
    stairs: Stairs, done: set[int], row: int, start: int, limit: int
) -> tuple[list[Wait], int]:
    """Follow up to ``limit`` waits from a row's blocks up to ``start``.

    Returns
    -------
    tuple
        The first way back to ``start`` or beyond, empty where there is none, and the last block
        of the row, before ``start``, to which fewer waits lead back; -1 where none does.
    """
    levels: list[dict[int, tuple[int, int, int]]] = [{row: (start, -1, -1)}]
    back = -1
    for _ in range(limit):
        level: dict[int, tuple[int, int, int]] = {}
        for here, (block, _, _) in levels[-1].items():
            for other, stair in stairs[here].items():
                wait = None if other in done else stair.farthest(block)
                if wait and (other not in level or wait.source > level[other][0]):
                    level[other] = (wait.source, here, wait.block)
        level = {other: step for other, step in level.items() if other in stairs}
        levels.append(level)
        if row in level:
            if level[row][0] >= start:
                return _trace(levels, row), back
            back = max(back, level[row][0])
    return [], back


def _trace(levels: Sequence[Mapping[int, tuple[int, int, int]]], row: int) -> list[Wait]:
    waits: list[Wait] = []
    for level in reversed(levels[1:]):
        source, row, block = level[row]
        waits.append(Wait(block, source))
    return waits[::-1]


def _middle_first(rows: Sequence[int]) -> Iterator[int]:
    if rows:
        middle = len(rows) // 2
        yield rows[middle]
        yield from _middle_first(rows[:middle])
        yield from _middle_first(rows[middle + 1 :])
