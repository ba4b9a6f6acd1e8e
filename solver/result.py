"""What solve returns: a schedule, a bound, and what they prove together."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import OpKind, ops_of
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.quantity import Number
from bubbleproof.schedules.schedule import Bound, Schedule, Status
from bubbleproof.schedules.simulate import Timeline


class NoScheduleError(Exception):
    """No schedule keeps the memory limits, whatever its order.

    Attributes
    ----------
    problem
        The problem.
    device
        A device whose limit is too low.
    limit, least
        Its limit, and the least limit with which every device order exists, in the user's unit.
    bound
        A bound on the objective that holds whatever the limits are, in the user's unit.
    """

    def __init__(
        self,
        message: str,
        *,
        problem: Problem,
        device: int,
        limit: Number,
        least: Number,
        bound: Number,
    ) -> None:
        super().__init__(message)
        self.problem = problem
        self.device = device
        self.limit = limit
        self.least = least
        self.bound = bound


@dataclass(frozen=True, slots=True)
class Form:
    """What one form of the backward gives where the problem leaves the choice, in ticks.

    Parameters
    ----------
    backward
        All fused, or all split.
    objective_ticks, bound_ticks
        The best schedule found in this form, and the bound on all in this form.
    """

    backward: Backward
    objective_ticks: int
    bound_ticks: int


@dataclass(frozen=True, slots=True)
class Result:
    """The best schedule found and what is proven of it.

    Parameters
    ----------
    timeline
        The times of the schedule; it has its objective, bound, status and proof in it.
    seconds
        Wall time of the search.
    interrupted
        Whether Ctrl-C ended the search.
    cut
        For a deterministic search whether the time ended it before its work was done, so that
        another run may differ; None for any other search.
    family, family_objective_ticks
        The best published family that fits the limits, and its objective; None where none does.
    forms
        Where the backward is free, what all fused and all split backwards give.
    """

    timeline: Timeline
    seconds: float
    interrupted: bool = False
    cut: bool | None = None
    family: str | None = None
    family_objective_ticks: int | None = None
    forms: tuple[Form, ...] = ()

    @property
    def schedule(self) -> Schedule:
        """The schedule."""
        return self.timeline.schedule

    @property
    def problem(self) -> Problem:
        """The problem that was solved."""
        return self.schedule.problem

    @property
    def objective(self) -> Number:
        """Makespan or span, as the problem asks, in its unit."""
        return self.problem.time(self.objective_ticks)

    @property
    def bound(self) -> Number:
        """No valid schedule has a smaller objective; in the problem's unit."""
        return self.problem.time(self.bound_ticks)

    @property
    def objective_ticks(self) -> int:
        """The objective in ticks, recomputed from the starts."""
        return self.timeline.objective_ticks

    @property
    def bound_ticks(self) -> int:
        """The bound in ticks."""
        return self.schedule.bound or 0

    @property
    def gap(self) -> float:
        """(objective - bound) / objective; 0 where the schedule is proven optimal."""
        objective = self.objective_ticks
        return (objective - self.bound_ticks) / objective if objective else 0.0

    @property
    def status(self) -> Status:
        """``optimal`` only where the bound equals the objective, else ``feasible``."""
        optimal = self.objective_ticks == self.bound_ticks
        return Status.OPTIMAL if optimal else Status.FEASIBLE

    @property
    def backwards(self) -> dict[Backward, int]:
        """How many backwards the schedule fuses, and how many it splits."""
        kinds = Counter(
            op.kind for row in self.schedule.rows for block in row for op in ops_of(block)
        )
        return {
            Backward.FUSED: kinds[OpKind.BACKWARD],
            Backward.SPLIT: kinds[OpKind.BACKWARD_INPUT],
        }

    @property
    def source(self) -> str:
        """How the schedule was made."""
        return self.schedule.source

    @property
    def proof(self) -> tuple[Bound, ...]:
        """The bounds that hold, the strongest first."""
        return self.schedule.proof


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a search, for reports while it runs.

    Parameters
    ----------
    schedule
        The best schedule so far, with starts, objective and bound.
    seconds
        Wall time so far.
    """

    schedule: Schedule
    seconds: float


class Solve(Protocol):
    """What solves a problem that is part of another: ``portfolio.solve``."""

    def __call__(
        self,
        problem: Problem,
        *,
        time_limit_s: float,
        workers: int,
        seed: int,
        deterministic: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Result:
        """Return the best schedule of a problem."""
        ...
