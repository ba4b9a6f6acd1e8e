"""Violations for people: what is wrong, and a table of the rows in which the cells are marked."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from bubbleproof.schedules.ops import Op, Pair
from bubbleproof.schedules.program import Action, Group, Program, Step
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.verify.report import Violation

Place: TypeAlias = tuple[int, int]
"""A device and a position in its row."""

MOST_LINES = 15
"""Of a screen of 24, what facts, messages and certificate leave; ``--json`` has everything."""

LINE = 76
"""Characters in a line of a screen of 80, with its indent."""

MOST_OPS = 4
"""Ops of a violation that are named in its heading and marked in rows."""

MOST_ROWS = 4


def faults(violations: Sequence[Violation], plan: Schedule | Program) -> Iterator[RenderableType]:
    """Yield the first violations, as many as a screen holds, and how many more there are.

    The first is there whatever its length.
    """
    wanted = {op for violation in violations[:MOST_LINES] for op in violation.ops[:MOST_OPS]}
    places = _places(plan, wanted) if wanted else {}
    left = MOST_LINES
    for index, violation in enumerate(violations):
        marked = _marked(violation, places)
        rows = _rows(violation, marked)
        left -= 2 + len(violation.message) // (LINE - 6) + 1 + len(rows)
        if index and left < 0:
            yield ""
            yield Text(f"and {len(violations) - index} more; --json lists all")
            return
        yield ""
        yield _heading(violation)
        yield Padding(Text(violation.message), (0, 0, 0, 2))
        for device in rows:
            positions = sorted(position for each, position in marked if each == device)
            yield Padding(cells(plan, device, positions), (0, 0, 0, 2))


def cells(plan: Schedule | Program, device: int, marked: Sequence[int]) -> Text:
    """Return a device's row around its marked cells, as much as a line holds.

    Parameters
    ----------
    plan
        Whose row it is.
    device, marked
        The row, and positions in it in ascending order, at least one.
    """
    row = plan.rows[device]
    shown = _window(row, marked, LINE - len(f"row {device}: ") - 4 * (len(marked) + 1))
    text = Text(f"row {device}:")
    behind = 0
    for position in shown:
        if position > behind:
            text.append(" ...")
        behind = position + 1
        text.append(" ")
        if position in marked:
            text.append(f">{row[position]}<", style="bold reverse red")
        else:
            text.append(str(row[position]))
    return text.append(" ..." if behind < len(row) else "")


def _window(row: Sequence[Step], marked: Sequence[int], room: int) -> list[int]:
    """Return the marked positions and, the nearest first, those beside them that fit in a line."""
    shown = set(marked)
    room -= sum(len(str(row[position])) + 3 for position in marked)
    reach = 1
    while reach < LINE:
        for position in marked:
            for beside in (position - reach, position + reach):
                if beside in shown or not 0 <= beside < len(row):
                    continue
                room -= len(str(row[beside])) + 1
                if room < 0:
                    return sorted(shown)
                shown.add(beside)
        reach += 1
    return sorted(shown)


def _heading(violation: Violation) -> Text:
    place = "" if violation.device is None else f"  device {violation.device}"
    if violation.position is not None:
        place += f", position {violation.position}"
    heading = Text.assemble((violation.rule, "bold red"), place)
    if violation.ops:
        heading.append(f"  {' '.join(violation.ops[:MOST_OPS])}", style="bold")
    if len(violation.ops) > MOST_OPS:
        heading.append(f" and {len(violation.ops) - MOST_OPS} more")
    return heading


def _marked(violation: Violation, places: Mapping[str, Place]) -> set[Place]:
    """Return the cells that a violation is about: its own, and the first of each of its ops."""
    marked = {places[op] for op in violation.ops[:MOST_OPS] if op in places}
    if violation.device is not None and violation.position is not None:
        marked.add((violation.device, violation.position))
    return marked


def _rows(violation: Violation, marked: set[Place]) -> list[int]:
    """Return the devices whose rows are shown, the violation's own first."""
    devices = sorted({device for device, _ in marked}, key=lambda d: (d != violation.device, d))
    return devices[:MOST_ROWS]


def _places(plan: Schedule | Program, wanted: set[str]) -> dict[str, Place]:
    """Return where ops and actions stand for the first time."""
    places: dict[str, Place] = {}
    for device, row in enumerate(plan.rows):
        for position, step in enumerate(row):
            for text in _texts(step):
                if text in wanted:
                    places.setdefault(text, (device, position))
    return places


def _texts(step: Step) -> tuple[str, ...]:
    match step:
        case Op() | Action():
            return (str(step),)
        case Pair():
            return (str(step.forward), str(step.backward))
        case Group():
            return tuple(map(str, step.messages))
