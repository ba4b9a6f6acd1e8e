"""Memory against time: the best schedules for each memory limit, and what is proven between them.

A limit is one number: that of the device with the largest. Where the devices of the problem have
different limits, all are scaled alike; where it has none, all get the same.
"""

from bisect import bisect_right
from dataclasses import dataclass

from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.quantity import Number
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.simulate import Timeline


@dataclass(frozen=True, slots=True)
class Point:
    """A schedule that no known one beats in both memory and time.

    Parameters
    ----------
    limit
        The least limit that it keeps, in grains.
    timeline
        The schedule with its times; its problem has this limit, and its bound and proof hold
        for it.
    """

    limit: int
    timeline: Timeline

    @property
    def schedule(self) -> Schedule:
        """The schedule."""
        return self.timeline.schedule

    @property
    def memory(self) -> Number:
        """The limit in the problem's unit."""
        return self.schedule.problem.amount(self.limit)

    @property
    def objective_ticks(self) -> int:
        """Makespan or span, as the problem asks, in ticks."""
        return self.timeline.objective_ticks

    @property
    def bound_ticks(self) -> int:
        """No schedule within the limit has a smaller objective; in ticks."""
        return self.schedule.bound or 0

    @property
    def objective(self) -> Number:
        """The objective in the problem's unit."""
        return self.schedule.problem.time(self.objective_ticks)

    @property
    def bound(self) -> Number:
        """The bound in the problem's unit."""
        return self.schedule.problem.time(self.bound_ticks)

    @property
    def optimal(self) -> bool:
        """Whether no schedule within the limit can be better."""
        return self.objective_ticks == self.bound_ticks

    @property
    def gap(self) -> float:
        """(objective - bound) / objective; 0 where the point is proven optimal."""
        objective = self.objective_ticks
        return (objective - self.bound_ticks) / objective if objective else 0.0


@dataclass(frozen=True, slots=True)
class Published:
    """A published schedule beside the curve.

    Parameters
    ----------
    name
        Of the family.
    limit
        The least limit that it keeps, in grains.
    objective_ticks
        Its makespan or span, as the problem asks.
    """

    name: str
    limit: int
    objective_ticks: int


@dataclass(frozen=True, slots=True)
class Least:
    """The answer to: the least memory with at most so much bubble.

    Parameters
    ----------
    most_bubble
        What was asked, as a ratio.
    most_ticks
        The largest objective with which the bubble is no larger.
    point
        The point with the least memory that keeps it; None where none was found.
    short_below
        Every limit below this, in grains, is proven not to do.
    hopeless
        Whether it is proven that no memory does.
    """

    most_bubble: float
    most_ticks: int
    point: Point | None
    short_below: int
    hopeless: bool

    @property
    def exact(self) -> bool:
        """Whether nothing is left open: the point has the least memory of all, or none does."""
        return self.hopeless or (self.point is not None and self.point.limit <= self.short_below)


@dataclass(frozen=True, slots=True)
class Frontier:
    """The memory-time curve of a problem.

    Parameters
    ----------
    problem
        The problem; its limits only say how those of the devices compare.
    points
        From the least limit on, each with more memory and a smaller objective than the one before.
    floors
        (limit, bound), limits rising: no schedule that needs less than the limit has an objective
        below the bound, in grains and ticks. The last bound holds for every schedule.
    published
        The families that apply, by memory.
    seconds
        Wall time of the search.
    least
        The answer where a largest bubble was asked for.
    interrupted
        Whether Ctrl-C ended the search.
    """

    problem: Problem
    points: tuple[Point, ...]
    floors: tuple[tuple[int, int], ...]
    published: tuple[Published, ...]
    seconds: float
    least: Least | None = None
    interrupted: bool = False

    @property
    def bound_ticks(self) -> int:
        """No schedule has a smaller objective, whatever the memory; in ticks."""
        return self.floors[-1][1] if self.floors else 0

    @property
    def complete(self) -> bool:
        """Whether every point is proven optimal, and more memory proven to gain nothing."""
        return (
            bool(self.points)
            and all(point.optimal for point in self.points)
            and self.points[-1].objective_ticks == self.bound_ticks
        )

    def within(self, limit: int) -> Point | None:
        """Return the best point within a limit in grains; None where nothing fits."""
        place = bisect_right(self.points, limit, key=lambda point: point.limit)
        return self.points[place - 1] if place else None

    def floor(self, limit: int) -> int:
        """Return what is proven for a limit in grains: a bound on the objective, in ticks."""
        place = bisect_right(self.floors, limit, key=lambda floor: floor[0])
        return self.floors[place][1] if place < len(self.floors) else self.bound_ticks
