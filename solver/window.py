"""A window of a schedule: what is free in it, and what of the rest matters.

What starts before the window keeps its times. What starts after it keeps its order, so that it
counts by its *tail*: the longest way from its start to the end of all. Blocks beside the window, on
devices that are not in it, keep their order and may move in time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bubbleproof.schedules.dependencies import inputs, output
from bubbleproof.schedules.ops import Op, Row, ops_of
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Starts

Ways: TypeAlias = dict[int, int]
"""By target the longest way to its last end, in ticks.

A target is a device, whose own last end counts for the span; for the makespan there is but one, 0.
"""


@dataclass(frozen=True, slots=True)
class Window:
    """What is free: all blocks of some devices that start from one tick on and before another.

    Parameters
    ----------
    begin, end
        Ticks; what starts at ``begin`` is free, what starts at ``end`` is not.
    devices
        The devices whose blocks are free.
    """

    begin: int
    end: int
    devices: frozenset[int]


@dataclass(frozen=True, slots=True)
class Cut:
    """A schedule cut by a window.

    Parameters
    ----------
    problem
        A problem in which no op takes no time.
    rows, starts
        A valid order with its starts, in ticks.
    window
        What is free.
    first, beside, after
        For each device the places in its row at which begin what is free, what is beside the
        window, and what is after it.
    known
        For each output of what is before the window when it was handed on.
    """

    problem: Problem
    rows: tuple[Row, ...]
    starts: Starts
    window: Window
    first: tuple[int, ...]
    beside: tuple[int, ...]
    after: tuple[int, ...]
    known: Mapping[Op, int]

    @staticmethod
    def of(problem: Problem, rows: tuple[Row, ...], starts: Starts, window: Window) -> "Cut":
        """Cut a schedule.

        For the span all that starts before the last device's first start is beside the window, if
        it is not before or in it: when a device begins has to be known or a variable.
        """
        until = window.end
        if problem.objective is Objective.SPAN:
            until = max(until, *(begins[0] + 1 for begins in starts if begins))
        ends = [
            window.end if device in window.devices else window.begin
            for device in range(problem.devices)
        ]
        first = tuple(sum(begin < window.begin for begin in begins) for begins in starts)
        return Cut(
            problem=problem,
            rows=rows,
            starts=starts,
            window=window,
            first=first,
            beside=tuple(
                sum(begin < end for begin in begins)
                for begins, end in zip(starts, ends, strict=True)
            ),
            after=tuple(sum(begin < until for begin in begins) for begins in starts),
            known={
                output(op): begin + problem.duration(block)
                for row, begins, place in zip(rows, starts, first, strict=True)
                for block, begin in zip(row[:place], begins, strict=False)
                for op in ops_of(block)
            },
        )

    def free_from(self, device: int) -> int:
        """Return when a device has done all that is before the window, in ticks."""
        place = self.first[device] - 1
        if place < 0:
            return 0
        return self.starts[device][place] + self.problem.duration(self.rows[device][place])

    def tails(self) -> list[list[Ways]]:
        """Return for each device and block after the window the longest ways from its start."""
        problem, rows, after = self.problem, self.rows, self.after
        at = {
            output(op): (device, place)
            for device, row in enumerate(rows)
            for place, block in enumerate(row)
            for op in ops_of(block)
        }
        tails: list[list[Ways]] = [
            [{} for _ in row[first:]] for row, first in zip(rows, after, strict=True)
        ]
        for device, place in self._latest_first():
            block, mine = rows[device][place], tails[device][place - after[device]]
            for target, way in mine.items():
                mine[target] = way + problem.duration(block)
            if place + 1 == len(rows[device]):
                mine.setdefault(self.target(device), problem.duration(block))
            before = [((device, place - 1), 0)]
            for op in ops_of(block):
                before += [(at[source], lag) for source, lag in inputs(problem, op)]
            for (there, where), lag in before:
                if where >= after[there]:
                    theirs = tails[there][where - after[there]]
                    for target, way in mine.items():
                        theirs[target] = max(theirs.get(target, 0), lag + way)
        return tails

    def target(self, device: int) -> int:
        """Return the target that a device's last end counts for."""
        return device if self.problem.objective is Objective.SPAN else 0

    def _latest_first(self) -> Sequence[tuple[int, int]]:
        """Return device and place of what is after the window, each behind what waits for it."""
        timed = sorted(
            (begins[place], device, place)
            for device, begins in enumerate(self.starts)
            for place in range(self.after[device], len(begins))
        )
        return [(device, place) for _, device, place in reversed(timed)]
