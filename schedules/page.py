"""A timeline as one HTML page without scripts or other files: ops, memory, and what each op is.

Where a run was measured it stands under the prediction, on the same time axis.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape

from bubbleproof.schedules.deviation import Deviation
from bubbleproof.schedules.marks import Mark
from bubbleproof.schedules.ops import Block, Op, OpKind, Pair, ops_of
from bubbleproof.schedules.palette import (
    HATCH,
    INK,
    KIND_NAMES,
    LIMIT,
    MEMORY,
    MUTED,
    PAPER,
    Colour,
    op_colour,
    shade,
    text_colour,
)
from bubbleproof.schedules.simulate import Timeline

_ROW, _BAR, _CURVE = 48, 26, 14
"""Pixels: a device's row, and in it its ops and its memory."""

_HEAD, _AXIS = 18, 22
_NAMES = 80
_LEAST_WIDTH, _MOST_WIDTH = 1100, 24_000
_USUAL_OP = 18
"""The width of an op in the middle, in pixels, so that its microbatch can be read."""

_DIGIT = 7

_STYLE = f"""
body {{ font: 14px/1.45 system-ui, sans-serif; color: {INK}; margin: 24px; }}
h1 {{ font-size: 20px; margin: 0; }}
p {{ margin: 4px 0 14px; color: {MUTED}; }}
.picture {{ display: flex; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 16px 0; }}
td, th {{ text-align: right; padding: 2px 12px; border-bottom: 1px solid {HATCH}; }}
.key {{ display: inline-block; width: 12px; height: 12px; margin: 0 4px 0 12px; }}
svg text {{ font: 11px system-ui, sans-serif; pointer-events: none; }}
"""


@dataclass(frozen=True, slots=True)
class _Scale:
    """Pixels on the time axis: units of time from 0 to ``end``."""

    end: Fraction
    width: int

    def x(self, timeline: Timeline, tick: int) -> float:
        """Return the place of a tick, the timeline's first start being at 0."""
        per_unit = timeline.schedule.problem.cost.ticks_per_unit
        return round(float((tick - timeline.first_ticks) / (self.end * per_unit)) * self.width, 2)


def page_text(
    timeline: Timeline, *, compared: Deviation | None = None, marks: Sequence[Mark] = ()
) -> str:
    """Return the page.

    Parameters
    ----------
    timeline
        The prediction.
    compared
        The run beside it.
    marks
        The actions of the program that the timeline is of.
    """
    problem = timeline.schedule.problem
    title = problem.name or "pipeline schedule"
    parts = [f"<h1>{escape(title)}</h1>", f"<p>{escape(_facts(timeline))}</p>", _legend(timeline)]
    pictures = [("predicted" if compared else "", timeline, marks)]
    if compared is not None:
        pictures.append(("measured", compared.measured, ()))
    scale = _scale([each for _, each, _ in pictures])
    names = "".join(_names(name, each) for name, each, _ in pictures)
    drawn = "".join(_picture(each, own, scale) for _, each, own in pictures)
    parts.append(f'<div class="picture"><div>{names}</div><div class="scroll">{drawn}</div></div>')
    if compared is not None:
        parts.append(_deviations(compared))
    parts.append(_devices(timeline))
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _facts(timeline: Timeline) -> str:
    schedule = timeline.schedule
    problem = schedule.problem
    unit = f" {problem.time_unit}".rstrip()
    facts = [
        schedule.source,
        f"{problem.devices} devices, {problem.stages} stages, "
        f"{problem.total_microbatches} microbatches",
        f"makespan {timeline.makespan}{unit}",
        f"span {timeline.span}{unit}",
        f"bubble {timeline.bubble_ratio:.1%}",
    ]
    if schedule.bound is not None:
        facts.append(f"no {problem.objective.value} is below {problem.time(schedule.bound)}{unit}")
    return " · ".join(filter(None, facts))


def _legend(timeline: Timeline) -> str:
    used = {op.kind for row in timeline.schedule.rows for block in row for op in ops_of(block)}
    keys = [
        f'<span class="key" style="background:{_hex(shade(kind, 0.75))}"></span>'
        f"{escape(KIND_NAMES[kind])}"
        for kind in OpKind
        if kind in used
    ]
    keys.append(f'<span class="key" style="background:{MEMORY}"></span>memory')
    return f"<p>{''.join(keys)}. An op says what it is where the pointer rests on it.</p>"


