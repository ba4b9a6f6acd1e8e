"""A schedule's timeline as text, one line for each device; the picture is ``schedules.plot``."""

from fractions import Fraction
from math import ceil

from rich.text import Text

from bubbleproof.schedules.ops import Block, OpKind, Pair
from bubbleproof.schedules.simulate import Timeline

IDLE = "."

_COLOURS = {
    OpKind.FORWARD: ("blue", "bright_blue"),
    OpKind.BACKWARD_INPUT: ("cyan", "bright_cyan"),
    OpKind.BACKWARD_WEIGHT: ("green", "bright_green"),
    OpKind.BACKWARD: ("magenta", "bright_magenta"),
}
_PAIR_COLOURS = ("yellow", "bright_yellow")


def chart(timeline: Timeline, width: int, *, longest: Fraction | None = None) -> Text:
    """Draw all devices to scale within a number of columns.

    A block shows as much of its text as its columns hold, at least the letter of its kind (P for
    an overlapped pair); neighbours alternate in shade. Idle columns are dots.

    Parameters
    ----------
    timeline
        What is drawn, from its first start on.
    width
        Columns in all.
    longest
        The time that the columns stand for, in the problem's unit; None: the makespan.
    """
    problem = timeline.schedule.problem
    name = len(str(problem.devices - 1))
    columns = max(10, width - name - 1)
    first = timeline.first_ticks
    whole = max(1, timeline.makespan_ticks)
    if longest is not None:
        whole = max(1, ceil(longest * problem.cost.ticks_per_unit))
    text = Text(no_wrap=True, overflow="crop")
    for device, row in enumerate(timeline.schedule.rows):
        cells = list(IDLE * columns)
        styles: list[tuple[int, int, str]] = []
        several = len(problem.placement.stages_of_device[device]) > 1
        for index, block in enumerate(row):
            begin = (timeline.starts[device][index] - first) * columns // whole
            end = (timeline.ends[device][index] - first) * columns // whole
            end = min(columns, max(end, begin + 1))
            if begin < end and timeline.ends[device][index] > timeline.starts[device][index]:
                cells[begin:end] = _label(block, end - begin, several=several)
                styles.append((begin, end, f"not dim black on {_colours(block)[index % 2]}"))
        line = Text("".join(cells), style="dim")
        for begin, end, style in styles:
            line.stylize(style, begin, end)
        text.append(f"{device:>{name}} ")
        text.append_text(line)
        text.append("\n")
    finish = f"{timeline.makespan} {problem.time_unit}".rstrip()
    ended = max(1, timeline.makespan_ticks * columns // whole)
    text.append(" " * (name + 1) + "0" + finish.rjust(ended - 1) + "\n")
    legend = "F forward  I backward for the input  W for the weights  B both  P overlapped pair"
    return text.append(f"{legend}  {IDLE} idle")


def _label(block: Block, columns: int, *, several: bool) -> str:
    """Return a block's text in so many columns: whole, without its stage, or its letter alone."""
    match block:
        case Pair(forward, backward):
            texts = [f"{forward}+{backward}", f"P{forward.microbatch}+{backward.microbatch}", "P"]
        case _:
            kind, microbatch = block.kind.value, block.microbatch
            texts = [str(block), f"{kind}{microbatch}", kind]
    # A stage's number would run into the microbatch before it, so it needs a space after it.
    for text in texts if several else texts[1:]:
        if len(text) + several <= columns:
            return text.ljust(columns)
    return texts[-1].ljust(columns)


def _colours(block: Block) -> tuple[str, str]:
    return _PAIR_COLOURS if isinstance(block, Pair) else _COLOURS[block.kind]
