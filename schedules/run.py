"""What a few steps of a schedule came to. Plain data, so that who reads it needs no torch."""

from dataclasses import dataclass, replace

from bubbleproof.schedules.deviation import remeasured
from bubbleproof.schedules.schedule import Measured, Schedule
from bubbleproof.schedules.simulate import Timeline, simulate


@dataclass(frozen=True, slots=True)
class Run:
    """What a few steps of a schedule came to.

    Parameters
    ----------
    schedule
        What was run.
    steps
        For each measured step its timeline.
    losses
        For each step, the first and unmeasured one included, the mean loss over all microbatches.
    transfer_ns
        For each device the time to each other one that it exchanges messages with: half a round
        trip of the largest of them; else 0.
    peak_live
        For each device the most activations that it held at once.
    """

    schedule: Schedule
    steps: tuple[Measured, ...]
    losses: tuple[float, ...]
    transfer_ns: tuple[tuple[int, ...], ...]
    peak_live: tuple[int, ...]

    @property
    def makespans_ns(self) -> tuple[int, ...]:
        """For each measured step the time from its first start to its last end."""
        return tuple(max(end for row in each.ends for end in row) for each in self.steps)

    @property
    def usual_step(self) -> int:
        """The measured step of the median makespan, the smaller of two."""
        order = sorted(range(len(self.steps)), key=self.makespans_ns.__getitem__)
        return order[(len(order) - 1) // 2]

    def with_step(self, step: int) -> Schedule:
        """Return the schedule with the timeline of a measured step."""
        return replace(self.schedule, measured=self.steps[step])

    def simulated(self, step: int) -> Timeline:
        """Return what its order takes with the times of a measured step instead of the problem's.

        Where this differs from the step itself, it is not the times of the ops that are to blame.
        """
        problem = remeasured(self.with_step(step), transfer=self.transfer_ns)
        return simulate(replace(self.schedule, problem=problem, starts=None))
