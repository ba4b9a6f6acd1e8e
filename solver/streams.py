"""A whole step on two streams per device: the best order of all components, with a bound.

No pairing is given in advance. The search starts from the best schedule of blocks that is known,
published or solved, with each block's components in their best order; it improves the orders of all
streams by annealing and leaves the rest, and the bound, to CP-SAT. Where both directions of a
bidirectional problem are alike, one half of the devices is searched first, with the other as its
mirror image.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Lock
from time import monotonic

from bubbleproof.schedules import families
from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.quantity import Number
from bubbleproof.schedules.schedule import Schedule, Status
from bubbleproof.schedules.streams import Component, StreamSchedule, require_components
from bubbleproof.solver.block_order import with_component_costs
from bubbleproof.solver.limits import within_limits
from bubbleproof.solver.portfolio import MOST_WORKERS, solve
from bubbleproof.solver.result import Result
from bubbleproof.solver.shop import in_turn, load_bound, makespan_of, solve_shop
from bubbleproof.solver.stream_search import anneal
from bubbleproof.solver.stream_shop import StreamShop, may_mirror
from bubbleproof.solver.stream_start import starts_of_blocks

MOST_TASKS = 20_000
"""The most components of a problem."""

_BLOCKS_SHARE, _MIRRORED_SHARE, _ANNEALING_SHARE = 0.15, 0.7, 0.6
"""Of the time that is left: for blocks; for the mirrored half; in each shop for annealing."""


@dataclass(frozen=True, slots=True)
class StreamResult:
    """The best schedule of streams, and what blocks reach on the same problem.

    Parameters
    ----------
    schedule
        With starts, objective, bound and status.
    blocks
        What blocks reach whose times are those of their components' best orders.
    seconds
        Wall time of the search.
    interrupted
        Whether Ctrl-C ended the search.
    """

    schedule: StreamSchedule
    blocks: Result
    seconds: float
    interrupted: bool = False

    @property
    def objective_ticks(self) -> int:
        """The makespan in ticks."""
        return self.schedule.objective or 0

    @property
    def bound_ticks(self) -> int:
        """No schedule of streams takes less."""
        return self.schedule.bound or 0

    @property
    def objective(self) -> Number:
        """The makespan in the problem's unit."""
        return self.schedule.problem.time(self.objective_ticks)

    @property
    def bound(self) -> Number:
        """The bound in the problem's unit."""
        return self.schedule.problem.time(self.bound_ticks)

    @property
    def gap(self) -> float:
        """(objective - bound) / objective."""
        objective = self.objective_ticks
        return (objective - self.bound_ticks) / objective if objective else 0.0

    @property
    def mirrored_optimal(self) -> bool:
        """Whether no schedule with mirrored directions takes less."""
        return self.schedule.mirrored_bound == self.objective_ticks

    @property
    def lost_by_blocks(self) -> float:
        """The part of the best known blocks' makespan that streams save."""
        blocks = self.blocks.objective_ticks
        return (blocks - self.objective_ticks) / blocks if blocks else 0.0

    @property
    def surely_lost_by_blocks(self) -> float:
        """The part that is saved even if blocks reached their bound; 0 where that is open."""
        least = self.blocks.bound_ticks
        return max(0, least - self.objective_ticks) / least if least else 0.0


def solve_streams(
    problem: Problem,
    *,
    time_limit_s: float = 60.0,
    workers: int | None = None,
    seed: int = 0,
    asymmetric: bool = False,
    on_progress: Callable[[StreamSchedule, float], None] | None = None,
) -> StreamResult:
    """Find the best order of all components on the devices' streams, and bound any order.

    Never worse than a published family, or the blocks that ``solve`` finds, with each block's
    components in their best order. Ctrl-C ends the search with the best so far.

    Parameters
    ----------
    problem
        A problem whose cost has components. Costs of blocks are not used.
    time_limit_s, workers, seed
        As of ``solve``.
    asymmetric
        Whether all the time goes to schedules of any kind; else, where both directions are alike,
        most of it goes to those in which they mirror each other. ``bound`` is on all schedules in
        any case.
    on_progress
        Called with each better schedule and the seconds so far.

    Raises
    ------
    NoScheduleError
        If no schedule keeps the memory limits.
    ValueError
        If the problem has no components, asks for the least span, or for fused backwards.
    """
    components = require_components(problem)
    if problem.objective is not Objective.MAKESPAN:
        raise ValueError('objective: streams are solved for "makespan"')
    if problem.backward is Backward.FUSED:
        raise ValueError(
            'backward: "fused" runs no weight parts of their own; streams need "free" or "split"'
        )
    tasks = sum(
        len(problem.microbatches_of_stage(stage))
        * sum(map(bool, (t[stage] for t in components.times)))
        * components.layers[stage]
        for stage in range(problem.stages)
    )
    if tasks > MOST_TASKS:
        raise ValueError(
            f"microbatches: {tasks} components; streams are solved up to {MOST_TASKS}, "
            "and more microbatches only repeat the middle"
        )
    began = monotonic()
    threads = workers or min(MOST_WORKERS, os.cpu_count() or 1)
    asked = with_component_costs(problem)
    blocks = solve(asked, time_limit_s=_BLOCKS_SHARE * time_limit_s, workers=threads, seed=seed)
    search = _Search(problem, blocks, began, began + time_limit_s, threads, seed, on_progress)
    interrupted = blocks.interrupted
    try:
        search.start(asked)
        if not interrupted and not asymmetric and may_mirror(problem):
            search.improve_mirrored()
        if not interrupted:
            search.improve()
    except KeyboardInterrupt:
        interrupted = True
    return search.result(interrupted=interrupted)


