"""What a run looks like beside its prediction, and a profile, for people. Prints nothing itself."""

from fractions import Fraction

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bubbleproof import report
from bubbleproof.chart import chart
from bubbleproof.schedules.deviation import Deviation, deviation
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.simulate import Timeline, simulate


def charts(schedule: Schedule, width: int, *, measured: bool) -> RenderableType:
    """Return a schedule's timeline and, where asked for, its run under it on the same axis."""
    if not measured:
        timeline = simulate(schedule)
        return Group(chart(timeline, width), "", report.devices(timeline))
    compared = deviation(schedule)
    longest = max(map(_makespan, (compared.predicted, compared.measured)))
    return Group(
        Text("predicted", style="bold"),
        chart(compared.predicted, width, longest=longest),
        "",
        Text("measured", style="bold"),
        chart(compared.measured, width, longest=longest),
        "",
        comparison(compared),
    )


def comparison(compared: Deviation) -> RenderableType:
    """Return how far a run was from its prediction: op kinds, makespan, span and idle time."""
    problem = compared.predicted.schedule.problem
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "ran", "predicted", "measured", "off", "worst", "at"):
        table.add_column(title, justify="left" if title in ("", "at") else "right")
    for each in compared.kinds:
        table.add_row(
            each.kind,
            str(each.count),
            _number(each.predicted),
            _number(each.measured),
            _off(each.median_off),
            _off(each.worst_off),
            each.worst,
        )
    for name, predicted, measured in (
        ("makespan", compared.predicted.makespan, compared.measured.makespan),
        ("span", compared.predicted.span, compared.measured.span),
    ):
        off = measured / predicted - 1 if predicted else None
        table.add_row(name, "", _number(predicted), _number(measured), _off(off), "", "")
    idle = [report.percent(each.bubble_ratio) for each in (compared.predicted, compared.measured)]
    table.add_row("idle", "", *idle, "", "", "")
    unit = f"times in {problem.time_unit}; " if problem.time_unit else ""
    return Group(table, Text(f"{unit}medians of each op kind", style="dim"))


def _makespan(timeline: Timeline) -> Fraction:
    return Fraction(timeline.makespan_ticks, timeline.schedule.problem.cost.ticks_per_unit)


def _number(number: float) -> str:
    return f"{number:.6g}"


def _off(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * ratio:+.1f} %"
