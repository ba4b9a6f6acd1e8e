"""The search with its work counted in place of its time: the same answer on every run.

Each step gets an amount of work that follows from the time limit alone, about what one core does
in it. A slower machine takes longer, up to three times the limit; where it is stopped then, the
result says that it was cut, and only then another run may differ.

Simplifications: one thread; no bounds from linear programs.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from time import monotonic

from bubbleproof.schedules import families
from bubbleproof.schedules.ops import Row, has_pairs
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Bound, Starts
from bubbleproof.solver.background import Background
from bubbleproof.solver.deciding import decidable, decided
from bubbleproof.solver.incumbent import Incumbent
from bubbleproof.solver.limits import within_limits
from bubbleproof.solver.relaxation import device_bound
from bubbleproof.solver.result import Progress, Result
from bubbleproof.solver.scale import may_pair, model_size

SLACK = 3
"""A run is stopped after so many times its limit."""

_ROUNDS_PER_S = 1.0
"""Rounds of annealing for each second, of each search."""

_EXACT_SHARE = 0.4
"""CP-SAT's deterministic seconds for each second of the limit; about as long on one core."""

_STATES_PER_S = 6_000
"""From how many states one question is decided at most, for each second of the limit."""

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
    found = Incumbent(problem, proof, began=monotonic(), on_progress=on_progress)
    run = _Run(problem, found, time_limit_s)
    interrupted = False
    try:
        run.try_families()
        run.try_bounds()
        run.try_rounds(seed)
        run.try_exact(seed)
        run.retime()
    except KeyboardInterrupt:
        interrupted = True
    return run.result(interrupted=interrupted)


class _Run:
    """The work on the best so far, and whether some was left undone."""

    def __init__(self, problem: Problem, found: Incumbent, limit_s: float) -> None:
        self._problem, self._found, self._limit_s = problem, found, limit_s
        self._end = monotonic() + SLACK * limit_s
        self._cut = False

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
            self._found.offer_family(name)

    def try_bounds(self) -> None:
        """Look at single devices, then search among states, where there are not too many."""
        problem, found = self._problem, self._found
        found.schedule()  # There is something to improve on, if only one by one.
        if found.optimal or not decidable(problem):
            return
        for device in range(problem.devices):
            bound = device_bound(problem, device, found.objective, self._end)
            if bound is not None:
                found.prove(bound)
        for news in decided(problem, found, self._late, most=int(_STATES_PER_S * self._limit_s)):
            if isinstance(news, Bound):
                found.prove(news)
            else:
                rows, starts, source = news
                found.offer(rows, source, starts)

    def try_rounds(self, seed: int) -> None:
        """Fill the families' gaps; anneal rules of list scheduling, then orders; no pairs."""
        small = model_size(self._problem) <= _MOST_MODEL
        if self._found.optimal or (small and may_pair(self._problem)):
            return
        from bubbleproof.solver.fill import filled_families, refilled
        from bubbleproof.solver.reorder import reordered
        from bubbleproof.solver.tune import tuned

        problem, target = self._problem, self._found.bound
        number = 1 + int(_ROUNDS_PER_S * self._limit_s)
        if 3 * problem.stages * problem.total_microbatches <= _MOST_FAMILY_OPS:
            self._take(filled_families(problem), "family with W's in the gaps")
        rounds = tuned(problem, workers=1, seed=seed, target=target)
        self._take(islice(rounds, number), "tuned list scheduling")
        best = self._found.schedule()
        if has_pairs(best.rows):
            return
        rounds = refilled(problem, best.rows, workers=1, seed=seed, target=target)
        self._take(islice(rounds, number), "search among orders with W's in the gaps")
        best = self._found.schedule()
        rounds = reordered(problem, best.rows, workers=1, seed=seed, target=target)
        self._take(islice(rounds, number), "search among orders")

    def _take(self, rounds: Iterator[tuple[Row, ...]], source: str) -> None:
        while not self._found.optimal and not self._late():
            rows = next(rounds, None)
            if rows is None:
                return
            if rows and within_limits(self._problem, rows):
                self._found.offer(rows, source)

    def try_exact(self, seed: int) -> None:
        """Search all schedules with CP-SAT, one search and a counted amount of it."""
        if self._found.optimal or self._late() or model_size(self._problem) > _MOST_MODEL:
            return
        from bubbleproof.solver.model import Model

        try:
            model = Model(self._problem, self._found.schedule().rows)
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

        background = Background(search)
        background.start()
        try:
            background.join()
        finally:
            model.stop()
            background.join()
            for rows, starts in found:
                self._found.offer(rows, "CP-SAT", starts)
        background.require_no_error()
        if monotonic() > self._end:
            self._cut = True
        for bound in proven:
            self._found.prove_by_search(bound)

    def retime(self) -> None:
        """For the span, let devices start later where that helps."""
        self._found.retime(self._end)

    def result(self, *, interrupted: bool) -> Result:
        """Return what is known now."""
        return self._found.result(interrupted=interrupted, cut=self._cut)
