"""Solve a problem: published families, list scheduling, then the exact model, in one time limit."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from queue import Empty, Queue
from threading import Event
from time import monotonic
from typing import TypeAlias

from bubbleproof.schedules import families
from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import Pair, Row
from bubbleproof.schedules.periodic import unroll
from bubbleproof.schedules.periodic_search import periodic_of
from bubbleproof.schedules.problem import Problem, require_problem
from bubbleproof.schedules.schedule import Bound, Schedule, Starts
from bubbleproof.schedules.simulate import DeadlockError
from bubbleproof.solver.background import Background
from bubbleproof.solver.bounds import bounds
from bubbleproof.solver.construct import list_schedule, policies
from bubbleproof.solver.fluid import fluid_bounds
from bubbleproof.solver.incumbent import Incumbent
from bubbleproof.solver.limits import shortages, within_limits
from bubbleproof.solver.linear import Stop
from bubbleproof.solver.long import WRITING_S, is_long, solve_long
from bubbleproof.solver.mirror import Mirror, is_own_image, mirror_of
from bubbleproof.solver.pairs import variants
from bubbleproof.solver.relaxation import device_bound
from bubbleproof.solver.reproducible import solve_reproducibly
from bubbleproof.solver.result import Form, NoScheduleError, Progress, Result
from bubbleproof.solver.scale import may_pair, model_size
from bubbleproof.solver.times import LeastTimes

MOST_OPS = 4_000_000
"""Larger problems are refused: one look at all their ops would outlast most time limits."""

MOST_WORKERS = 8
"""Threads used where none are asked for: one per core, at most this many."""

_MODEL_VARIABLES = 20_000
_LISTING_SHARE = 0.2
_TUNING_SHARE = 0.25
_TUNING_SHARE_ALONE = 0.6
_TUNING_LEAST_S = 0.5
_DRAINING_SHARE = 0.7
_DRAINING_WAYS = 1.2
_DRAINING_REACH = 8
_MOST_DRAINING = 10_000
_MIRRORED_SHARE = 0.6
_PAIRING_SHARE = 0.6
_BOUNDING_SHARE = 0.15
_COMPILING_SHARE = 0.6
_FORM_SHARE = 0.2
_SHORT_SHARE = 0.4
_SOLVING_SHARE = 0.7
_QUICK_BLOCKS = 20_000
_GRACE_S = 1.0
_SMALL_MODEL = 100
_SMALL_SHARE = 0.3
_FIRST_S = 1.5
_FAMILY_S = 5e-6
"""Seconds that each op of a family is expected to take before one was built."""


def solve(
    problem: Problem,
    *,
    time_limit_s: float = 60.0,
    workers: int | None = None,
    seed: int = 0,
    start: Schedule | None = None,
    enough: int | None = None,
    deterministic: bool = False,
    asymmetric: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Find the best schedule for a problem and prove how far it can be from the best of all.

    There is always a schedule in the result, and it is never worse than a published family that
    fits the problem's limits (beyond 20,000 ops: that could be built in time). Ctrl-C ends the
    search early with the best so far.

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
    start
        A valid schedule of the same problem, but for its limits, to be improved on.
    enough
        An objective in ticks with which the search may end.
    deterministic
        Whether work is counted in place of time, so that the same problem, limit and seed give the
        same schedule on every run: see ``reproducible``. One thread; ``start`` and ``enough`` are
        not used.
    asymmetric
        Whether to search among all orders with pairs from the start where a problem is its own
        mirror image. Else half of each order is searched first. Bounds hold for all orders.
    on_progress
        Called with each better schedule.

    Raises
    ------
    NoScheduleError
        If no schedule keeps the memory limits, with the device and the least limit that would do.
    ValueError
        If the time limit or the number of workers makes no sense, or ``start`` is for another
        problem or above the limits.
    """
    require_problem(problem)
    if start is not None:
        _require_start(problem, start)
    if not time_limit_s >= 0:
        raise ValueError(f"time_limit_s: {time_limit_s} is no time; give seconds, as 60")
    if workers is not None and workers < 1:
        raise ValueError(f"workers: {workers} is too few; at least 1 is needed")
    ops = 3 * problem.stages * problem.total_microbatches
    if ops > MOST_OPS:
        raise ValueError(
            f"microbatches: {problem.total_microbatches} on {problem.stages} stages is about {ops} "
            f"ops; up to {MOST_OPS} can be solved, and more microbatches only repeat the middle"
        )
    began = monotonic()
    _refuse_infeasible(problem)
    proof = _strongest_of_each(bounds(problem))
    threads = workers or min(MOST_WORKERS, os.cpu_count() or 1)
    if start is None and is_long(problem):
        return solve_long(
            problem,
            proof,
            solve,
            time_limit_s=time_limit_s,
            workers=threads,
            seed=seed,
            deterministic=deterministic,
            on_progress=on_progress,
        )
    if deterministic:
        return solve_reproducibly(
            problem, proof, time_limit_s=time_limit_s, seed=seed, on_progress=on_progress
        )
    writing_s = min(0.5 * time_limit_s, WRITING_S * ops)
    deadline = began + time_limit_s - writing_s
    found = Incumbent(problem, proof, began=began, on_progress=on_progress)
    search = _Search(problem, found, deadline, enough)
    try:
        if start is not None:
            found.offer(start.rows, start.source, start.starts)
        search.try_families()
        search.try_forms(threads, seed)
        search.try_lists()
        search.try_small(threads, seed)
        search.try_pairing()
        search.try_device_bounds()
        search.start_fluid_bounds()
        search.try_draining(threads, seed, asymmetric=asymmetric)
        if not asymmetric:
            search.try_mirrored(threads, seed)
        search.try_paired(threads, seed, asymmetric=asymmetric)
        search.try_tuned(threads, seed)
        search.try_exact(threads, seed)
        search.wait_for_bounds()
    except KeyboardInterrupt:
        return search.result(interrupted=True)
    return search.result(interrupted=False)


