"""What the command line shows people: summaries and tables. Prints nothing itself."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bubbleproof.faults import faults
from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import Pair
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Program
from bubbleproof.schedules.schedule import Bound, Schedule, Status
from bubbleproof.schedules.simulate import Timeline
from bubbleproof.solver.comparison import Candidate, Comparison
from bubbleproof.solver.result import NoScheduleError, Progress, Result
from bubbleproof.verify.infeasible import certify_infeasible
from bubbleproof.verify.report import Report

SOLVE = "solve"
"""The solver's name among the families of a comparison."""


def summary(result: Result, report: Report) -> RenderableType:
    """Return what a search found, what is proven, and how every device spends its time."""
    problem, timeline = result.problem, result.timeline
    lines = [
        ("status", _status(result)),
        ("objective", f"{problem.objective.value} {_time(problem, result.objective_ticks)}"),
        ("bound", f"{_time(problem, result.bound_ticks)}, gap {percent(result.gap)}"),
        *_measures(timeline),
        *_forms(result),
        ("source", result.source),
        ("published", _against(result)),
        ("checked", _checked(report)),
        ("search", f"{result.seconds:.1f} s" + (", interrupted" if result.interrupted else "")),
    ]
    return Group(
        _facts(problem.name, lines), "", devices(timeline), "", proof(result.proof, problem)
    )


def family_summary(candidate: Candidate, report: Report) -> RenderableType:
    """Return a family's schedule with the verdict on it."""
    problem = candidate.timeline.schedule.problem
    lines = [
        ("family", candidate.timeline.schedule.source or candidate.name),
        *_measures(candidate.timeline),
        ("checked", _checked(report)),
    ]
    return Group(_facts(problem.name, lines), "", devices(candidate.timeline))


def infeasible(error: NoScheduleError) -> RenderableType:
    """Return why no schedule exists and what limit would do."""
    unit = error.problem.memory.unit
    claim = certify_infeasible(error.problem, error.device, error.least)
    lines = [
        ("status", "infeasible: no order of the ops keeps the memory limits"),
        ("device", str(error.device)),
        ("limit", _with_unit(error.limit, unit)),
        ("least", f"{_with_unit(error.least, unit)} would do on this device"),
        ("why", str(error)),
        ("certificate", f"{claim.standing}: {claim.reason}"),
    ]
    return _facts(error.problem.name, lines)


def progress_line(state: Progress | None, problem: Problem, seconds_left: float) -> str:
    """Return one line on a search that runs."""
    left = f"{max(0.0, seconds_left):.0f} s left"
    if state is None or state.schedule.objective is None:
        return f"solving, {left}"
    objective, bound = state.schedule.objective, state.schedule.bound or 0
    gap = (objective - bound) / objective if objective else 0.0
    return (
        f"best {_time(problem, objective)}, bound {_time(problem, bound)}, "
        f"gap {percent(gap)}, {left}"
    )


def devices(timeline: Timeline) -> RenderableType:
    """Return how every device spends the makespan, and the most memory that it holds."""
    problem, peaks = timeline.schedule.problem, timeline.peak_memory
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("device", "work", "waiting", "transfer", "tail", "peak memory", "limit"):
        # A title is cut nowhere but between its words; what comes last takes a second line first.
        longest = max(map(len, title.split()))
        justify = "left" if title == "device" else "right"
        table.add_column(title, justify=justify, min_width=longest)
    table.add_column("peak at")
    for device, (bubble, peak) in enumerate(zip(timeline.bubbles, peaks, strict=True)):
        limit = problem.memory.limit[device]
        busy = timeline.makespan_ticks - bubble.total
        spent = (busy, bubble.waiting, bubble.transfer, bubble.tail)
        table.add_row(
            str(device),
            *(str(problem.time(ticks)) for ticks in spent),
            str(peak),
            "none" if limit is None else str(problem.amount(limit)),
            _peak_at(timeline, device),
            style="red" if limit is not None and peak > problem.amount(limit) else "",
        )
    return Group(table, _units(problem))


