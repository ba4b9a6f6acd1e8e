"""The middle of an order that repeats: taken out for a search near the ends, and put back.

In a stretch of an order each device may run the same few F's and backwards again and again, for one
microbatch after the other. Without some of these repetitions it is an order for fewer microbatches;
a search may change that before and behind the few that stay, and then the others come back where
they were. So a search does not grow with the number of microbatches, nor spoil what repeats.

Simplifications: one chain; W's are left out, since they find their own places (``fill``).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from bubbleproof.schedules.ops import Op, OpKind, Row
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.simulate import earliest_starts

KEPT = 2
"""Repetitions that stay: between them the others come back."""

Kinds: TypeAlias = list[tuple[OpKind, int]]
"""The kind and stage of each op of a row; its microbatches are counted up."""


@dataclass(frozen=True, slots=True)
class Condensed:
    """An order without some repetitions of its middle.

    Parameters
    ----------
    problem
        With as many microbatches less.
    rows
        The order, without W's.
    still
        For each device the first position of what stays as it is, and the one behind it.
    removed
        How many repetitions were taken out.
    """

    problem: Problem
    rows: tuple[Row, ...]
    still: tuple[tuple[int, int], ...]
    removed: int

    def expanded(self, rows: Sequence[Row]) -> tuple[Row, ...]:
        """Return an order of the short problem with the repetitions back, without W's.

        Parameters
        ----------
        rows
            An order without W's that is as this one between the positions of ``still``.
        """
        longer: list[Row] = []
        for row, (first, end) in zip(rows, self.still, strict=True):
            kinds = [(op.kind, op.stage) for op in row if isinstance(op, Op)]
            window = kinds[first : first + (end - first) // KEPT]
            longer.append(_numbered(kinds[:first] + window * self.removed + kinds[first:]))
        return tuple(longer)


def condensed(problem: Problem, rows: Sequence[Row]) -> Condensed | None:
    """Return an order without what it repeats oftener than needed; None where it does not.

    Parameters
    ----------
    problem
        A problem with one chain.
    rows
        A valid order without pairs, each stage and kind in the order of the microbatches.
    """
    if len(problem.microbatches) > 1:
        return None
    kinds: list[Kinds] = []
    times: list[list[int]] = []
    for row, starts in zip(rows, earliest_starts(problem, rows), strict=True):
        timed = [
            (op.kind, op.stage, start)
            for op, start in zip(row, starts, strict=True)
            if isinstance(op, Op) and op.kind is not OpKind.BACKWARD_WEIGHT
        ]
        kinds.append([(kind, stage) for kind, stage, _ in timed])
        times.append([start for _, _, start in timed])
    widths = [len(set(of_device)) for of_device in kinds]
    copies = [_copies(*each) for each in zip(kinds, widths, strict=True)]

    def repeats(cut: Sequence[int]) -> int:
        """How often all devices repeat what follows a cut."""
        return min(
            of_device[place] if place < len(of_device) else 0
            for of_device, place, width in zip(copies, cut, widths, strict=True)
            if width
        )

    cuts = [
        [bisect_left(starts, instant) for starts in times]
        for instant in sorted({start for starts in times[:1] for start in starts})
    ]
    best = max(cuts, key=repeats, default=None)
    removed = repeats(best) - KEPT if best is not None else 0
    if best is None or removed < 1:
        return None
    shorter: list[Row] = []
    still: list[tuple[int, int]] = []
    for of_device, first, width in zip(kinds, best, widths, strict=True):
        shorter.append(_numbered(of_device[:first] + of_device[first + removed * width :]))
        still.append((first, first + KEPT * width))
    less = problem.total_microbatches - removed
    return Condensed(replace(problem, microbatches=(less,)), tuple(shorter), tuple(still), removed)


def _copies(kinds: Kinds, width: int) -> list[int]:
    """Return for each position how often in a row the ops that follow it come, each kind once."""
    same = 0
    found = [0] * len(kinds)
    for place in range(len(kinds) - width, -1, -1):
        repeated = place + width < len(kinds) and kinds[place] == kinds[place + width]
        same = same + 1 if repeated else 0
        if width and len(set(kinds[place : place + width])) == width:
            found[place] = 1 + same // width
    return found


def _numbered(kinds: Kinds) -> Row:
    """Return ops with their microbatches counted up."""
    counts: dict[tuple[OpKind, int], int] = {}
    row: list[Op] = []
    for kind, stage in kinds:
        microbatch = counts.get((kind, stage), 0)
        counts[kind, stage] = microbatch + 1
        row.append(Op(stage, kind, microbatch))
    return tuple(row)
