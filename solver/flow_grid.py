"""The instants at which a fluid is looked at: a begin, an end, and an unseen middle between."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bubbleproof.schedules.quantity import LARGEST
from bubbleproof.solver.linear_program import Entries, Ints


@dataclass(frozen=True, slots=True)
class Grid:
    """Instants that ascend, in units.

    Attributes
    ----------
    instants
        The first, -1, stands for all that came before 0; the last is the horizon.
    middle
        The place of the first instant behind the unseen middle; None where no middle is unseen.
    """

    instants: Ints
    middle: int | None

    @staticmethod
    def evenly(horizon: int, *, step: int, points: int, middle: int) -> "Grid":
        """Return a grid with its first half counted from 0, its second from the horizon.

        Parameters
        ----------
        step
            The time between instants.
        points
            How many instants there are at most, at least 2.
        middle
            The least time that is left out, if there is as much; at least 1.
        """
        if not horizon:
            return Grid.whole(0, step=1)
        edge = min(points // 2, max(0, horizon - max(1, middle)) // (2 * step) + 1)
        begin = step * np.arange(edge, dtype=np.int64)
        before = np.full(1, -1, np.int64)
        return Grid(np.concatenate((before, begin, horizon - begin[::-1])), edge + 1)

    @staticmethod
    def whole(horizon: int, *, step: int) -> "Grid":
        """Return a grid without a middle, counted from the horizon."""
        begin = np.array([-1, 0] if horizon % step else [-1], np.int64)
        instants = np.arange(horizon % step, horizon + 1, step, dtype=np.int64)
        return Grid(np.concatenate((begin, instants)), None)

    @property
    def horizon(self) -> int:
        """The last instant."""
        return int(self.instants[-1])

    def longer(self, time: int) -> "Grid":
        """Return it with so much more time in its middle."""
        if self.middle is None:
            raise ValueError("a grid without a middle cannot be longer")
        instants = self.instants.copy()
        instants[self.middle :] += time
        return Grid(instants, self.middle)

    def after(self, time: Ints) -> Ints:
        """Return the places of the first instants that are no earlier, the last for all later."""
        place = np.searchsorted(self.instants, np.maximum(time, -1), side="left")
        return np.minimum(place, len(self.instants) - 1).astype(np.int64)

    def moments(self, places: Ints, ticks: int, *, behind: bool) -> Iterator[Entries]:
        """Yield how many of the last moments up to some instants have which instants before them.

        Parameters
        ----------
        places
            The instants, as places in the grid.
        ticks
            How many moments.
        behind
            Whether the first instant that is no earlier stands for a moment, not the last one
            that is no later.
        """
        grid = self.instants
        last = grid[places]
        first = last - ticks + 1
        begin = np.append(-LARGEST, grid[:-1] + 1 if behind else grid[1:])
        end = grid if behind else np.append(grid[1:] - 1, grid[-1])
        row = np.arange(len(places))
        while ticks and len(row):
            number = np.minimum(end[places], last) - np.maximum(begin[places], first) + 1
            yield row, places, number
            more = begin[places] > first
            row, places, first, last = (each[more] for each in (row, places - 1, first, last))

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield runs of instants at the same distance: the first, the last, and the distance."""
        instants = self.instants[1:].tolist()
        first, count = 0, len(instants)
        for place in range(1, count + 1):
            step = instants[first + 1] - instants[first] if first + 1 < count else 1
            ends = place == count or (
                place > first + 1 and instants[place] - instants[place - 1] != step
            )
            if ends:
                yield instants[first], instants[place - 1], step if place > first + 1 else 1
                first = place