def proof(bounds: Sequence[Bound], problem: Problem) -> RenderableType:
    """Return the arguments that a bound rests on, the strongest first.

    Bounds that come to the same argument here stand in one row.
    """
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("proof", style="bold"))
    names: dict[tuple[int, str], list[str]] = {}
    for bound in bounds:
        names.setdefault((bound.ticks, bound.text), []).append(bound.name)
    for (ticks, argument), same in names.items():
        table.add_row(f"  {', '.join(same)}", _time(problem, ticks), argument)
    return table


def comparison_table(comparison: Comparison, result: Result | NoScheduleError) -> RenderableType:
    """Return every family and the solver side by side, and why a family is left out.

    Families that write the same order here, as with one chunk per device, stand in one row.
    """
    problem = comparison.problem
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("schedule", no_wrap=True)
    for title in ("makespan", "span", "bubble", "peak memory", "weights"):
        table.add_column(title, justify="right")
    table.add_column("limit", no_wrap=True)
    names = _same_orders(comparison.candidates)
    for candidate in comparison.candidates:
        if candidate.name not in names:
            continue
        timeline = candidate.timeline
        device = candidate.device_over_limit
        table.add_row(
            candidate.name,
            str(timeline.makespan),
            str(timeline.span),
            percent(timeline.bubble_ratio),
            str(max(timeline.peak_memory)),
            f"{candidate.weight_copies}x",
            "fits" if device is None else f"over, device {device}",
            style="" if candidate.fits else "dim",
        )
    parts: list[RenderableType] = [_title(problem.name), table, _units(problem), ""]
    parts.append(Text(_gain(comparison, result)))
    for name, others in names.items():
        if others:
            parts.append(Text(f"{name} here is also {', '.join(others)}"))
    if comparison.refused:
        parts += ["", Text("does not apply", style="bold")]
        parts += [Padding(Text(reason), (0, 0, 0, 2)) for _, reason in comparison.refused]
    return Group(*parts)


def verdict(report: Report, schedule: Schedule | Program) -> RenderableType:
    """Return whether a schedule is valid and, where it is not, what is wrong at which place."""
    problem = schedule.problem
    lines = [("verdict", "valid" if report.valid else f"not valid: {_checked(report)}")]
    if report.makespan is not None and report.span is not None:
        lines += [
            ("makespan", _with_unit(report.makespan, problem.time_unit)),
            ("span", _with_unit(report.span, problem.time_unit)),
        ]
    lines.append(("peak memory", _peaks(report, problem)))
    return Group(_facts(problem.name, lines), *faults(report.violations, schedule))


def percent(ratio: float) -> str:
    """Return a ratio in percent; what is not 0 never shows as 0."""
    if ratio and abs(ratio) < 0.0001:
        return "< 0.01 %"
    return f"{100 * ratio:.2f} %" if ratio else "0 %"


def _peaks(report: Report, problem: Problem) -> str:
    """Return what each device holds at most; of many devices, the least and the most."""
    peaks = report.peak_memory
    text = ", ".join(map(str, peaks))
    if len(text) <= 48:
        return f"{text}{_in(problem.memory.unit)}, by device"
    most = max(peaks)
    return f"{min(peaks)}..{most}{_in(problem.memory.unit)}, the most on device {peaks.index(most)}"


def _measures(timeline: Timeline) -> list[tuple[str, str]]:
    problem = timeline.schedule.problem
    return [
        ("makespan", _time(problem, timeline.makespan_ticks)),
        ("span", _time(problem, timeline.span_ticks)),
        (
            "bubble",
            f"{percent(timeline.bubble_ratio)} of all device time; "
            f"{percent(timeline.zb_bubble_ratio)} as the Zero Bubble paper counts it",
        ),
    ]


def _status(result: Result) -> str:
    objective = result.problem.objective.value
    if result.status is Status.OPTIMAL:
        return f"optimal: no valid schedule has a smaller {objective}"
    return f"feasible, not proven: a {objective} up to {percent(result.gap)} smaller may exist"


