"""A search for the best schedule in progress: what is known, and what runs in the background."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from queue import Empty, Queue
from threading import Event
from time import monotonic
from typing import TypeAlias

from bubbleproof.schedules.ops import Row
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Bound, Starts
from bubbleproof.solver.background import Background, Stop
from bubbleproof.solver.incumbent import Incumbent
from bubbleproof.solver.limits import within_limits
from bubbleproof.solver.result import Form, Result, Solve
from bubbleproof.solver.scale import model_size

LEAST_S = 0.5
"""With less time left, no search begins."""

GRACE_S = 1.0
"""What a search may take to end after it was told to."""

_MODEL_OPS = 3_000
_MODEL_VARIABLES = 20_000
_QUICK_BLOCKS = 20_000

Found: TypeAlias = tuple[tuple[Row, ...], Starts | None, str]
"""An order, its starts where they are known, and how it was made."""


@dataclass(slots=True, kw_only=True)
class Search:
    """The best schedule and bound so far, the time that is left, and how to run a search.

    Attributes
    ----------
    problem
        What is solved.
    found
        The best schedule and bound so far.
    deadline
        When the search is over, of ``monotonic``.
    workers
        Search threads.
    seed
        For what is random.
    enough
        An objective in ticks with which the search may end.
    asymmetric
        Whether to search among all orders from the start where the problem is its own image.
    solver
        What solves problems that are part of this one.
    forms
        What is known of the problem with all backwards fused, and with all split.
    """

    problem: Problem
    found: Incumbent
    deadline: float
    workers: int
    seed: int
    enough: int
    asymmetric: bool
    solver: Solve
    forms: tuple[Form, ...] = ()
    _beside: Queue[Bound | Found] = field(init=False, default_factory=Queue[Bound | Found])
    _bounding: list[Background] = field(init=False, default_factory=list[Background])
    _stop: Stop = field(init=False, default_factory=Stop)

    @property
    def closed(self) -> bool:
        """Whether the best schedule is proven, or as good as asked for."""
        found = self.found
        return found.best is not None and found.objective <= max(found.bound, self.enough)

    @property
    def quick(self) -> bool:
        """Whether one look at all ops takes no time to speak of."""
        return self.problem.stages * self.problem.total_microbatches * 3 <= _QUICK_BLOCKS

    @property
    def too_large(self) -> bool:
        """Whether the exact model has too many variables, or more ops than CP-SAT gains with."""
        ops = 3 * sum(
            len(self.problem.microbatches_of_stage(stage)) for stage in range(self.problem.stages)
        )
        return ops > _MODEL_OPS or model_size(self.problem) > _MODEL_VARIABLES

    def solve(self, problem: Problem, time_limit_s: float) -> Result:
        """Solve a problem that is part of this one."""
        return self.solver(problem, time_limit_s=time_limit_s, workers=self.workers, seed=self.seed)

    def run(
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
            while background.is_alive() and monotonic() < until and not self.closed:
                self._take(found, wait_s=0.05)
        finally:
            stop()
            background.join(GRACE_S)
            self._take(found)
        background.require_no_error()
        return not background.is_alive()

    def _take(self, found: "Queue[Found]", *, wait_s: float = 0.0) -> None:
        """Take the bounds and offer the schedules that were found since last time."""
        self._take_bounds()
        try:
            rows, starts, source = found.get(timeout=wait_s) if wait_s else found.get_nowait()
            while True:
                if within_limits(self.problem, rows):
                    self.found.offer(rows, source, starts)
                rows, starts, source = found.get_nowait()
        except Empty:
            return

    def _take_bounds(self) -> None:
        """Take the bounds, and schedules, that the search for bounds has found since last time."""
        for bounding in self._bounding:
            bounding.require_no_error()
        while not self._beside.empty():
            news = self._beside.get()
            if isinstance(news, Bound):
                self.found.prove(news)
            else:
                rows, starts, source = news
                self.found.offer(rows, source, starts)

    def take_rounds(self, rounds: Iterable[tuple[Row, ...]], source: str, until: float) -> bool:
        """Take the orders of a search in rounds until a time; False if it does not stop then."""
        found: Queue[Found] = Queue()
        stopped = Event()

        def search() -> None:
            for rows in rounds:
                if rows:
                    found.put((rows, None, source))
                if stopped.is_set():
                    return

        return self.run(search, found, stopped.set, until)

    def retime(self) -> None:
        """Retime the best schedule, unless it is large and the time is over."""
        if self.quick or monotonic() <= self.deadline:
            self.found.retime(self.deadline)

    def bound_beside(self, bounds: Callable[[Stop], Iterable[Bound | Found]]) -> None:
        """Search for bounds beside what follows, until told to stop."""

        def search() -> None:
            for news in bounds(self._stop):
                self._beside.put(news)

        bounding = Background(search)
        self._bounding.append(bounding)
        bounding.start()

    def wait_for_bounds(self, *, until: float | None = None) -> None:
        """Wait until a time, or till the search is over, for what bounds may still be found."""
        until = self.deadline if until is None else until
        for bounding in self._bounding:
            while bounding.is_alive() and not self.closed:
                if monotonic() > until:
                    return
                bounding.join(0.05)
                self._take_bounds()

    def result(self, *, interrupted: bool) -> Result:
        """Return what is known now, and end what still runs."""
        self.end()
        if self._bounding:
            self._take_bounds()
        return self.found.result(interrupted=interrupted, forms=self.forms)

    def end(self) -> None:
        """End what still runs beside."""
        self._stop.ask()
        for bounding in self._bounding:
            bounding.join(GRACE_S)
