"""The verdict on a schedule."""

from dataclasses import dataclass
from typing import TypedDict

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


class Deadlock(TypedDict):
    """Where a program stands for ever.

    Parameters
    ----------
    transport
        The transport's name.
    blocked
        For each device of the smallest cycle of waits, by its number as text, the message that it
        cannot get done. Where devices wait for a message that nobody posts, there is no cycle:
        the step at which each of them stands.
    """

    transport: str
    blocked: dict[str, str]


@dataclass(frozen=True, slots=True)
class Report:
    """Whether a schedule or program is valid, and everything that is wrong with it.

    Parameters
    ----------
    violations
        All violations, in the order of the rules in SPEC.md.
    makespan, span
        In the problem's unit; None where the schedule cannot run.
    peak_memory
        For each device, in the problem's unit, static part included.
    deadlock
        The first transport under which a program hangs, and where; None where it ends under all
        that were asked for, and for a schedule, which has no messages.
    warnings
        What breaks no rule and is probably not meant.
    """

    violations: tuple[Violation, ...]
    makespan: Number | None
    span: Number | None
    peak_memory: tuple[Number, ...]
    deadlock: Deadlock | None = None
    warnings: tuple[Violation, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations
