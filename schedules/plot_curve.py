# pyright: reportUnknownMemberType=false
# matplotlib's own types leave the keyword arguments of its drawing methods open.
"""The memory-time curve as a picture.

The curve is a staircase: between two points more memory is not known to help. Hatched is what is
proven impossible; the white between the two is open. Published schedules stand beside it.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from bubbleproof.schedules.curve import Frontier, Published
from bubbleproof.schedules.files import AnyPath
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.palette import HATCH, INK, LIMIT, MUTED, PAPER, shade
from bubbleproof.schedules.picture import form_of, new_figure, write_picture
from bubbleproof.schedules.plot_rows import number_text, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BEYOND = 1.5
"""How far the picture goes beyond the last point, as a multiple of its memory."""

_WIDE = 8
"""From this ratio of memory on the axis is logarithmic."""


def plot_frontier(
    frontier: Frontier,
    path: AnyPath | None = None,
    *,
    title: str | None = None,
    width_inches: float = 9.0,
    height_inches: float = 5.4,
    dots_per_inch: int = 200,
) -> "Figure":
    """Draw a memory-time curve, and write the picture where a path is given.

    Parameters
    ----------
    frontier
        The curve.
    path
        Where to write it; the extension is .svg, .png or .pdf. The same curve gives the same
        bytes.
    title
        The headline; None: the problem's name.
    width_inches, height_inches
        The size of the picture.
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
        If the curve has no point, the extension is another one or the file cannot be written.
    """
    if path is not None:
        form_of(path)  # A wrong one is refused before anything is drawn.
    if not frontier.points:
        raise ValueError("frontier: the curve has no point to draw; give it more time")
    figure = new_figure(width_inches, height_inches)
    axes = figure.add_axes((0.09, 0.12, 0.88, 0.74))
    _draw_axes(axes, frontier)
    _draw_floor(axes, frontier)
    _draw_curve(axes, frontier)
    _draw_published(axes, frontier)
    problem = frontier.problem
    figure.text(
        0.09,
        0.945,
        plain(title if title is not None else problem.name or "memory against time"),
        fontsize=13,
        fontweight="bold",
        color=INK,
        va="center",
    )
    figure.text(0.09, 0.89, _facts(frontier), fontsize=9.5, color=MUTED, va="center")
    axes.legend(loc="upper right", fontsize=8.5, labelcolor=INK, frameon=False)
    if path is not None:
        write_picture(figure, path, dots_per_inch)
    return figure


def _facts(frontier: Frontier) -> str:
    problem = frontier.problem
    proven = sum(point.optimal for point in frontier.points)
    return "  ·  ".join(
        [
            f"{problem.devices} devices, {problem.stages} stages, "
            f"{problem.total_microbatches} microbatches",
            f"{proven} of {len(frontier.points)} points proven optimal",
            f"no {problem.objective.value} is below "
            f"{number_text(problem.time(frontier.bound_ticks))}",
        ]
    )


def _edges(frontier: Frontier) -> tuple[int, int]:
    """Return the least and largest memory in the picture, in grains."""
    return frontier.points[0].limit, max(1, int(_BEYOND * frontier.points[-1].limit))


def _draw_axes(axes: "Axes", frontier: Frontier) -> None:
    from matplotlib.ticker import StrMethodFormatter

    problem = frontier.problem
    first, last = _edges(frontier)
    units = f" ({plain(problem.memory.unit)})" if problem.memory.unit else ""
    axes.set_xlabel(f"memory limit{units}", color=INK)
    unit = f" ({plain(problem.time_unit)})" if problem.time_unit else ""
    axes.set_ylabel(f"{problem.objective.value}{unit}", color=INK)
    if first and last >= _WIDE * first:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    highest, lowest = frontier.points[0].objective_ticks, frontier.bound_ticks
    margin = (highest - lowest) * 0.08 or highest * 0.08 or 1
    axes.set_ylim(
        float(problem.time(lowest)) - margin / problem.cost.ticks_per_unit,
        float(problem.time(highest)) + margin / problem.cost.ticks_per_unit,
    )
    axes.set_xlim(float(problem.amount(first)) * 0.94, float(problem.amount(last)))
    axes.tick_params(colors=MUTED, labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(HATCH)


def _draw_floor(axes: "Axes", frontier: Frontier) -> None:
    """Hatch what is proven impossible."""
    problem = frontier.problem
    bottom = axes.get_ylim()[0]
    first, last = _edges(frontier)
    marks = sorted({first, last, *(limit for limit, _ in frontier.floors if first < limit < last)})
    floors = [float(problem.time(frontier.floor(limit))) for limit in marks]
    axes.fill_between(
        [float(problem.amount(limit)) for limit in marks],
        floors,
        bottom,
        step="post",
        facecolor=PAPER,
        edgecolor=HATCH,
        hatch="//////",
        linewidth=0,
        label="proven impossible",
        gid="floor",
    )


def _draw_curve(axes: "Axes", frontier: Frontier) -> None:
    problem, points = frontier.problem, frontier.points
    blue = shade(OpKind.FORWARD, 1.0)
    memory = [float(point.memory) for point in points]
    times = [float(point.objective) for point in points]
    axes.plot(
        [*memory, float(problem.amount(_edges(frontier)[1]))],
        [*times, times[-1]],
        drawstyle="steps-post",
        color=blue,
        linewidth=1.4,
        gid="curve",
    )
    for optimal, label in ((True, "proven optimal"), (False, "best found")):
        chosen = [place for place, point in enumerate(points) if point.optimal is optimal]
        if chosen:
            axes.plot(
                [memory[place] for place in chosen],
                [times[place] for place in chosen],
                "o",
                markersize=6,
                markerfacecolor=blue if optimal else "white",
                markeredgecolor=blue,
                label=label,
                gid=label,
            )


def _draw_published(axes: "Axes", frontier: Frontier) -> None:
    problem = frontier.problem
    shown = [
        family
        for family in frontier.published
        if family.limit <= _edges(frontier)[1]
        and float(problem.time(family.objective_ticks)) <= axes.get_ylim()[1]
    ]
    if not shown:
        return
    places = [
        (float(problem.amount(f.limit)), float(problem.time(f.objective_ticks))) for f in shown
    ]
    axes.plot(
        [memory for memory, _ in places],
        [time for _, time in places],
        "x",
        color=LIMIT,
        markersize=6,
        label="published",
        gid="published",
    )
    middle = (places[0][0] * axes.get_xlim()[1]) ** 0.5
    for (limit, ticks), names in same_place(shown):
        memory = float(problem.amount(limit))
        right = memory <= middle
        axes.annotate(
            ", ".join(names),
            (memory, float(problem.time(ticks))),
            xytext=(5 if right else -5, 4),
            textcoords="offset points",
            horizontalalignment="left" if right else "right",
            fontsize=7.5,
            color=LIMIT,
        )


def same_place(published: Sequence[Published]) -> list[tuple[tuple[int, int], tuple[str, ...]]]:
    """Return each memory and objective of published schedules with the names that share it."""
    return [
        (place, tuple(family.name for family in families))
        for place, families in groupby(published, lambda f: (f.limit, f.objective_ticks))
    ]