def _published(problem: Problem) -> Iterator[Schedule]:
    """Yield the published families that apply and fit."""
    for name in families.names():
        try:
            schedule = families.build(name, problem)
        except ValueError:
            continue  # The family does not apply; `bubbleproof compare` tells why.
        if within_limits(problem, schedule.rows):
            yield schedule


class _Search:
    """The best starts and bounds so far."""

    def __init__(
        self,
        problem: Problem,
        blocks: Result,
        began: float,
        deadline: float,
        workers: int,
        seed: int,
        on_progress: Callable[[StreamSchedule, float], None] | None,
    ) -> None:
        self._problem = problem
        self._blocks = blocks
        self._began, self._deadline = began, deadline
        self._workers, self._seed = workers, seed
        self._on_progress = on_progress
        self._all = StreamShop.of(problem)
        self._bound = load_bound(self._all.shop).ticks
        self._mirrored_bound: int | None = None
        self._starts: tuple[int, ...] = ()
        self._source = ""
        self._known: list[dict[Component, int]] = []
        self._lock = Lock()

    def start(self, asked: Problem) -> None:
        """Take the best of what is known of blocks."""
        for schedule in (*_published(asked), self._blocks.schedule):
            starts = starts_of_blocks(schedule)
            self._known.append(starts)
            self._offer(self._all, self._pushed(self._all, starts), f"streams of {schedule.source}")

    def improve_mirrored(self) -> None:
        """Search one half of the devices, from the best known schedule that is its own mirror."""
        shop = StreamShop.of(self._problem, mirrored=True)
        hints = [self._pushed(shop, starts) for starts in self._known if _is_mirrored(shop, starts)]
        if hints:
            best = min(hints, key=lambda hint: makespan_of(shop.shop, hint))
            until = monotonic() + _MIRRORED_SHARE * (self._deadline - monotonic())
            self._mirrored_bound = self._improved(shop, best, until)

    def improve(self) -> None:
        """Search all devices."""
        if self._objective > self._bound:
            self._bound = self._improved(self._all, self._starts, self._deadline)

    def result(self, *, interrupted: bool) -> StreamResult:
        """Return what was found."""
        schedule = self._schedule()
        return StreamResult(schedule, self._blocks, monotonic() - self._began, interrupted)

    @property
    def _objective(self) -> int:
        return makespan_of(self._all.shop, self._starts)

    def _improved(self, shop: StreamShop, hint: tuple[int, ...], until: float) -> int:
        """Search a shop, offer what is found, and return its bound."""
        least = max(self._bound, load_bound(shop.shop).ticks)
        now = monotonic()
        annealed = anneal(
            shop.shop,
            hint,
            until=now + _ANNEALING_SHARE * (until - now),
            seed=self._seed,
            workers=self._workers,
            least=least,
            on_starts=lambda starts: self._offer(shop, starts, "annealing of streams"),
        )
        solved = solve_shop(
            shop.shop,
            annealed,
            time_limit_s=max(0.1, until - monotonic()),
            workers=self._workers,
            seed=self._seed,
            least=least,
            on_starts=lambda starts: self._offer(shop, starts, "CP-SAT on streams"),
        )
        return solved.bound

    def _pushed(self, shop: StreamShop, starts: dict[Component, int]) -> tuple[int, ...]:
        """Return starts without the waits between blocks, where memory allows that."""
        given = shop.starts_of(starts)
        turns = sorted(range(len(given)), key=lambda i: (given[i], i))
        pushed = in_turn(shop.shop, turns)
        return pushed if shop.shop.fits(pushed) else given

    def _offer(self, shop: StreamShop, starts: tuple[int, ...], source: str) -> None:
        if shop.mirrored:
            starts = self._all.starts_of(shop.mirror(starts))
        with self._lock:
            if self._starts and makespan_of(self._all.shop, starts) >= self._objective:
                return
            self._starts, self._source = starts, source
            if self._on_progress is not None:
                self._on_progress(self._schedule(), monotonic() - self._began)

    def _schedule(self) -> StreamSchedule:
        rows, starts = self._all.rows(self._starts)
        objective = self._objective
        bound = min(self._bound, objective)
        return StreamSchedule(
            problem=self._problem,
            rows=rows,
            starts=starts,
            source=self._source,
            objective=objective,
            bound=bound,
            status=Status.OPTIMAL if bound == objective else Status.FEASIBLE,
            mirrored_bound=self._mirrored_bound,
        )


def _is_mirrored(shop: StreamShop, starts: dict[Component, int]) -> bool:
    return starts == shop.mirror(shop.starts_of(starts))
