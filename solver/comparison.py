"""Every published family on one problem, side by side."""

from dataclasses import dataclass

from bubbleproof.schedules import families
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.simulate import Timeline, simulate


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule that stands in a comparison.

    Parameters
    ----------
    name
        Of the family, or ``solve``.
    timeline
        The schedule with its times.
    """

    name: str
    timeline: Timeline

    @property
    def objective_ticks(self) -> int:
        """Makespan or span, as the problem asks."""
        return self.timeline.objective_ticks

    @property
    def device_over_limit(self) -> int | None:
        """The device that exceeds its memory limit most; None where all fit."""
        return self.timeline.device_over_limit

    @property
    def weight_copies(self) -> int:
        """How many copies of the weights the devices hold together."""
        placement = self.timeline.schedule.problem.placement
        return placement.stages // len(set(placement.replica_of))

    @property
    def fits(self) -> bool:
        """Whether every device stays within its memory limit."""
        return self.device_over_limit is None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The families of one problem.

    Parameters
    ----------
    problem
        The problem.
    candidates
        What applies: first what fits the memory limits, each part by objective.
    refused
        For each family that does not apply the reason.
    """

    problem: Problem
    candidates: tuple[Candidate, ...]
    refused: tuple[tuple[str, str], ...]

    def with_schedule(self, name: str, schedule: Schedule) -> "Comparison":
        """Return the comparison with one more schedule in its place."""
        return _compared(
            self.problem, (*self.candidates, Candidate(name, simulate(schedule))), self.refused
        )


def compare_families(problem: Problem) -> Comparison:
    """Build every family on a problem; those that refuse it stay with their reason."""
    candidates: list[Candidate] = []
    refused: list[tuple[str, str]] = []
    for name in families.names():
        try:
            schedule = families.build(name, problem)
        except ValueError as reason:
            refused.append((name, str(reason)))
        else:
            candidates.append(Candidate(name, simulate(schedule)))
    return _compared(problem, tuple(candidates), tuple(refused))


def _compared(
    problem: Problem,
    candidates: tuple[Candidate, ...],
    refused: tuple[tuple[str, str], ...],
) -> Comparison:
    ordered = sorted(candidates, key=lambda c: (not c.fits, c.objective_ticks))
    return Comparison(problem=problem, candidates=tuple(ordered), refused=refused)
