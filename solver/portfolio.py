"""Solve a problem: published families, list scheduling, then the exact model, in one time limit."""

import os
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, Queue
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING

from bubbleproof.schedules import families
from bubbleproof.schedules.ops import Row
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Bound, Schedule, Starts, Status
from bubbleproof.schedules.simulate import simulate
from bubbleproof.solver.bounds import bounds
from bubbleproof.solver.construct import list_schedule, one_by_one, policies
from bubbleproof.solver.limits import shortages, within_limits
from bubbleproof.solver.result import NoScheduleError, Progress, Result
from bubbleproof.solver.retime import least_span_starts

if TYPE_CHECKING:
    from bubbleproof.solver.model import Model

MOST_WORKERS = 8
"""Threads used where none are asked for: one per core, at most this many."""

_MODEL_VARIABLES = 20_000
_LISTING_SHARE = 0.3
_QUICK_BLOCKS = 20_000
_GRACE_S = 1.0


def solve(
    problem: Problem,
    *,
    time_limit_s: float = 60.0,
    workers: int | None = None,
    seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Find the best schedule for a problem and prove how far it can be from the best of all.

    There is always a schedule in the result, and it is never worse than a published family that
    fits the problem's limits. Ctrl-C ends the search early with the best so far.

    Parameters
    ----------
    problem
        The problem.
    time_limit_s
        Wall time in seconds; kept within 10 % + 2 s.
    workers
        Search threads; None: one per core, at most 8.
    seed
        For the search. Several workers may find different schedules of the same objective.
    on_progress
        Called with each better schedule.

    Raises
    ------
    NoScheduleError
        If no schedule keeps the memory limits, with the device and the least limit that would do.
    ValueError
        If the time limit or the number of workers makes no sense.
    """
    if not time_limit_s >= 0:
        raise ValueError(f"time_limit_s: {time_limit_s} is no time; give seconds, as 60")
    if workers is not None and workers < 1:
        raise ValueError(f"workers: {workers} is too few; at least 1 is needed")
    began = monotonic()
    proof = _strongest_of_each(bounds(problem))
    _refuse_infeasible(problem, proof[0])
    search = _Search(problem, proof, began, began + time_limit_s, on_progress)
    try:
        search.try_families()
        search.try_lists()
        search.try_exact(workers or min(MOST_WORKERS, os.cpu_count() or 1), seed)
    except KeyboardInterrupt:
        return search.result(interrupted=True)
    return search.result(interrupted=False)


def _refuse_infeasible(problem: Problem, bound: Bound) -> None:
    missing = shortages(problem)
    if not missing:
        return
    worst = max(missing, key=lambda shortage: shortage.least - shortage.limit)
    unit = f" {problem.memory.unit}" if problem.memory.unit else ""
    limit, least = problem.amount(worst.limit), problem.amount(worst.least)
    others = f" ({len(missing) - 1} more devices lack memory)" if len(missing) > 1 else ""
    raise NoScheduleError(
        f"infeasible: device {worst.device} cannot hold even one microbatch at a time within "
        f"memory.limit {limit}{unit}; the least limit that would do is {least}{unit}{others}",
        problem=problem,
        device=worst.device,
        limit=limit,
        least=least,
        bound=problem.time(bound.ticks),
    )


def _strongest_of_each(found: tuple[Bound, ...]) -> tuple[Bound, ...]:
    strongest: dict[str, Bound] = {}
    for bound in found:
        strongest.setdefault(bound.name, bound)
    return tuple(strongest.values())


class _Exact(Thread):
    """CP-SAT in a thread of its own, so that Ctrl-C and the time limit reach the search."""

    def __init__(
        self,
        model: "Model",
        *,
        time_limit_s: float,
        workers: int,
        seed: int,
        found: "Queue[tuple[tuple[Row, ...], Starts | None]]",
    ) -> None:
        super().__init__(daemon=True)
        self._model = model
        self._time_limit_s, self._workers, self._seed = time_limit_s, workers, seed
        self._found = found
        self.bound: int | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Search until the bound is met, the time is over or the model is stopped."""
        try:
            self.bound = self._model.solve(
                time_limit_s=self._time_limit_s,
                workers=self._workers,
                seed=self._seed,
                on_rows=lambda rows, starts: self._found.put((rows, starts)),
            )
        except Exception as error:  # Raised again where the search waits.
            self.error = error


class _Search:
    """The best schedule and bound so far, and the ways to improve them."""

    def __init__(
        self,
        problem: Problem,
        proof: tuple[Bound, ...],
        began: float,
        deadline: float,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._problem = problem
        self._proof = proof
        self._began, self._deadline = began, deadline
        self._on_progress = on_progress
        self._best: Schedule | None = None
        self._objective = 0
        self._family: str | None = None
        self._family_objective: int | None = None

    @property
    def _closed(self) -> bool:
        return self._best is not None and self._objective <= self._proof[0].ticks

    def try_families(self) -> None:
        """Take every published family that applies and fits.

        Small ones are built whatever the time limit, so that none is ever better than the answer.
        """
        for name in families.names():
            if monotonic() > self._deadline and not self._quick:
                return
            try:
                schedule = families.build(name, self._problem)
            except ValueError:
                continue  # The family does not apply; `bubbleproof compare` tells why.
            if not within_limits(self._problem, schedule.rows):
                continue
            objective = self._offer(schedule.rows, f"family {name}")
            if self._family_objective is None or objective < self._family_objective:
                self._family, self._family_objective = name, objective

    @property
    def _quick(self) -> bool:
        return self._problem.stages * self._problem.total_microbatches * 3 <= _QUICK_BLOCKS

    def try_lists(self) -> None:
        """Take list schedules until the bound is met or their share of the time is spent."""
        now = monotonic()
        until = now + _LISTING_SHARE * (self._deadline - now)
        for policy in policies(self._problem):
            if self._closed or (monotonic() > until and self._best is not None):
                return
            schedule = list_schedule(self._problem, policy, until)
            if schedule is not None and within_limits(self._problem, schedule.rows):
                self._offer(schedule.rows, schedule.source)

    def try_exact(self, workers: int, seed: int) -> None:
        """Search all schedules with CP-SAT, from the best so far."""
        best = self._best or self._fallback()
        self._retime()
        if self._closed or monotonic() >= self._deadline:
            return
        from bubbleproof.solver.model import Model, size

        if size(self._problem) > _MODEL_VARIABLES:
            return
        try:
            model = Model(self._problem, best.rows)
        except OverflowError:
            return  # The bound and the schedule found stand as they are.
        found: Queue[tuple[tuple[Row, ...], Starts | None]] = Queue()
        run = _Exact(
            model,
            time_limit_s=max(0.01, self._deadline - monotonic()),
            workers=workers,
            seed=seed,
            found=found,
        )
        run.start()
        try:
            while run.is_alive() and monotonic() < self._deadline + _GRACE_S:
                self._take(found, wait_s=0.05)
        except KeyboardInterrupt:
            model.stop()
            run.join(_GRACE_S)
            self._take(found)
            raise
        model.stop()
        run.join(_GRACE_S)
        self._take(found)
        self._retime()
        if run.error is not None:
            raise run.error
        if run.bound is not None and run.bound > self._proof[0].ticks:
            time = self._problem.time(run.bound)
            text = f"CP-SAT searched all orders and found none below {time} (the solver's word)"
            self._proof = (Bound("cp-sat", run.bound, text), *self._proof)

    def _take(
        self, found: "Queue[tuple[tuple[Row, ...], Starts | None]]", *, wait_s: float = 0.0
    ) -> None:
        """Offer the schedules that the exact search has found since last time."""
        try:
            rows, starts = found.get(timeout=wait_s) if wait_s else found.get_nowait()
            while True:
                self._offer(rows, "CP-SAT", starts)
                rows, starts = found.get_nowait()
        except Empty:
            return

    def _offer(self, rows: tuple[Row, ...], source: str, starts: Starts | None = None) -> int:
        """Keep an order if it is the best so far, and return its objective."""
        timeline = simulate(Schedule(self._problem, rows, starts, source=source))
        objective = timeline.objective_ticks
        if self._best is None or objective < self._objective:
            self._best = replace(timeline.schedule, starts=timeline.starts)
            self._objective = objective
            if self._on_progress is not None:
                seconds = monotonic() - self._began
                self._on_progress(Progress(schedule=self._finished(), seconds=seconds))
        return objective

    def _retime(self) -> None:
        """For the span, let devices of the best schedule start later where that helps."""
        if self._best is not None and self._problem.objective is Objective.SPAN:
            starts = least_span_starts(
                self._problem, self._best.rows, bound=self._proof[0].ticks, deadline=self._deadline
            )
            self._offer(self._best.rows, self._best.source, starts)

    def _fallback(self) -> Schedule:
        schedule = one_by_one(self._problem)
        self._offer(schedule.rows, schedule.source)
        return self._finished()

    def _finished(self) -> Schedule:
        if self._best is None:
            raise AssertionError("no schedule yet")
        bound = self._proof[0].ticks
        return replace(
            self._best,
            objective=self._objective,
            bound=bound,
            status=Status.OPTIMAL if self._objective == bound else Status.FEASIBLE,
            proof=self._proof,
        )

    def result(self, *, interrupted: bool) -> Result:
        """Return what is known now."""
        if self._best is None:
            self._fallback()
        return Result(
            schedule=self._finished(),
            seconds=monotonic() - self._began,
            interrupted=interrupted,
            family=self._family,
            family_objective_ticks=self._family_objective,
        )
