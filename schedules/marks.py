"""Where a program's actions stand on the timeline of what it computes."""

from collections.abc import Iterator
from dataclasses import dataclass

from bubbleproof.schedules.program import Action, Group, Program
from bubbleproof.schedules.simulate import Timeline


@dataclass(frozen=True, slots=True)
class Mark:
    """An action of a device, at the tick at which its device comes to it at the earliest."""

    device: int
    tick: int
    action: Action


def marks_of(program: Program, timeline: Timeline) -> Iterator[Mark]:
    """Yield a program's actions, each at the end of the block before it in its row.

    Parameters
    ----------
    program
        The program.
    timeline
        The times of the blocks in its rows.
    """
    for device, row in enumerate(program.rows):
        ends = iter(timeline.ends[device])
        now = timeline.first_ticks
        for step in row:
            match step:
                case Action():
                    yield Mark(device, now, step)
                case Group(messages):
                    yield from (Mark(device, now, message) for message in messages)
                case _:
                    now = next(ends)
