# pyright: reportUnknownMemberType=false
# matplotlib's own types leave the keyword arguments of its drawing methods open.
"""A schedule as a picture: each device's ops over time, its bubbles, and its memory beneath.

One colour per op kind and one shade per microbatch; a dark foot marks the ops of a device's
second stage, which in a bidirectional placement is the other chain. An overlapped pair is one
block, its forward above its backward. Idle time stays hatched paper. A run stands under its
prediction, on the same time axis.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from bubbleproof.schedules.deviation import deviation
from bubbleproof.schedules.files import AnyPath
from bubbleproof.schedules.ops import OpKind, Pair, ops_of
from bubbleproof.schedules.palette import (
    HATCH,
    INK,
    KIND_NAMES,
    LIMIT,
    MEMORY,
    MUTED,
    PAPER,
    shade,
)
from bubbleproof.schedules.picture import form_of, new_figure, write_picture
from bubbleproof.schedules.plot_rows import (
    DASHES,
    Frame,
    bound_ticks,
    draw_rows,
    number_text,
    plain,
)
from bubbleproof.schedules.schedule import Schedule, Status
from bubbleproof.schedules.simulate import Timeline, simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARGINS_INCHES = (0.95, 1.25, 0.95, 0.55)
"""Left, right, top and bottom."""

_POINTS_PER_INCH = 72


def plot(
    schedule: Schedule,
    path: AnyPath | None = None,
    *,
    memory: bool = True,
    measured: bool = False,
    title: str | None = None,
    width_inches: float = 12.0,
    dots_per_inch: int = 200,
) -> "Figure":
    """Draw a schedule, and write the picture where a path is given.

    Parameters
    ----------
    schedule
        The schedule: with its own starts, or as early as its order allows.
    path
        Where to write it; the extension is .svg, .png or .pdf. The same schedule gives the same
        bytes.
    memory
        Whether each device's memory curve and limit are drawn beneath its ops.
    measured
        Whether the run that the schedule carries is drawn under the prediction.
    title
        The headline; None: the problem's name, if it has one, and the schedule's source.
    width_inches
        The width of the picture; its height follows from the number of devices.
    dots_per_inch
        The resolution of a .png.

    Returns
    -------
    matplotlib.figure.Figure
        A figure of its own, without pyplot's global state.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    ValueError
        If the extension is another one, the order cannot run, nothing was measured that is to be
        drawn, or the file cannot be written.
    TypeError
        If it is no schedule.
    """
    if path is not None:
        form_of(path)  # A wrong one is refused before anything is drawn.
    timelines = [simulate(schedule)]
    if measured:
        timelines.append(deviation(schedule).measured)
    figure = _draw(timelines, memory=memory, title=title, width_inches=width_inches)
    if path is not None:
        write_picture(figure, path, dots_per_inch)
    return figure


def _draw(
    timelines: Sequence[Timeline], *, memory: bool, title: str | None, width_inches: float
) -> "Figure":
    devices = timelines[0].schedule.problem.devices
    row_inches = max(0.34, min(0.66, 8 / devices)) * (1.0 if memory else 0.72)
    left, right, top, bottom = _MARGINS_INCHES
    block_inches = devices * row_inches + bottom
    height_inches = len(timelines) * block_inches + top
    plot_inches = width_inches - left - right
    figure = new_figure(width_inches, height_inches)
    names = ("",) if len(timelines) == 1 else ("predicted", "measured")
    longest = max(
        Fraction(each.makespan_ticks, each.schedule.problem.cost.ticks_per_unit)
        for each in timelines
    )
    for index, (timeline, name) in enumerate(zip(timelines, names, strict=True)):
        below = (len(timelines) - 1 - index) * block_inches
        axes = figure.add_axes(
            (
                left / width_inches,
                (below + bottom) / height_inches,
                plot_inches / width_inches,
                devices * row_inches / height_inches,
            )
        )
        draw_rows(
            Frame(
                axes=axes,
                timeline=timeline,
                memory=memory,
                first=timeline.first_ticks,
                # An axis has a length even where nothing takes time.
                whole=max(1, ceil(longest * timeline.schedule.problem.cost.ticks_per_unit)),
                name=name,
                width_points=plot_inches * _POINTS_PER_INCH,
                row_points=row_inches * _POINTS_PER_INCH,
                note_points=(right - 0.12) * _POINTS_PER_INCH,
            )
        )
    _draw_head(figure, timelines[0], title)
    _draw_legend(figure, timelines[0], memory=memory)
    return figure


def _draw_head(figure: "Figure", timeline: Timeline, title: str | None) -> None:
    schedule = timeline.schedule
    problem = schedule.problem
    names = [problem.name or "pipeline schedule", schedule.source]
    width, height = figure.get_size_inches()
    left = _MARGINS_INCHES[0] / width
    figure.text(
        left,
        1 - 0.30 / height,
        plain(" · ".join(filter(None, names))) if title is None else plain(title),
        fontsize=13,
        fontweight="bold",
        color=INK,
        va="center",
    )
    figure.text(left, 1 - 0.56 / height, _facts(timeline), fontsize=9.5, color=MUTED, va="center")


def _facts(timeline: Timeline) -> str:
    schedule = timeline.schedule
    problem = schedule.problem
    unit = f" {plain(problem.time_unit)}" if problem.time_unit else ""
    facts = [
        f"{problem.devices} devices, {problem.stages} stages, "
        f"{problem.total_microbatches} microbatches",
        f"makespan {number_text(timeline.makespan)}{unit}",
        f"span {number_text(timeline.span)}{unit}",
        f"bubble {timeline.bubble_ratio:.1%}",
    ]
    if schedule.status is Status.OPTIMAL:
        facts.append(f"{problem.objective.value} proven optimal")
    elif schedule.bound is not None:
        bound = problem.time(schedule.bound)
        facts.append(f"no {problem.objective.value} is below {number_text(bound)}{unit}")
    return "  ·  ".join(facts)


def _draw_legend(figure: "Figure", timeline: Timeline, *, memory: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    problem = timeline.schedule.problem
    blocks = [block for row in timeline.schedule.rows for block in row]
    used = {op.kind for block in blocks for op in ops_of(block)}
    entries: list[Patch | Line2D] = [
        Patch(facecolor=shade(kind, 0.75), label=KIND_NAMES[kind])
        for kind in OpKind
        if kind in used
    ]
    if any(isinstance(block, Pair) for block in blocks):
        entries.append(
            Patch(
                facecolor=shade(OpKind.FORWARD, 0.75),
                edgecolor=shade(OpKind.BACKWARD, 0.75),
                linewidth=1.8,
                label="pair: F above B",
            )
        )
    if any(len(stages) > 1 for stages in problem.placement.stages_of_device):
        other = "chain 1" if len(problem.placement.chains) > 1 else "second stage of its device"
        entries.append(Line2D([], [], color=INK, linewidth=2.2, label=f"foot: {other}"))
    entries.append(Patch(facecolor=PAPER, edgecolor=HATCH, hatch="//////", label="bubble"))
    if memory:
        entries.append(Patch(facecolor=MEMORY, alpha=0.5, label="memory"))
        if any(limit is not None for limit in problem.memory.limit):
            entries.append(Line2D([], [], color=LIMIT, linestyle=DASHES, label="limit"))
    if bound_ticks(timeline) is not None:
        entries.append(Line2D([], [], color=INK, linewidth=1.1, label="proven bound"))
    width, height = figure.get_size_inches()
    figure.legend(
        handles=entries,
        loc="center left",
        bbox_to_anchor=(_MARGINS_INCHES[0] / width - 0.004, 1 - 0.80 / height),
        ncols=len(entries),
        fontsize=8.5 if len(entries) < 8 else 7.5,
        labelcolor=INK,
        frameon=False,
        handlelength=1.4,
        handleheight=0.9,
        columnspacing=1.6 if len(entries) < 8 else 1.0,
        borderpad=0,
    )
