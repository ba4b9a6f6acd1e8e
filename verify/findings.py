"""Where a target's findings are: the steps of a schedule or program, in the order of their rows."""

from collections.abc import Iterable, Iterator

from bubbleproof.schedules.ops import Op, Pair, ops_of
from bubbleproof.schedules.program import Action, ActionKind, Group, Program, Step
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.verify.naming import named
from bubbleproof.verify.report import Violation

RULE = "target"


def steps_of(plan: Schedule | Program) -> Iterator[tuple[int, int, Step]]:
    """Yield device, position and step."""
    for device, row in enumerate(plan.rows):
        for position, step in enumerate(row):
            yield device, position, step


def computed(plan: Schedule | Program) -> Iterator[tuple[int, int, Op]]:
    """Yield device, position and op; the ops of a pair one after the other."""
    for device, position, step in steps_of(plan):
        for op in ops_in(step):
            yield device, position, op


def first_action(plan: Schedule | Program, kind: ActionKind) -> tuple[int, int, Action] | None:
    """Return the first action of a kind, with its place."""
    for device, position, step in steps_of(plan):
        if isinstance(step, Action) and step.kind is kind:
            return device, position, step
    return None


def first_pair(plan: Schedule | Program) -> tuple[int, int, Pair] | None:
    """Return the first pair, with its place."""
    return next(((d, p, step) for d, p, step in steps_of(plan) if isinstance(step, Pair)), None)


def ops_in(step: Step) -> tuple[Op, ...]:
    """Return what a step computes."""
    return () if isinstance(step, (Action, Group)) else ops_of(step)


def finding(
    message: str,
    device: int | None = None,
    position: int | None = None,
    ops: Iterable[object] = (),
) -> Violation:
    """Return a finding as a violation of rule target."""
    return Violation(RULE, message, device, position, named(ops))