def _forms(result: Result) -> Iterator[tuple[str, str]]:
    """Yield how the backwards run, and what all in one form give, where that is a choice."""
    if result.problem.backward is not Backward.FREE:
        return
    chosen = result.backwards
    parts = [f"{chosen[Backward.FUSED]} fused, {chosen[Backward.SPLIT]} split"]
    for form in result.forms:
        proven = form.objective_ticks == form.bound_ticks
        time = _time(result.problem, form.objective_ticks)
        parts.append(f"all {form.backward.value}: {time}{' (optimal)' if proven else ''}")
    yield "backwards", "; ".join(parts)


def _against(result: Result) -> str:
    best = result.family_objective_ticks
    if result.family is None or best is None:
        return "no published schedule that fits this problem was built"
    published = f"{result.family} at {_time(result.problem, best)}"
    ratio = result.objective_ticks / best if best else 1.0
    found = f"this is {percent(1 - ratio)} below it" if ratio < 1 else "this is as good"
    return (
        f"never worse than a published schedule that fits; the best of them is {published}, {found}"
    )


def _gain(comparison: Comparison, result: Result | NoScheduleError) -> str:
    problem = comparison.problem
    if isinstance(result, NoScheduleError):
        return f"solve: {result}"
    bound = f"no schedule has a smaller {problem.objective.value} than {result.bound}"
    published = [c for c in comparison.candidates if c.fits and c.name != SOLVE]
    optimal = result.status is Status.OPTIMAL
    if not published:
        return f"{bound}; {'solve reaches it, and ' if optimal else ''}no published schedule fits"
    best = published[0]
    if best.objective_ticks == result.bound_ticks:
        return f"{bound}; {best.name} reaches it, so it is optimal"
    possible = percent(1 - result.bound_ticks / best.objective_ticks)
    if optimal:
        return f"{bound}; solve reaches it, so it is optimal: {possible} below {best.name}"
    return (
        f"{bound}: at most {possible} is to be gained over {best.name}, "
        f"and {percent(result.gap)} over solve"
    )


def _same_orders(candidates: Sequence[Candidate]) -> dict[str, list[str]]:
    """Return the first family of each order, with the names of those that write it, too."""
    names: dict[str, list[str]] = {}
    first: dict[object, str] = {}
    for candidate in candidates:
        if candidate.name == SOLVE:
            names[SOLVE] = []
            continue
        known = first.setdefault(candidate.timeline.schedule.rows, candidate.name)
        if known == candidate.name:
            names[known] = []
        else:
            names[known].append(candidate.name)
    return names


def _checked(report: Report) -> str:
    if report.valid:
        return "valid, by the independent verifier"
    rules = sorted({violation.rule for violation in report.violations})
    number = len(report.violations)
    return f"{number} violation{'s' if number > 1 else ''} of {', '.join(rules)}"


def _peak_at(timeline: Timeline, device: int) -> str:
    """Return the block that brings a device to its peak, and when."""
    curve = timeline.memory[device]
    tick, _ = max(curve, key=lambda point: point[1])
    for block, start in zip(timeline.schedule.rows[device], timeline.starts[device], strict=True):
        if start == tick and timeline.schedule.problem.change(block)[0]:
            name = f"{block.forward}+{block.backward}" if isinstance(block, Pair) else str(block)
            return f"{name}, {timeline.schedule.problem.time(tick)}"
    return ""


def _facts(title: str, lines: Sequence[tuple[str, str]]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    for name, value in lines:
        table.add_row(name, value)
    return Group(_title(title), table) if title else table


def _units(problem: Problem) -> Text:
    """Return what the numbers of a table are in."""
    time, memory = problem.time_unit, problem.memory.unit
    named = [f"times in {time}" if time else "", f"memory in {memory}" if memory else ""]
    return Text(", ".join(filter(None, named)), style="dim")


def _title(name: str) -> Text:
    return Text(name if name.isprintable() else ascii(name), style="bold underline")


def _time(problem: Problem, ticks: int) -> str:
    return _with_unit(problem.time(ticks), problem.time_unit)


def _with_unit(number: float, unit: str) -> str:
    return f"{number} {unit}".rstrip()


def _in(unit: str) -> str:
    return f" {unit}" if unit else ""
