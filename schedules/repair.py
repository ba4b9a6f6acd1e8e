"""Repair: a program gets messages that are safe under every transport; what it computes stays.

Only the messages are made anew, in the order of ``lower`` and with its proof. The ops of each
device and the steps on weights keep their order, so memory, times and results are those that the
program was meant to have. Whatever was wrong with the messages is gone: an order that hangs or
takes one for another, a message that is missing, there twice or on the wrong device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bubbleproof.schedules.line import SENDS, draw_line
from bubbleproof.schedules.program import (
    Action,
    Group,
    Program,
    Step,
    blocks_of,
    schedule_of,
    ungrouped,
)


def repair(program: Program, *, grouped: bool = True) -> Program:
    """Return the program with its messages rewritten.

    Parameters
    ----------
    program
        What is to run. Its messages are not looked at.
    grouped
        Whether messages in both directions that two devices exchange with nothing between are
        posted together; torch's CSV has no groups.

    Raises
    ------
    DeadlockError
        If the order of the ops cannot run, with what each device waits for: no order of messages
        helps then, and the ops have to be put in another order.
    ValueError
        If the rows are not those of the problem's devices, or an op stands where it does not
        belong or is there twice.
    """
    line = draw_line(schedule_of(program))
    source = program.source.removesuffix(_MADE)
    repaired = replace(
        program,
        rows=tuple(
            tuple(_woven(row, line.steps(device))) for device, row in enumerate(program.rows)
        ),
        source=f"{source}{_MADE}" if source else _MADE.lstrip(", "),
    )
    return repaired if grouped else ungrouped(repaired)


_MADE = ", messages repaired"


def _woven(row: Sequence[Step], lowered: Sequence[Step]) -> Iterator[Step]:
    """Yield blocks and messages, with a row's steps on weights between the same blocks as there.

    They stand behind the sends of the block before, which would wait for them, and before the
    receives of the next, for which they would wait.
    """
    weights = _weights_by_gap(row)
    gap = 0
    pending: list[Step] = weights[0]
    for step in lowered:
        if pending and not _is_send(step):
            yield from pending
            pending = []
        yield step
        if not isinstance(step, (Action, Group)):
            gap += 1
            pending = weights[gap]
    yield from pending


def _weights_by_gap(row: Sequence[Step]) -> list[list[Step]]:
    """Return the steps on weights before the first block, behind it, behind the second, ..."""
    gaps: list[list[Step]] = [[] for _ in range(len(blocks_of(row)) + 1)]
    gap = 0
    for step in row:
        if isinstance(step, Action):
            if not step.kind.is_message:
                gaps[gap].append(step)
        elif not isinstance(step, Group):
            gap += 1
    return gaps


def _is_send(step: Step) -> bool:
    messages = step.messages if isinstance(step, Group) else (step,)
    return any(isinstance(message, Action) and message.kind in SENDS for message in messages)
