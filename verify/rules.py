"""Judge a schedule by every rule of SPEC.md."""

from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.verify.report import Report


def verify(schedule: Schedule, problem: Problem | None = None) -> Report:
    """Return the verdict on a schedule, on its own problem or another."""
    raise NotImplementedError
