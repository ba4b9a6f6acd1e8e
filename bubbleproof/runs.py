"""What a run looks like beside its prediction, and a profile, for people. Prints nothing itself."""

from fractions import Fraction

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bubbleproof import report
from bubbleproof.answers import Json
from bubbleproof.chart import chart
from bubbleproof.schedules.deviation import Deviation, deviation
from bubbleproof.schedules.intervals import UNIT_NS
from bubbleproof.schedules.profile import Profile
from bubbleproof.schedules.quantity import in_unit
from bubbleproof.schedules.run import Run
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


def summary(ran: Run) -> RenderableType:
    """Return what some steps came to: op kinds against the prediction, and the order itself."""
    step = ran.usual_step
    compared = deviation(ran.with_step(step))
    simulated = ran.simulated(step)
    unit = compared.predicted.schedule.problem.time_unit
    own, measured = simulated.makespan, compared.measured.makespan
    per_unit = ran.steps[step].ticks_per_unit
    makespans = [_number(ticks / per_unit) for ticks in sorted(ran.makespans_ns)]
    facts = Table.grid(padding=(0, 2))
    if UNIT_NS.get(unit) != per_unit:
        clock = f"{_number(per_unit / UNIT_NS['ms'])} ms of the clock"
        facts.add_row(Text("unit", style="bold"), f"1 {unit or 'unit'} of the problem: {clock}")
    for name, value in (
        ("steps", f"{len(makespans)} after one that is not measured"),
        ("makespans", f"{', '.join(makespans)} {unit}".rstrip()),
        ("shown", f"step {step + 1}, the median"),
        (
            "order",
            f"{_number(own)} {unit}".rstrip()
            + " when simulated with the times of that step; measured is "
            + (_off(measured / own - 1) if own else "the same"),
        ),
        ("losses", ", ".join(f"{loss:.6g}" for loss in ran.losses)),
        ("live", f"{', '.join(map(str, ran.peak_live))} activations at most, by device"),
    ):
        facts.add_row(Text(name, style="bold"), value)
    return Group(facts, "", comparison(compared))


def of_run(ran: Run) -> Json:
    """Return a run as JSON, in the problem's unit of time."""
    step = ran.usual_step
    compared = deviation(ran.with_step(step))
    per_unit = ran.steps[step].ticks_per_unit
    return {
        "predicted_makespan": compared.predicted.makespan,
        "measured_makespan": compared.measured.makespan,
        "simulated_makespan": ran.simulated(step).makespan,
        "makespans": [in_unit(ticks, per_unit) for ticks in ran.makespans_ns],
        "predicted_idle": compared.predicted.bubble_ratio,
        "measured_idle": compared.measured.bubble_ratio,
        "kinds": [
            {
                "kind": each.kind,
                "count": each.count,
                "predicted": each.predicted,
                "measured": each.measured,
                "median_off": each.median_off,
                "worst_off": each.worst_off,
                "worst": each.worst,
            }
            for each in compared.kinds
        ],
        "transfer": [[in_unit(ticks, per_unit) for ticks in row] for row in ran.transfer_ns],
        "losses": list(ran.losses),
        "peak_live": list(ran.peak_live),
    }


def profile_table(profile: Profile) -> RenderableType:
    """Return what was measured of each stage, in microseconds and bytes."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("stage", "op", "ran", "median us", "least us", "most us"):
        table.add_column(title, justify="left" if title == "op" else "right")
    for (stage, kind), each in profile.times.items():
        times = (each.median_ns, each.least_ns, each.most_ns)
        table.add_row(
            str(stage), kind.value, str(each.count), *(f"{ns / 1000:.1f}" for ns in times)
        )
    parts: list[RenderableType] = [table]
    if profile.memory is not None:
        held = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("stage", "F holds B", "I adds B", "static B"):
            held.add_column(title, justify="right")
        for stage, each in enumerate(profile.memory):
            held.add_row(*map(str, (stage, each.forward, each.backward_input, each.static)))
        parts += ["", held]
    if profile.transfer_ns is not None:
        used = [time for row in profile.transfer_ns for time in row if time]
        if used:
            text = f"transfers {min(used) / 1000:.1f} to {max(used) / 1000:.1f} us"
            parts += ["", Text(text)]
    return Group(*parts)


def of_profile(profile: Profile) -> Json:
    """Return a profile as JSON: times in nanoseconds, amounts in bytes."""
    return {
        "times": [
            {
                "stage": stage,
                "kind": kind.value,
                "count": each.count,
                "median_ns": each.median_ns,
                "least_ns": each.least_ns,
                "most_ns": each.most_ns,
            }
            for (stage, kind), each in profile.times.items()
        ],
        "transfer_ns": None
        if profile.transfer_ns is None
        else [list(row) for row in profile.transfer_ns],
        "memory": None
        if profile.memory is None
        else [
            {
                "forward_bytes": each.forward,
                "backward_input_bytes": each.backward_input,
                "static_bytes": each.static,
            }
            for each in profile.memory
        ],
    }


def _makespan(timeline: Timeline) -> Fraction:
    return Fraction(timeline.makespan_ticks, timeline.schedule.problem.cost.ticks_per_unit)


def _number(number: float) -> str:
    return f"{number:.6g}"


def _off(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * ratio:+.1f} %"
