"""The best schedule of a search so far, and what is proven of all schedules."""

from collections.abc import Callable
from dataclasses import replace
from time import monotonic

from bubbleproof.schedules import families
from bubbleproof.schedules.ops import Row
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Bound, Schedule, Starts, Status
from bubbleproof.schedules.simulate import earliest_starts, simulate
from bubbleproof.solver.construct import one_by_one
from bubbleproof.solver.limits import within_limits
from bubbleproof.solver.result import Form, Progress, Result
from bubbleproof.solver.retime import least_span_starts, objective_of


class Incumbent:
    """What a search has found and proven.

    Parameters
    ----------
    problem
        A feasible problem.
    proof
        Bounds on its objective, the strongest first.
    began
        ``time.monotonic()`` when the search began.
    on_progress
        Called with each better schedule.

    Attributes
    ----------
    proof
        The bounds so far, the strongest first.
    best
        The best schedule so far, with its starts; None before there is one.
    objective
        Its objective in ticks; 0 before there is one.
    """

    def __init__(
        self,
        problem: Problem,
        proof: tuple[Bound, ...],
        *,
        began: float,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.proof = proof
        self.best: Schedule | None = None
        self.objective = 0
        self._problem, self._began, self._on_progress = problem, began, on_progress
        self._family: str | None = None
        self._family_objective: int | None = None

    @property
    def bound(self) -> int:
        """The strongest bound, in ticks."""
        return self.proof[0].ticks

    @property
    def optimal(self) -> bool:
        """Whether the best schedule is proven to be the best of all."""
        return self.best is not None and self.objective <= self.bound

    def offer(self, rows: tuple[Row, ...], source: str, starts: Starts | None = None) -> int:
        """Keep an order if it is the best so far, and return its objective.

        Parameters
        ----------
        rows
            An order that keeps the limits.
        source
            How it was made.
        starts
            Its starts; None: each op as early as can be.
        """
        if starts is None:
            starts = earliest_starts(self._problem, rows)
        objective = objective_of(self._problem, rows, starts)
        if self.best is None or objective < self.objective:
            self.best = Schedule(self._problem, rows, starts, source=source)
            self.objective = objective
            if self._on_progress is not None:
                seconds = monotonic() - self._began
                self._on_progress(Progress(schedule=self.schedule(), seconds=seconds))
        return objective

    def offer_family(self, name: str) -> None:
        """Keep a published family if it applies, fits the limits and is the best so far."""
        try:
            schedule = families.build(name, self._problem)
        except ValueError:
            return  # The family does not apply; `bubbleproof compare` tells why.
        if not within_limits(self._problem, schedule.rows):
            return
        objective = self.offer(schedule.rows, f"family {name}")
        if self._family_objective is None or objective < self._family_objective:
            self._family, self._family_objective = name, objective

    def retime(self, deadline: float) -> None:
        """For the span, let devices of the best schedule start later where that helps."""
        best = self.best
        if best is None or self.optimal or self._problem.objective is not Objective.SPAN:
            return
        starts = least_span_starts(self._problem, best.rows, bound=self.bound, deadline=deadline)
        self.offer(best.rows, best.source, starts)

    def prove(self, bound: Bound) -> None:
        """Take a bound in place of those of its name if it is the strongest so far."""
        if bound.ticks > self.bound:
            self.proof = (bound, *(other for other in self.proof if other.name != bound.name))

    def prove_by_search(self, ticks: int) -> None:
        """Take CP-SAT's word that no order is below so many ticks."""
        time = self._problem.time(ticks)
        text = f"CP-SAT searched all orders and found none below {time} (the solver's word)"
        self.prove(Bound("cp-sat", ticks, text))

    def schedule(self) -> Schedule:
        """Return the best schedule with what is proven; one by one where there is no other."""
        if self.best is None:
            plain = one_by_one(self._problem)
            self.offer(plain.rows, plain.source)
        if self.best is None:
            raise AssertionError("what is offered first is the best so far")
        return replace(
            self.best,
            objective=self.objective,
            bound=self.bound,
            status=Status.OPTIMAL if self.objective == self.bound else Status.FEASIBLE,
            proof=self.proof,
        )

    def result(
        self, *, interrupted: bool, cut: bool | None = None, forms: tuple[Form, ...] = ()
    ) -> Result:
        """Return what is known now; what is not known here is as in ``Result``."""
        return Result(
            timeline=simulate(self.schedule()),
            seconds=monotonic() - self._began,
            interrupted=interrupted,
            cut=cut,
            family=self._family,
            family_objective_ticks=self._family_objective,
            forms=forms,
        )