def _refuse_infeasible(problem: Problem) -> None:
    missing = shortages(problem)
    if not missing:
        return
    no_limits = replace(problem.memory, limit=(None,) * problem.devices)
    bound = bounds(replace(problem, memory=no_limits))[0]
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


def _require_start(problem: Problem, start: Schedule) -> None:
    memory = replace(start.problem.memory, limit=problem.memory.limit)
    if memory != problem.memory or replace(problem, memory=start.problem.memory) != start.problem:
        raise ValueError("start: is for another problem; only the memory limits may differ")
    if not within_limits(problem, start.rows):
        raise ValueError("start: is above memory.limit; give a schedule that keeps it")


def _strongest_of_each(found: tuple[Bound, ...]) -> tuple[Bound, ...]:
    strongest: dict[str, Bound] = {}
    for bound in found:
        strongest.setdefault(bound.name, bound)
    return tuple(strongest.values())


Found: TypeAlias = tuple[tuple[Row, ...], Starts | None, str]
"""An order, its starts where they are known, and how it was made."""


class _Search:
    """The ways to improve on the best schedule and bound so far."""

    def __init__(
        self, problem: Problem, found: Incumbent, deadline: float, enough: int | None
    ) -> None:
        self._problem, self._found, self._deadline = problem, found, deadline
        self._enough = 0 if enough is None else enough
        self._forms: tuple[Form, ...] = ()
        self._bounds: Queue[Bound] = Queue()
        self._bounding: Background | None = None
        self._stop = Stop()

    @property
    def _closed(self) -> bool:
        found = self._found
        return found.best is not None and found.objective <= max(found.bound, self._enough)

    def try_families(self) -> None:
        """Take every published family that applies and fits, those that hold least memory first.

        Small ones are built whatever the time limit, so that none is ever better than the answer.
        """
        slowest_s = _FAMILY_S * 3 * self._problem.stages * self._problem.total_microbatches
        for name in reversed(families.names()):
            began = monotonic()
            spare_s = self._deadline - began + (_FIRST_S if self._found.best is None else 0.0)
            if not self._quick and slowest_s > spare_s:
                return
            self._found.offer_family(name)
            slowest_s = max(slowest_s, monotonic() - began)

    @property
    def _quick(self) -> bool:
        return self._problem.stages * self._problem.total_microbatches * 3 <= _QUICK_BLOCKS

    def try_forms(self, workers: int, seed: int) -> None:
        """Where the backward is free, solve with all fused and with all split first.

        Each is a schedule to improve on by mixing them, and each has a proof of its own.
        """
        if self._problem.backward is not Backward.FREE or self._closed:
            return
        if may_pair(self._problem):
            return  # A pair's backward is fused, while others gain from the split.
        for backward in (Backward.FUSED, Backward.SPLIT):
            left = self._deadline - monotonic()
            if left < _TUNING_LEAST_S:
                return
            try:
                answer = solve(
                    replace(self._problem, backward=backward),
                    time_limit_s=_FORM_SHARE * left,
                    workers=workers,
                    seed=seed,
                )
            except NoScheduleError:
                continue  # This form alone does not fit; mixed with the other it may.
            form = Form(backward, answer.objective_ticks, answer.bound_ticks)
            self._forms = (*self._forms, form)
            source = f"{answer.source}, all backwards {backward.value}"
            self._found.offer(answer.schedule.rows, source, answer.schedule.starts)
            if answer.interrupted:
                raise KeyboardInterrupt

    def try_lists(self) -> None:
        """Take list schedules until the bound is met or their share of the time is spent.

        Large problems are left to compiled list scheduling where there is time for it.
        """
        now = monotonic()
        if not self._quick and self._deadline - now >= _TUNING_LEAST_S:
            return
        until = now + _LISTING_SHARE * (self._deadline - now)
        for policy in policies(self._problem):
            if self._closed or (monotonic() > until and self._found.best is not None):
                return
            schedule = list_schedule(self._problem, policy, until)
            if schedule is not None and within_limits(self._problem, schedule.rows):
                self._found.offer(schedule.rows, schedule.source)

    def try_pairing(self) -> None:
        """Where pairs may help, pair what stands together in the best order, and let W's wait."""
        if self._closed or not may_pair(self._problem) or not self._quick:
            return
        best = self._found.schedule()
        for rows in variants(self._problem, best.rows):
            if monotonic() > self._deadline:
                return
            self._offer_if_it_runs(rows, f"{best.source}, paired")

    def _offer_if_it_runs(self, rows: tuple[Row, ...], source: str) -> None:
        if within_limits(self._problem, rows):
            try:
                self._found.offer(rows, source)
            except DeadlockError:
                return  # What was paired led to what its partner waits for.

    def try_draining(self, workers: int, seed: int, *, asymmetric: bool) -> None:
        """Search with CP-SAT how pairs come to an end: the last ops, with all before as they are.

        That is as long for any number of microbatches, a microbatch's way forth and back and a
        little more.
        """
        problem, left = self._problem, self._deadline - monotonic()
        ops = 3 * problem.stages * max(problem.microbatches)
        if self._closed or not may_pair(problem) or left < _TUNING_LEAST_S or ops > _MOST_DRAINING:
            return
        best, mirror = self._found.schedule(), None if asymmetric else mirror_of(problem)
        if mirror is not None and not is_own_image(problem, mirror, best.rows):
            mirror = None
        times = LeastTimes(problem)
        way = max(times.turnaround(chain[0]) for chain in problem.placement.chains)
        self._search_exactly(
            best.rows,
            mirror,
            workers,
            seed,
            monotonic() + _DRAINING_SHARE * left,
            frozen=int(self._found.objective - _DRAINING_WAYS * way),
            reach=_DRAINING_REACH if self._too_large else None,
        )

    def try_mirrored(self, workers: int, seed: int) -> None:
        """Search with CP-SAT among the orders that are their own image, where there are some."""
        mirror, left = mirror_of(self._problem), self._deadline - monotonic()
        if self._closed or left < _TUNING_LEAST_S or mirror is None or not may_pair(self._problem):
            return
        rows = self._found.schedule().rows
        if not self._too_large and is_own_image(self._problem, mirror, rows):
            until = monotonic() + _MIRRORED_SHARE * left
            self._search_exactly(rows, mirror, workers, seed, until)

    def try_paired(self, workers: int, seed: int, *, asymmetric: bool) -> None:
        """Search among orders with pairs, near the best so far."""
        left = self._deadline - monotonic()
        if self._closed or left < _TUNING_LEAST_S or not may_pair(self._problem):
            return
        from bubbleproof.solver.pair_search import paired_orders
        from bubbleproof.solver.tune import tuned

        problem, target = self._problem, self._found.bound
        until = monotonic() + (1.0 if self._too_large else _PAIRING_SHARE) * left
        if not any(isinstance(block, Pair) for row in self._found.schedule().rows for block in row):
            # No family makes pairs here: rules of list scheduling may.
            rounds = tuned(problem, workers=workers, seed=seed, target=target)
            tuning_s = _TUNING_SHARE * (until - monotonic())
            if not self._take_rounds(rounds, "tuned list scheduling", monotonic() + tuning_s):
                return
        rounds = paired_orders(
            problem,
            self._found.schedule().rows,
            workers=workers,
            seed=seed,
            target=target,
            asymmetric=asymmetric,
        )
        self._take_rounds(rounds, "search among orders with pairs", until)

    def try_device_bounds(self) -> None:
        """Bound the objective by the best order of single devices."""
        if self._closed or self._found.best is None:
            return
        now = monotonic()
        until = now + _BOUNDING_SHARE * (self._deadline - now)
        for device in range(self._problem.devices):
            bound = device_bound(self._problem, device, self._found.objective, until)
            if bound is not None:
                self._found.prove(bound)
            if monotonic() > until:
                return

    def start_fluid_bounds(self) -> None:
        """Bound the objective by several devices together, beside the searches that follow."""
        left = self._deadline - monotonic()
        if self._closed or self._found.best is None or left < _TUNING_LEAST_S:
            return
        best, known = self._found.objective, self._found.bound

        def search() -> None:
            for bound in fluid_bounds(self._problem, best, known, self._deadline, self._stop):
                self._bounds.put(bound)

        self._bounding = Background(search)
        self._bounding.start()

    def try_tuned(self, workers: int, seed: int) -> None:
        """Search for better rules of list scheduling, then among orders near the best.

        All the time is theirs where the exact model is too large, else a share. Where pairs may
        help, ``try_paired`` is for that, but for large problems without a schedule with pairs.
        """
        left = self._deadline - monotonic()
        if self._closed or left < _TUNING_LEAST_S:
            return
        if may_pair(self._problem) and not self._too_large:
            return
        from bubbleproof.solver.reorder import reordered
        from bubbleproof.solver.tune import tuned

        problem, target = self._problem, self._found.bound
        rounds = tuned(problem, workers=workers, seed=seed, target=target)
        # The first round may have to compile: that is not to eat into the share, nor to take all.
        compiled = monotonic() + _COMPILING_SHARE * left
        if not self._take_rounds(islice(rounds, 1), "tuned list scheduling", compiled):
            return
        left = self._deadline - monotonic()
        share = _TUNING_SHARE_ALONE if self._too_large else _TUNING_SHARE
        if not self._take_rounds(rounds, "tuned list scheduling", monotonic() + share * left):
            return
        self._try_short(workers, seed, monotonic() + _SHORT_SHARE * (self._deadline - monotonic()))
        best = self._found.schedule()
        if self._closed or any(isinstance(block, Pair) for row in best.rows for block in row):
            return
        until = self._deadline if self._too_large else monotonic() + share * left
        rounds = reordered(problem, best.rows, workers=workers, seed=seed, target=target)
        self._take_rounds(rounds, "search among orders", until)

    def _try_short(self, workers: int, seed: int, until: float) -> None:
        """Solve the problem with fewer microbatches and repeat the middle of the answer."""
        problem = self._problem
        short = 2 * problem.devices + problem.total_microbatches % 2
        if self._closed or len(problem.microbatches) > 1 or problem.total_microbatches <= short:
            return

        def rounds() -> Iterator[tuple[Row, ...]]:
            answer = solve(
                replace(problem, microbatches=(short,)),
                time_limit_s=max(0.0, _SOLVING_SHARE * (until - monotonic())),
                workers=workers,
                seed=seed,
            )
            periodic = periodic_of(answer.schedule, most_step=2)
            if periodic is not None:
                yield unroll(periodic, problem.total_microbatches).rows

        self._take_rounds(rounds(), "the repeated middle of a shorter schedule", until)

    def _take_rounds(self, rounds: Iterable[tuple[Row, ...]], source: str, until: float) -> bool:
        """Take the orders of a search in rounds until a time; False if it does not stop then."""
        found: Queue[Found] = Queue()
        stopped = Event()

        def search() -> None:
            for rows in rounds:
                if rows:
                    found.put((rows, None, source))
                if stopped.is_set():
                    return

        return self._run(search, found, stopped.set, until)

    def try_small(self, workers: int, seed: int) -> None:
        """Search all schedules with CP-SAT at once where there are few."""
        if model_size(self._problem) <= _SMALL_MODEL:
            now = monotonic()
            self.try_exact(workers, seed, until=now + _SMALL_SHARE * (self._deadline - now))

    def try_exact(self, workers: int, seed: int, *, until: float | None = None) -> None:
        """Search all schedules with CP-SAT, from the best so far."""
        best = self._found.schedule()
        self._retime()
        if self._closed or self._too_large or monotonic() >= self._deadline:
            return
        proven = self._search_exactly(best.rows, None, workers, seed, until or self._deadline)
        self._retime()
        for bound in proven:
            self._found.prove_by_search(bound)

    def _search_exactly(
        self,
        rows: tuple[Row, ...],
        mirror: Mirror | None,
        workers: int,
        seed: int,
        until: float,
        *,
        frozen: int = 0,
        reach: int | None = None,
    ) -> list[int]:
        """Search with CP-SAT until a time, and return what is proven of what was searched."""
        from bubbleproof.solver.model import Model

        try:
            model = Model(
                self._problem,
                rows,
                least=self._found.bound,
                mirror=mirror,
                frozen=frozen,
                reach=reach,
            )
        except OverflowError:
            return []  # The bound and the schedule found stand as they are.
        found: Queue[Found] = Queue()
        proven: list[int] = []
        source = "CP-SAT" if mirror is None else "CP-SAT among mirror-symmetric orders"

        def search() -> None:
            bound = model.solve(
                time_limit_s=max(0.01, until - monotonic()),
                workers=workers,
                seed=seed,
                on_rows=lambda rows, starts: found.put((rows, starts, source)),
            )
            proven.append(bound)

        self._run(search, found, model.stop, until + _GRACE_S)
        return proven

    def wait_for_bounds(self) -> None:
        """Where nothing is left to search, wait for what bounds may still be found."""
        bounding = self._bounding
        while bounding is not None and bounding.is_alive() and not self._closed:
            if monotonic() > self._deadline:
                return
            bounding.join(0.05)
            self._take_bounds()

    @property
    def _too_large(self) -> bool:
        return model_size(self._problem) > _MODEL_VARIABLES

    def _run(
        self,
        search: Callable[[], None],
        found: "Queue[Found]",
        stop: Callable[[], None],
        until: float,
    ) -> bool:
        """Run a search in the background until it ends, the bound is met or the time is over.

        Return False where it goes on all the same.
        """
        background = Background(search)
        background.start()
        try:
            while background.is_alive() and monotonic() < until and not self._closed:
                self._take(found, wait_s=0.05)
        finally:
            stop()
            background.join(_GRACE_S)
            self._take(found)
        background.require_no_error()
        return not background.is_alive()

    def _take(self, found: "Queue[Found]", *, wait_s: float = 0.0) -> None:
        """Take the bounds and offer the schedules that were found since last time."""
        self._take_bounds()
        try:
            rows, starts, source = found.get(timeout=wait_s) if wait_s else found.get_nowait()
            while True:
                if within_limits(self._problem, rows):
                    self._found.offer(rows, source, starts)
                rows, starts, source = found.get_nowait()
        except Empty:
            return

    def _take_bounds(self) -> None:
        """Take the bounds that the search for them has found since last time."""
        if self._bounding is not None:
            self._bounding.require_no_error()
        while not self._bounds.empty():
            self._found.prove(self._bounds.get())

    def _retime(self) -> None:
        """Retime the best schedule, unless it is large and the time is over."""
        if self._quick or monotonic() <= self._deadline:
            self._found.retime(self._deadline)

    def result(self, *, interrupted: bool) -> Result:
        """Return what is known now, and end what still runs."""
        if self._bounding is not None:
            self._stop.ask()
            self._bounding.join(_GRACE_S)
            self._take_bounds()
        return self._found.result(interrupted=interrupted, forms=self._forms)
