"""The search with its work counted in place of its time: the same answer on every run.

Each step gets an amount of work that follows from the time limit alone, about what one core does
in it. A slower machine takes longer, up to three times the limit; where it is stopped then, the
result says that it was cut, and only then another run may differ.

Simplifications: one thread; no bounds from searches over single devices.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from threading import Thread
from time import monotonic

from bubbleproof.schedules import families
from bubbleproof.schedules.ops import Pair, Row
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Bound, Schedule, Starts, Status
from bubbleproof.schedules.simulate import earliest_starts, simulate
from bubbleproof.solver.construct import one_by_one
from bubbleproof.solver.limits import within_limits
from bubbleproof.solver.result import Progress, Result
from bubbleproof.solver.retime import least_span_starts, objective_of
from bubbleproof.solver.scale import may_pair, model_size

SLACK = 3
"""A run is stopped after so many times its limit."""

_ROUNDS_PER_S = 1.0
"""Rounds of annealing for each second, of either search."""

_EXACT_SHARE = 0.4
"""CP-SAT's deterministic seconds for each second of the limit; about as long on one core."""

_MOST_FAMILY_OPS = 1_000_000
_MOST_MODEL = 20_000


def solve_reproducibly(
    problem: Problem,
    proof: tuple[Bound, ...],
    *,
    time_limit_s: float,
    seed: int,
    on_progress: Callable[[Progress], None] | None,
) -> Result:
    """Return the best schedule of a counted amount of work.

    Parameters
    ----------
    problem
        A feasible problem.
    proof
        Bounds on its objective, the strongest first.
    time_limit_s
        What the work is measured by.
    seed, on_progress
        As for ``portfolio.solve``.
    """
    run = _Run(problem, proof, time_limit_s, on_progress)
    interrupted = False
    try:
        run.try_families()
        run.try_rounds(seed)
        run.try_exact(seed)
        run.retime()
    except KeyboardInterrupt:
        interrupted = True
    return run.result(interrupted=interrupted)


class _Run:
    """The best so far, and whether work was left undone."""

    def __init__(
        self,
        problem: Problem,
        proof: tuple[Bound, ...],
        limit_s: float,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._problem, self._proof, self._limit_s = problem, proof, limit_s
        self._on_progress = on_progress
        self._began = monotonic()
        self._end = self._began + SLACK * limit_s
        self._best = replace(one_by_one(problem), objective=None)
        self._objective = -1
        self._cut = False
        self._family: str | None = None
        self._family_objective: int | None = None
        self._offer(self._best.rows, self._best.source)

    @property
    def _closed(self) -> bool:
        return self._objective <= self._proof[0].ticks

    def _late(self) -> bool:
        if monotonic() > self._end:
            self._cut = True
        return self._cut

    def try_families(self) -> None:
        """Take every published family that applies and fits."""
        if 3 * self._problem.stages * self._problem.total_microbatches > _MOST_FAMILY_OPS:
            return
        for name in reversed(families.names()):
            if self._late():
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

    def try_rounds(self, seed: int) -> None:
        """Anneal the rules of list scheduling, then the order itself; they know no pairs."""
        small = model_size(self._problem) <= _MOST_MODEL
        if self._closed or (small and may_pair(self._problem)):
            return
        from bubbleproof.solver.reorder import reordered
        from bubbleproof.solver.tune import tuned

        rounds = 1 + int(_ROUNDS_PER_S * self._limit_s)
        target = self._proof[0].ticks
        found = tuned(self._problem, workers=1, seed=seed, target=target)
        self._take(islice(found, rounds), "tuned list scheduling")
        if any(isinstance(block, Pair) for row in self._best.rows for block in row):
            return
        found = reordered(self._problem, self._best.rows, workers=1, seed=seed, target=target)
        self._take(islice(found, rounds), "search among orders")

    def _take(self, rounds: Iterator[tuple[Row, ...]], source: str) -> None:
        while not self._closed and not self._late():
            rows = next(rounds, None)
            if rows is None:
                return
            if rows and within_limits(self._problem, rows):
                self._offer(rows, source)

    def try_exact(self, seed: int) -> None:
        """Search all schedules with CP-SAT, one search and a counted amount of it."""
        if self._closed or self._late() or model_size(self._problem) > _MOST_MODEL:
            return
        from bubbleproof.solver.model import Model

        try:
            model = Model(self._problem, self._best.rows)
        except OverflowError:
            return  # The bound and the schedule found stand as they are.
        found: list[tuple[tuple[Row, ...], Starts]] = []
        proven: list[int] = []
        amount = _EXACT_SHARE * self._limit_s

        def search() -> None:
            proven.append(
                model.solve(
                    time_limit_s=max(0.01, self._end - monotonic()),
                    deterministic_s=amount,
                    workers=1,
                    seed=seed,
                    on_rows=lambda rows, starts: found.append((rows, starts)),
                )
            )

        thread = Thread(target=search, daemon=True)
        thread.start()
        try:
            thread.join()
        finally:
            model.stop()
            thread.join()
            for rows, starts in found:
                self._offer(rows, "CP-SAT", starts)
        if monotonic() > self._end:
            self._cut = True
        if proven and proven[0] > self._proof[0].ticks:
            time = self._problem.time(proven[0])
            text = f"CP-SAT searched all orders and found none below {time} (the solver's word)"
            self._proof = (Bound("cp-sat", proven[0], text), *self._proof)

    def retime(self) -> None:
        """For the span, let devices start later where that helps."""
        if self._problem.objective is Objective.SPAN and not self._closed:
            bound = self._proof[0].ticks
            rows = self._best.rows
            starts = least_span_starts(self._problem, rows, bound=bound, deadline=self._end)
            self._offer(rows, self._best.source, starts)

    def _offer(self, rows: tuple[Row, ...], source: str, starts: Starts | None = None) -> int:
        if starts is None:
            starts = earliest_starts(self._problem, rows)
        objective = objective_of(self._problem, rows, starts)
        if self._objective < 0 or objective < self._objective:
            self._best = Schedule(self._problem, rows, starts, source=source)
            self._objective = objective
            if self._on_progress is not None:
                self._on_progress(Progress(self._finished(), monotonic() - self._began))
        return objective

    def _finished(self) -> Schedule:
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
        return Result(
            timeline=simulate(self._finished()),
            seconds=monotonic() - self._began,
            interrupted=interrupted,
            cut=self._cut,
            family=self._family,
            family_objective_ticks=self._family_objective,
        )
