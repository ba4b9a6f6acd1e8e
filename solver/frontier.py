"""The memory-time curve: for each memory limit the best schedule and a bound.

A schedule that keeps a limit is offered to every larger one, and a bound proven for a limit holds
for every smaller one. So the curve is monotone by construction, and what one point learns its
neighbours know.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import floor, isqrt
from time import monotonic

from bubbleproof.schedules.curve import Frontier, Least, Point, Published
from bubbleproof.schedules.problem import Objective, Problem, require_problem
from bubbleproof.schedules.quantity import exact
from bubbleproof.schedules.schedule import Bound, Status
from bubbleproof.schedules.simulate import Timeline
from bubbleproof.solver.bounds import bounds
from bubbleproof.solver.comparison import compare_families
from bubbleproof.solver.levels import Levels
from bubbleproof.solver.limits import within_limits
from bubbleproof.solver.long import is_long
from bubbleproof.solver.portfolio import solve
from bubbleproof.solver.times import LeastTimes

LEAST_POINTS, MOST_POINTS = 2, 1000
"""How many limits may be asked for: at least the two ends of the curve."""

_FIRST_PASS_SHARE = 0.5
_LEAST_SLICE_S = 1.0
_HALVINGS = 8


def frontier(
    problem: Problem,
    *,
    time_limit_s: float = 60.0,
    points: int = 16,
    max_bubble: float | None = None,
    workers: int | None = None,
    seed: int = 0,
    on_progress: Callable[[Frontier], None] | None = None,
) -> Frontier:
    """Find the least makespan or span for each memory limit, from the least limit that can do.

    Half of the time goes to a first look at all limits, the rest to the widest gaps. The limits
    lie where the curve falls most: the largest step, by ratio, is split until none is left or
    ``points`` limits have been tried, those of the published families among the first. Ctrl-C
    ends the search with what there is.

    Parameters
    ----------
    problem
        The problem. Its limits only say how those of the devices compare: all are scaled alike.
    time_limit_s
        Wall time in seconds for the whole curve.
    points
        The most limits that are tried, 2 or more.
    max_bubble
        Ask instead for the least memory with at most this bubble, as a ratio of 0 or more and
        less than 1: of all device time for a makespan, and for a span as the Zero Bubble papers
        count it. Where a backward may take either form, its shorter one is the work.
    workers, seed
        As in ``solve``.
    on_progress
        Called with the curve so far, after each search.

    Raises
    ------
    ValueError
        If a number makes no sense, or a device's limit of 0 cannot be scaled.
    """
    require_problem(problem)
    if not LEAST_POINTS <= points <= MOST_POINTS:
        raise ValueError(f"points: {points} is out of range; {LEAST_POINTS}..{MOST_POINTS}, as 16")
    if max_bubble is not None and not 0 <= max_bubble < 1:
        raise ValueError(
            f"max_bubble: {max_bubble} is out of range; 0 or more and less than 1, as 0.02 for 2 %"
        )
    search = _Search(problem, time_limit_s, workers, seed)
    wanted = search.curve(points) if max_bubble is None else search.least(max_bubble)
    try:
        search.offer_families()
        for level, slice_s in wanted:
            search.improve(level, slice_s)
            if on_progress is not None:
                on_progress(search.frontier(max_bubble))
            if search.interrupted or search.left_s <= 0:
                break
    except KeyboardInterrupt:
        search.interrupted = True
    return search.frontier(max_bubble)


def most_ticks(problem: Problem, bubble: float) -> int:
    """Return the largest objective, in ticks, with at most this bubble.

    The bubble is 1 - work / objective: of the mean device for a makespan, of the busiest one for
    a span.
    """
    times = LeastTimes(problem)
    work = [times.least_work(device) for device in range(problem.devices)]
    busy = 1 - exact(bubble, "max_bubble")
    if problem.objective is Objective.SPAN:
        return floor(max(work) / busy)
    return floor(sum(work) / (problem.devices * busy))


class _Search:
    """The schedules and bounds so far, by level, and which level to search next."""

    def __init__(
        self, problem: Problem, time_limit_s: float, workers: int | None, seed: int
    ) -> None:
        self.problem = problem
        self.interrupted = False
        self._began = monotonic()
        self._time_limit_s, self._workers, self._seed = time_limit_s, workers, seed
        self._scale = Levels.of(problem)
        self._levels = self._scale.all
        self._front: list[tuple[int, Timeline]] = []
        """The schedules that no other one beats in both, by the least level that each keeps."""
        self._proven: dict[int, tuple[Bound, ...]] = {}
        self._searches = 0
        self._spent_s: dict[int, float] = {}
        """For each level that was searched the seconds it took."""
        self._enough = 0
        self._published: tuple[Published, ...] = ()

    @property
    def left_s(self) -> float:
        """Seconds left."""
        return self._began + self._time_limit_s - monotonic()

    def offer_families(self) -> None:
        """Take every published family that applies and fits some level."""
        unlimited = self._scale.limited(self._levels[-1])
        published = [
            Published(candidate.name, self._offer(candidate.timeline), candidate.objective_ticks)
            for candidate in compare_families(unlimited).candidates
            # A limit of 0 stays 0 at every level.
            if within_limits(unlimited, candidate.timeline.schedule.rows)
        ]
        self._published = tuple(sorted(published, key=lambda p: (p.limit, p.objective_ticks)))

    def improve(self, level: int, slice_s: float) -> None:
        """Search at one level, from what is known of all."""
        problem, known = self._scale.limited(level), self._best(level)
        # A kernel that is repeated is made anew; other orders of that many ops are not improved on.
        start = None if known is None or is_long(problem) else known.schedule
        result = solve(
            problem,
            time_limit_s=max(0.0, min(slice_s, self.left_s)),
            workers=self._workers,
            # Another seed each time, so that a level searched again is not searched the same way.
            seed=self._seed + self._searches,
            start=start,
            enough=max(self._bound(level), self._enough),
        )
        self.interrupted = result.interrupted
        self._searches += 1
        self._spent_s[level] = self._spent_s.get(level, 0.0) + result.seconds
        self._offer(result.timeline)
        self._prove(level, result.proof)

    def curve(self, points: int) -> Iterator[tuple[int, float]]:
        """Yield levels to search for the curve, each with seconds for it."""
        slice_s = max(_LEAST_SLICE_S, _FIRST_PASS_SHARE * self._time_limit_s / points)
        ends = [self._levels[-1], self._levels[0]]
        families = [family.limit for family in self._front_of_families()]
        for level in [*ends, *families]:
            if len(self._spent_s) < points and not self._closed(level):
                yield level, slice_s
        while len(self._spent_s) < points:
            step = self._largest_step()
            if step is None:
                break
            yield step, slice_s
        while (level := self._widest_gap()) is not None:
            yield level, max(slice_s, self._spent_s.get(level, 0.0))

    def least(self, bubble: float) -> Iterator[tuple[int, float]]:
        """Yield levels to search for the least memory with at most this bubble."""
        self._enough = most_ticks(self.problem, bubble)
        yield self._levels[-1], self._time_limit_s / _HALVINGS
        self._prove_short()
        while undecided := self._undecided():
            middle = (undecided[0] + undecided[-1]) // 2
            level = min(undecided, key=lambda each: (self._spent(each), abs(each - middle)))
            yield level, max(_LEAST_SLICE_S, self.left_s / _HALVINGS, 2 * self._spent(level))

    def _prove_short(self) -> None:
        """Find by bisection up to which level the arguments of ``bounds`` prove that it is short.

        They need no search, and the higher the level the less they prove.
        """
        low, high = 0, len(self._levels)
        while low < high:
            middle = (low + high) // 2
            level = self._levels[middle]
            proof = bounds(self._scale.limited(level))
            self._prove(level, proof)
            if proof[0].ticks > self._enough:
                low = middle + 1
            else:
                high = middle

    def _undecided(self) -> tuple[int, ...]:
        """Return the levels that are neither proven short nor known to do."""
        if self._hopeless:
            return ()
        short, point = self._short(), self._doing()
        first = 0 if short is None else bisect_right(self._levels, short)
        last = len(self._levels) if point is None else bisect_left(self._levels, point)
        return self._levels[first:last]

    @property
    def _hopeless(self) -> bool:
        """Whether no memory does."""
        short = self._short()
        return short is not None and short >= self._levels[-1]

    def _doing(self) -> int | None:
        """Return the least level of a schedule that is as good as asked for."""
        return min(
            (level for level, line in self._front if line.objective_ticks <= self._enough),
            default=None,
        )

    def _short(self) -> int | None:
        """Return the largest level that is proven to have no schedule as good as asked for."""
        return max(
            (level for level, proof in self._proven.items() if proof[0].ticks > self._enough),
            default=None,
        )

    def _front_of_families(self) -> list[Published]:
        """Return the families that no other one beats in both memory and time."""
        front: list[Published] = []
        for family in self._published:
            if not front or family.objective_ticks < front[-1].objective_ticks:
                front.append(family)
        return front

    def _largest_step(self) -> int | None:
        """Return an untried level in the middle of the largest relative fall of the curve."""
        marks = sorted({*self._spent_s, *(level for level, _ in self._front)})
        steps: list[tuple[float, int]] = []
        for below, above in pairwise(marks):
            # In the middle by ratio: the curve is steep where memory is small.
            middle = bisect_left(self._levels, isqrt(below * above))
            first, last = bisect_right(self._levels, below), bisect_left(self._levels, above) - 1
            if first <= last:
                ratio = self._objective(above) / (self._objective(below) or 1)
                steps.append((ratio, self._levels[min(max(middle, first), last)]))
        ratio, level = min(steps, default=(1.0, 0))
        return level if ratio < 1 else None

    def _widest_gap(self) -> int | None:
        """Return the level with the widest gap for the time that it had; None if all are closed."""
        levels = {*self._spent_s, *(level for level, _ in self._front)}
        gaps = {level: self._objective(level) - self._bound(level) for level in levels}
        open_levels = sorted(level for level in gaps if gaps[level] > 0)
        if not open_levels:
            return None
        return max(
            open_levels,
            key=lambda level: gaps[level] / self._objective(level) / (1 + self._spent(level)),
        )

    def _spent(self, level: int) -> float:
        return self._spent_s.get(level, 0.0)

    def _closed(self, level: int) -> bool:
        best = self._best(level)
        return best is not None and best.objective_ticks <= self._bound(level)

    def _objective(self, level: int) -> int:
        best = self._best(level)
        if best is None:
            raise AssertionError(f"level {level} has no schedule yet")
        return best.objective_ticks

    def _best(self, level: int) -> Timeline | None:
        """Return the best schedule that keeps a level."""
        place = bisect_right(self._front, level, key=lambda found: found[0])
        return self._front[place - 1][1] if place else None

    def _offer(self, timeline: Timeline) -> int:
        """Take a schedule into the front if none there is as good; return the level it needs."""
        level, objective = self._scale.needed_by(timeline), timeline.objective_ticks
        known = self._best(level)
        if known is None or objective < known.objective_ticks:
            kept = [
                (other, found)
                for other, found in self._front
                if other < level or found.objective_ticks < objective
            ]
            self._front = sorted([*kept, (level, timeline)], key=lambda found: found[0])
        return level

    def _prove(self, level: int, proof: tuple[Bound, ...]) -> None:
        known = self._proven.get(level)
        if known is None or proof[0].ticks > known[0].ticks:
            self._proven[level] = proof

    def _proof(self, level: int) -> tuple[Bound, ...]:
        """Return the strongest proof for a level: its own, or of a larger one."""
        return max(
            (proof for proven, proof in sorted(self._proven.items()) if proven >= level),
            key=lambda proof: proof[0].ticks,
            default=(),
        )

    def _bound(self, level: int) -> int:
        proof = self._proof(level)
        return proof[0].ticks if proof else 0

    def frontier(self, max_bubble: float | None) -> Frontier:
        """Return what is known now."""
        points = tuple(self._point(level, timeline) for level, timeline in self._front)
        floors = [(self._scale.after(level), self._bound(level)) for level in sorted(self._proven)]
        return Frontier(
            problem=self.problem,
            points=points,
            floors=tuple(floors),
            published=self._published,
            seconds=monotonic() - self._began,
            least=None if max_bubble is None else self._answer(max_bubble, points),
            interrupted=self.interrupted,
        )

    def _point(self, level: int, timeline: Timeline) -> Point:
        proof = self._proof(level)
        bound, objective = self._bound(level), timeline.objective_ticks
        schedule = replace(
            timeline.schedule,
            problem=self._scale.limited(level),
            starts=timeline.starts,
            objective=objective,
            bound=bound,
            status=Status.OPTIMAL if objective == bound else Status.FEASIBLE,
            proof=proof,
        )
        return Point(level, replace(timeline, schedule=schedule))

    def _answer(self, bubble: float, points: tuple[Point, ...]) -> Least:
        level, short = self._doing(), self._short()
        return Least(
            most_bubble=bubble,
            most_ticks=most_ticks(self.problem, bubble),
            point=next((point for point in points if point.limit == level), None),
            short_below=self._levels[0] if short is None else self._scale.after(short),
            hopeless=self._hopeless,
        )