def _scale(timelines: Sequence[Timeline]) -> _Scale:
    ends = [
        Fraction(each.makespan_ticks, each.schedule.problem.cost.ticks_per_unit)
        for each in timelines
    ]
    end = max(*ends, Fraction(0)) or Fraction(1)
    lengths = sorted(
        Fraction(stop - start, each.schedule.problem.cost.ticks_per_unit)
        for each in timelines
        for begins, stops in zip(each.starts, each.ends, strict=True)
        for start, stop in zip(begins, stops, strict=True)
        if stop > start
    )
    wanted = round(_USUAL_OP * end / lengths[len(lengths) // 2]) if lengths else 0
    return _Scale(end, min(_MOST_WIDTH, max(_LEAST_WIDTH, wanted)))


def _names(name: str, timeline: Timeline) -> str:
    """Return the names of the rows, which stay where they are when the picture is scrolled."""
    devices = timeline.schedule.problem.devices
    shapes = [f'<text x="0" y="12" fill="{MUTED}">{name}</text>'] if name else []
    shapes += [
        f'<text x="0" y="{_top(device) + _BAR / 2 + 4}" fill="{INK}">device {device}</text>'
        for device in range(devices)
    ]
    return _svg(_NAMES, devices, shapes)


def _picture(timeline: Timeline, marks: Sequence[Mark], scale: _Scale) -> str:
    shapes = [
        *_rows(timeline, scale),
        *_curves(timeline, scale),
        *(_mark(mark, timeline, scale) for mark in marks),
        *_axis(timeline, scale),
    ]
    return _svg(scale.width, timeline.schedule.problem.devices, shapes)


def _svg(width: int, devices: int, shapes: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'height="{_top(devices) + _AXIS}" style="display:block">{"".join(shapes)}</svg>'
    )


def _top(device: int) -> int:
    return _HEAD + _ROW * device


def _rows(timeline: Timeline, scale: _Scale) -> Iterator[str]:
    for device, row in enumerate(timeline.schedule.rows):
        top = _top(device)
        yield f'<rect x="0" y="{top}" width="{scale.width}" height="{_BAR}" fill="{PAPER}"/>'
        for block, start, end in zip(
            row, timeline.starts[device], timeline.ends[device], strict=True
        ):
            left, right = scale.x(timeline, start), scale.x(timeline, end)
            words = f"{block} on device {device}: {_span(timeline, start, end)}"
            yield f"<g><title>{escape(words)}</title>"
            yield from _block(timeline, block, left, right, top)
            yield "</g>"


def _block(timeline: Timeline, block: Block, left: float, right: float, top: int) -> Iterator[str]:
    """Draw a block: an op over the whole height, a pair's forward above its backward."""
    if isinstance(block, Pair):
        half = _BAR / 2
        yield from _tile(timeline, block.forward, left, right, top, half)
        yield from _tile(timeline, block.backward, left, right, top + half, half)
        yield (
            f'<rect x="{left}" y="{top}" width="{right - left:.2f}" height="{_BAR}" fill="none" '
            f'stroke="{INK}" stroke-width="0.7"/>'
        )
    else:
        yield from _tile(timeline, block, left, right, top, _BAR)


def _tile(
    timeline: Timeline, op: Op, left: float, right: float, top: float, height: float
) -> Iterator[str]:
    colour = op_colour(timeline.schedule.problem, op)
    yield (
        f'<rect x="{left}" y="{top}" width="{right - left:.2f}" height="{height}" '
        f'fill="{_hex(colour)}" stroke="white" stroke-width="0.5"/>'
    )
    label = str(op.microbatch)
    if _DIGIT * len(label) < right - left:
        yield (
            f'<text x="{(left + right) / 2:.2f}" y="{top + height / 2 + 4}" text-anchor="middle" '
            f'fill="{text_colour(colour)}">{label}</text>'
        )


def _curves(timeline: Timeline, scale: _Scale) -> Iterator[str]:
    """Draw each device's memory beneath its ops, all on one scale, and its limit as a line."""
    problem = timeline.schedule.problem
    limits = problem.memory.limit
    peaks = [max(grains for _, grains in curve) for curve in timeline.memory]
    highest = max(1, *peaks, *(limit for limit in limits if limit is not None))
    for device, curve in enumerate(timeline.memory):
        floor = _top(device) + _BAR + 3 + _CURVE
        points = [f"0,{floor}"]
        height = 0.0
        for tick, grains in dict(curve).items():
            x = max(0.0, scale.x(timeline, tick))
            points.append(f"{x},{floor - height:.1f}")
            height = _CURVE * grains / highest
            points.append(f"{x},{floor - height:.1f}")
        points += [f"{scale.width},{floor - height:.1f}", f"{scale.width},{floor}"]
        peak = f"device {device} holds at most {problem.amount(peaks[device])}"
        yield (
            f'<polygon points="{" ".join(points)}" fill="{MEMORY}" fill-opacity="0.5">'
            f"<title>{escape(f'{peak} {problem.memory.unit}'.rstrip())}</title></polygon>"
        )
        limit = limits[device]
        if limit is not None:
            y = floor - _CURVE * limit / highest
            yield (
                f'<line x1="0" x2="{scale.width}" y1="{y:.1f}" y2="{y:.1f}" stroke="{LIMIT}" '
                'stroke-dasharray="4 2"/>'
            )


def _mark(mark: Mark, timeline: Timeline, scale: _Scale) -> str:
    """Draw an action: a message as a short line, a step on weights as a triangle."""
    x, bottom = scale.x(timeline, mark.tick), _top(mark.device) + _BAR
    title = f"<title>{escape(f'{mark.action} on device {mark.device}')}</title>"
    if mark.action.kind.is_message:
        return (
            f'<line class="message" x1="{x}" x2="{x}" y1="{bottom - 6}" y2="{bottom + 3}" '
            f'stroke="{MUTED}">{title}</line>'
        )
    return (
        f'<path class="weights" d="M{x - 4} {bottom + 6}L{x + 4} {bottom + 6}L{x} {bottom - 2}Z" '
        f'fill="{INK}">{title}</path>'
    )


def _axis(timeline: Timeline, scale: _Scale) -> Iterator[str]:
    problem = timeline.schedule.problem
    y = _top(problem.devices) + 14
    end = f"{timeline.makespan} {problem.time_unit}".rstrip()
    x = scale.x(timeline, timeline.first_ticks + timeline.makespan_ticks)
    yield f'<text x="0" y="{y}" fill="{MUTED}">0</text>'
    yield f'<text x="{x}" y="{y}" text-anchor="end" fill="{MUTED}">{escape(end)}</text>'


def _span(timeline: Timeline, start: int, end: int) -> str:
    problem, first = timeline.schedule.problem, timeline.first_ticks
    begun, ended = problem.time(start - first), problem.time(end - first)
    return f"{begun} to {ended} {problem.time_unit}".rstrip()


def _devices(timeline: Timeline) -> str:
    problem = timeline.schedule.problem
    rows = [
        (
            str(device),
            *(str(problem.time(t)) for t in (bubble.waiting, bubble.transfer, bubble.tail)),
            str(peak),
            "none" if limit is None else str(problem.amount(limit)),
        )
        for device, (bubble, peak, limit) in enumerate(
            zip(timeline.bubbles, timeline.peak_memory, problem.memory.limit, strict=True)
        )
    ]
    return _table(("device", "waiting", "transfer", "tail", "peak memory", "limit"), rows)


def _deviations(compared: Deviation) -> str:
    def percent(off: float | None) -> str:
        return "" if off is None else f"{off:+.1%}"

    rows = [
        (
            each.kind,
            str(each.count),
            f"{each.predicted:.6g}",
            f"{each.measured:.6g}",
            percent(each.median_off),
            percent(each.worst_off),
            each.worst,
        )
        for each in compared.kinds
    ]
    return _table(("op", "ran", "predicted", "measured", "median off", "worst off", "at"), rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _hex(colour: Colour) -> str:
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in colour)
