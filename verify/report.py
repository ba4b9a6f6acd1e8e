"""The verdict on a schedule."""

from dataclasses import dataclass

from bubbleproof.schedules.quantity import Number


@dataclass(frozen=True, slots=True)
class Violation:
    """One place where a schedule breaks one rule.

    Parameters
    ----------
    rule
        The rule's name in SPEC.md.
    message
        What is wrong, with the numbers, and what would be right.
    device
        The device whose row it is; None where it is no single one.
    position
        The index in that row; None where nothing is there (an op that is missing).
    ops
        The ops that the violation is about, as text.
    """

    rule: str
    message: str
    device: int | None = None
    position: int | None = None
    ops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Whether a schedule is valid, and everything that is wrong with it.

    Parameters
    ----------
    violations
        All violations, in the order of the rules in SPEC.md.
    makespan, span
        In the problem's unit; None where the schedule cannot run.
    peak_memory
        For each device, in the problem's unit, static part included.
    """

    violations: tuple[Violation, ...]
    makespan: Number | None
    span: Number | None
    peak_memory: tuple[Number, ...]

    @property
    def valid(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations
