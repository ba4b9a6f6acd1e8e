# pyright: reportUnknownMemberType=false
# matplotlib's own types leave the keyword arguments of its drawing methods open.
"""The rows of a picture: ops, bubbles, labels and memory of each device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bubbleproof.schedules.ops import Op, Pair
from bubbleproof.schedules.palette import (
    HATCH,
    INK,
    LIMIT,
    MEMORY,
    MUTED,
    PAPER,
    op_colour,
    text_colour,
)
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.quantity import Number
from bubbleproof.schedules.simulate import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LABELS = 3000
DIGITS = 10
DASHES = (0, (4, 2))

_BAR, _CURVE_TOP, _CURVE = 0.56, 0.62, 0.26
"""Of a device's row of height 1: the height of its ops, and the top and height of its memory."""

_BAR_ALONE = 0.82
_FOOT = 0.13
"""The height of the highest foot, as a part of its op's."""

_SMALLEST_FONT, _LARGEST_FONT = 4.0, 9.0
_DIGIT = 0.66
"""The width of a digit, as a part of the font's size."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What is drawn, where, and how large.

    Parameters
    ----------
    axes
        The axes: time in the user's unit to the right, devices downwards.
    timeline
        The schedule with its times.
    memory
        Whether memory is drawn.
    first, whole
        The tick of the first start, and the ticks of the time axis from there on.
    name
        What the times are, where a picture has several rows of a device.
    width_points, row_points
        The width of the time axis and the height of a device's row.
    note_points
        The room to the right of the axes.
    """

    axes: "Axes"
    timeline: Timeline
    memory: bool
    first: int
    whole: int
    name: str
    width_points: float
    row_points: float
    note_points: float

    @property
    def problem(self) -> Problem:
        """The schedule's problem."""
        return self.timeline.schedule.problem

    @property
    def bar(self) -> float:
        """The height of a device's ops, in rows."""
        return _BAR if self.memory else _BAR_ALONE

    @property
    def last(self) -> int:
        """The tick at the end of the time axis."""
        return self.first + self.whole

    @property
    def points_per_tick(self) -> float:
        """The width of a tick."""
        return self.width_points / (self.last - self.first)

    def at(self, tick: float) -> float:
        """Return a tick's place on the time axis."""
        return tick / self.problem.cost.ticks_per_unit


@dataclass(frozen=True, slots=True)
class _Tile:
    """A rectangle: an op, with its times in ticks and its top and height in rows."""

    op: Op
    start: int
    end: int
    top: float
    height: float


def draw_rows(frame: Frame) -> None:
    """Draw every device's row, with its notes to the right."""
    _draw_axes(frame)
    tiles = list(_tiles(frame))
    if tiles:
        _draw_tiles(frame, tiles)
    if len(tiles) <= MOST_LABELS:
        _draw_labels(frame, tiles)
    if frame.memory:
        _draw_memory(frame)
    _draw_bound(frame)
    _draw_notes(frame)


def _draw_axes(frame: Frame) -> None:
    from matplotlib.ticker import MaxNLocator

    axes, problem, bar = frame.axes, frame.problem, frame.bar
    first, last = frame.at(frame.first), frame.at(frame.last)
    axes.set_xlim(first, last)
    axes.set_ylim(problem.devices - 0.02, -0.06)
    for device in range(problem.devices):
        axes.broken_barh(
            [(first, last - first)],
            (device, bar),
            facecolor=PAPER,
            edgecolor=HATCH,
            hatch="//////",
            linewidth=0,
            zorder=1,
        )
    round_times = MaxNLocator(nbins=14, steps=[1, 2, 5, 10]).tick_values(first, last)
    apart = 0.06 * (last - first)
    ticks = [float(time) for time in round_times if first <= time <= last - apart]
    # A run's times have as many digits as a clock gives.
    digits = 6 if frame.name else DIGITS
    axes.set_xticks([*ticks, last], [number_text(time, digits) for time in (*ticks, last)])
    unit = f"time ({plain(problem.time_unit)})" if problem.time_unit else "time"
    axes.set_xlabel(f"{unit}, {frame.name}" if frame.name else unit, color=MUTED, fontsize=9)
    axes.tick_params(axis="x", colors=MUTED, labelsize=8.5, length=3)
    axes.tick_params(axis="y", length=0, pad=8)
    axes.set_yticks([device + bar / 2 for device in range(problem.devices)])
    size = 9.5 if problem.devices <= 16 else 7
    axes.set_yticklabels(
        [f"device {device}" for device in range(problem.devices)], color=INK, fontsize=size
    )
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(HATCH)


def _tiles(frame: Frame) -> Iterator[_Tile]:
    timeline, bar = frame.timeline, frame.bar
    for device, row in enumerate(timeline.schedule.rows):
        times = zip(row, timeline.starts[device], timeline.ends[device], strict=True)
        for block, start, end in times:
            if start == end:
                continue
            if isinstance(block, Pair):
                yield _Tile(block.forward, start, end, device, bar / 2)
                yield _Tile(block.backward, start, end, device + bar / 2, bar / 2)
            else:
                yield _Tile(block, start, end, device, bar)


def _draw_tiles(frame: Frame, tiles: Sequence[_Tile]) -> None:
    from matplotlib.collections import PolyCollection

    axes, problem = frame.axes, frame.problem
    narrow = sorted(tile.end - tile.start for tile in tiles)[len(tiles) // 10]
    gap = min(0.8, 0.12 * narrow * frame.points_per_tick)
    axes.add_collection(
        PolyCollection(
            [_corners(frame, tile) for tile in tiles],
            facecolors=[op_colour(problem, tile.op) for tile in tiles],
            edgecolors="white",
            linewidths=gap,
            zorder=2,
            gid="ops",
        ),
        autolim=False,
    )
    feet = [foot for tile in tiles if (foot := _foot(frame, tile)) is not None]
    if feet:
        axes.add_collection(
            PolyCollection(
                [_corners(frame, foot) for foot in feet],
                facecolors=INK,
                edgecolors="white",
                linewidths=gap,
                zorder=2.5,
                gid="feet",
            ),
            autolim=False,
        )


def _corners(frame: Frame, tile: _Tile) -> list[tuple[float, float]]:
    left, right = frame.at(tile.start), frame.at(tile.end)
    top, bottom = tile.top, tile.top + tile.height
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _foot(frame: Frame, tile: _Tile) -> _Tile | None:
    """Return the mark of an op: the higher, the later its stage is among its device's."""
    placement = frame.problem.placement
    stages = placement.stages_of_device[placement.device_of_stage[tile.op.stage]]
    index = stages.index(tile.op.stage)
    if not index:
        return None
    height = tile.height * _FOOT * index / (len(stages) - 1)
    return _Tile(tile.op, tile.start, tile.end, tile.top + tile.height - height, height)


def _draw_labels(frame: Frame, tiles: Sequence[_Tile]) -> None:
    """Write the microbatch on each op that is large enough."""
    per_tick = frame.points_per_tick
    fonts = [
        min(
            tile.height * frame.row_points * 0.72,
            ((tile.end - tile.start) * per_tick - 1) / (_DIGIT * len(str(tile.op.microbatch))),
        )
        for tile in tiles
    ]
    # One size for most labels reads better than the largest size for each.
    usual = max(_SMALLEST_FONT, sorted(fonts)[len(fonts) // 4]) if fonts else _SMALLEST_FONT
    for tile, largest in zip(tiles, fonts, strict=True):
        if largest < _SMALLEST_FONT:
            continue
        frame.axes.text(
            frame.at(tile.start + tile.end) / 2,
            tile.top + tile.height * 0.47,
            str(tile.op.microbatch),
            fontsize=min(largest, usual, _LARGEST_FONT),
            color=text_colour(op_colour(frame.problem, tile.op)),
            ha="center",
            va="center_baseline",
            zorder=3,
            clip_on=True,
        )


def _draw_memory(frame: Frame) -> None:
    """Draw each device's memory over time, all on one scale, and its limit as a line."""
    axes, timeline, limits = frame.axes, frame.timeline, frame.problem.memory.limit
    peaks = [max(grains for _, grains in curve) for curve in timeline.memory]
    highest = max(1, *peaks, *(limit for limit in limits if limit is not None))

    def level(device: int, grains: int) -> float:
        return device + _CURVE_TOP + _CURVE * (1 - grains / highest)

    left, right = frame.at(frame.first), frame.at(frame.last)
    for device, curve in enumerate(timeline.memory):
        # What is freed and allocated at one tick is one step.
        held = {max(left, frame.at(tick)): grains for tick, grains in curve}
        times = [*held, right]
        levels = [level(device, grains) for grains in held.values()]
        levels.append(levels[-1])
        floor = level(device, 0)
        axes.fill_between(
            times, levels, floor, step="post", facecolor=MEMORY, alpha=0.35, linewidth=0, zorder=2
        )
        axes.step(times, levels, where="post", color=MEMORY, linewidth=0.9, zorder=2.2)
        axes.plot([left, right], [floor, floor], color=HATCH, linewidth=0.6, zorder=2)
        limit = limits[device]
        if limit is not None:
            height = level(device, limit)
            axes.plot(
                [left, right],
                [height, height],
                color=LIMIT,
                linewidth=0.9,
                linestyle=DASHES,
                zorder=3,
            )


def bound_ticks(timeline: Timeline) -> int | None:
    """Return the time before which no schedule can end, where one is proven within the picture."""
    bound = timeline.schedule.bound
    if bound is None or timeline.schedule.problem.objective is not Objective.MAKESPAN:
        return None
    return bound if 0 < bound < timeline.makespan_ticks else None


def _draw_bound(frame: Frame) -> None:
    bound = bound_ticks(frame.timeline)
    if bound is not None:
        frame.axes.axvline(frame.at(frame.first + bound), color=INK, linewidth=1.1, zorder=4)


def _draw_notes(frame: Frame) -> None:
    """Write each device's idle share and peak memory at the end of its row."""
    timeline, problem = frame.timeline, frame.problem
    whole = max(1, timeline.makespan_ticks)
    peaks, limits = timeline.peak_memory, problem.memory.limit
    idle = [f"idle {bubble.total / whole:.1%}" for bubble in timeline.bubbles]
    held = [_held(timeline, device, peaks[device]) for device in range(problem.devices)]
    longest = max(map(len, idle + held if frame.memory else idle))
    font = min(8.5, frame.row_points * 0.24, frame.note_points / (0.6 * longest))
    for device in range(problem.devices):
        limit = limits[device]
        over = limit is not None and peaks[device] > problem.amount(limit)
        notes = [(device + frame.bar / 2, idle[device], INK)]
        if frame.memory:
            middle = device + _CURVE_TOP + _CURVE / 2
            notes.append((middle, held[device], LIMIT if over else MUTED))
        for height, note, colour in notes:
            frame.axes.text(
                1.008,
                height,
                note,
                transform=frame.axes.get_yaxis_transform(),
                fontsize=font,
                color=colour,
                va="center",
            )


def _held(timeline: Timeline, device: int, peak: Number) -> str:
    problem = timeline.schedule.problem
    limit = problem.memory.limit[device]
    allowed = "" if limit is None else f" / {number_text(problem.amount(limit))}"
    return f"peak {number_text(peak)}{allowed} {plain(problem.memory.unit)}".rstrip()


def number_text(number: Number, digits: int = DIGITS) -> str:
    """Return a number with all digits that matter, without an exponent where that is short."""
    return f"{number:.{digits}g}"


def plain(text: str) -> str:
    """Keep a text on one line, and matplotlib from reading dollars as mathematics."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.split()).replace("$", r"\$")
