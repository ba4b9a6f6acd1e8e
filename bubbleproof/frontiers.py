"""What ``bubbleproof frontier`` shows: the memory-time curve as a table and as one object."""

import json
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bubbleproof.answers import Json
from bubbleproof.report import percent
from bubbleproof.schedules.curve import Frontier, Least, Point, Published
from bubbleproof.schedules.files import write_file
from bubbleproof.schedules.io import schedule_text
from bubbleproof.schedules.plot_curve import same_place
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.quantity import Number
from bubbleproof.schedules.schedule import Status


def progress_line(state: Frontier | None, seconds_left: float) -> str:
    """Return one line on a search that runs."""
    left = f"{max(0.0, seconds_left):.0f} s left"
    if state is None or not state.points:
        return f"looking for the ends of the curve, {left}"
    proven = sum(point.optimal for point in state.points)
    widest = max(point.gap for point in state.points)
    points = f"{len(state.points)} points, {proven} proven, widest gap {percent(widest)}"
    if state.least is None:
        return f"{points}, {left}"
    return f"{_found(state.least, state.problem)}, {left}"


def summary(frontier: Frontier) -> RenderableType:
    """Return the curve, the published schedules beside it, and what is proven of the whole."""
    problem = frontier.problem
    unit = [
        f"times in {problem.time_unit}" if problem.time_unit else "",
        f"memory in {problem.memory.unit}" if problem.memory.unit else "",
        f"{frontier.seconds:.1f} s" + (", interrupted" if frontier.interrupted else ""),
    ]
    parts: list[RenderableType] = [_points(frontier)]
    if frontier.published:
        parts += ["", _beside(frontier)]
    parts += ["", Text(_end(frontier))]
    if frontier.least is not None:
        parts.append(Text(answer(frontier.least, problem), style="bold"))
    parts.append(Text(", ".join(filter(None, unit)), style="dim"))
    if problem.name:
        name = problem.name if problem.name.isprintable() else ascii(problem.name)
        parts.insert(0, Text(name, style="bold underline"))
    return Group(*parts)


def answer(least: Least, problem: Problem) -> str:
    """Return the least memory for a bubble in a sentence, with what is proven of it."""
    objective = problem.objective.value
    asked = (
        f"at most {percent(least.most_bubble)} bubble, a {objective} up to "
        f"{problem.time(least.most_ticks)}"
    )
    if least.hopeless:
        return f"{asked}: proven that no memory does"
    below = with_unit(problem.amount(least.short_below), problem)
    if least.point is None:
        return f"{asked}: nothing found; below {below} it is proven that nothing does"
    found = f"{asked}: memory {with_unit(least.point.memory, problem)} does"
    if least.exact:
        return f"{found}, and it is proven that less does not"
    return f"{found}; below {below} it is proven that nothing does, between is open"


def with_unit(memory: Number, problem: Problem) -> str:
    """Return an amount of memory with the problem's unit."""
    return f"{memory} {problem.memory.unit}".rstrip()


def answer_of(frontier: Frontier) -> Json:
    """Return the object that ``--json`` prints."""
    problem = frontier.problem
    return {
        "problem": problem.name,
        "minimized": problem.objective.value,
        "complete": frontier.complete,
        "bound": problem.time(frontier.bound_ticks),
        "points": [_point(point) for point in frontier.points],
        "floors": [
            {"below": problem.amount(limit), "bound": problem.time(ticks)}
            for limit, ticks in frontier.floors
        ],
        "published": [_published(frontier, family) for family in frontier.published],
        "least": None if frontier.least is None else _least(frontier.least, problem),
        "seconds": round(frontier.seconds, 3),
        "interrupted": frontier.interrupted,
    }


def answer_text(frontier: Frontier) -> str:
    """Return the same as the text of a file."""
    return json.dumps(answer_of(frontier), allow_nan=False, indent=1) + "\n"


def write_schedules(frontier: Frontier, folder: Path) -> None:
    """Write the schedule of every point into a folder, named by its memory.

    Raises
    ------
    ValueError
        If nothing can be written there.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder}: no such folder can be made: {error.strerror}") from error
    for point in frontier.points:
        text = schedule_text(point.schedule)
        write_file(folder / f"memory-{point.memory}.json", text.encode())


def _points(frontier: Frontier) -> RenderableType:
    objective = frontier.problem.objective.value
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("memory", objective, "bubble", "bound", "gap"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("source")
    for point in frontier.points:
        table.add_row(
            str(point.memory),
            str(point.objective),
            percent(_bubble(point)),
            str(point.bound),
            percent(point.gap),
            _status(point).value,
            point.schedule.source.split(" (")[0],
        )
    return table


def _beside(frontier: Frontier) -> RenderableType:
    problem = frontier.problem
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("published")
    for title in ("memory", problem.objective.value, "solve there", "less by"):
        table.add_column(title, justify="right", no_wrap=True)
    for (limit, ticks), names in same_place(frontier.published):
        best = frontier.within(limit)
        there = ticks if best is None else best.objective_ticks
        table.add_row(
            ", ".join(names),
            str(problem.amount(limit)),
            str(problem.time(ticks)),
            str(problem.time(there)),
            percent(1 - there / ticks if ticks else 0.0),
        )
    return table


def _end(frontier: Frontier) -> str:
    problem = frontier.problem
    objective, bound = problem.objective.value, problem.time(frontier.bound_ticks)
    last = frontier.points[-1]
    if last.objective_ticks == frontier.bound_ticks:
        return (
            f"more memory than {with_unit(last.memory, problem)} gains nothing: no schedule has a "
            f"{objective} below {bound}"
        )
    gain = percent((last.objective_ticks - frontier.bound_ticks) / last.objective_ticks)
    return f"no schedule has a {objective} below {bound}: more memory may gain up to {gain}"


def _found(least: Least, problem: Problem) -> str:
    below = problem.amount(least.short_below)
    if least.point is None:
        return f"least memory from {below} on, none known"
    return f"least memory between {below} and {least.point.memory}"


def _status(point: Point) -> Status:
    return Status.OPTIMAL if point.optimal else Status.FEASIBLE


def _bubble(point: Point) -> float:
    """Return the bubble that the objective is about: see ``frontier``'s ``max_bubble``."""
    line = point.timeline
    makespan = line.schedule.problem.objective.value == "makespan"
    return line.bubble_ratio if makespan else line.zb_bubble_ratio


def _point(point: Point) -> Json:
    line, problem = point.timeline, point.schedule.problem
    return {
        "memory": point.memory,
        "limit": [None if limit is None else problem.amount(limit) for limit in _limits(point)],
        "status": _status(point).value,
        "objective": point.objective,
        "bound": point.bound,
        "gap": point.gap,
        "makespan": line.makespan,
        "span": line.span,
        "bubble_ratio": line.bubble_ratio,
        "zb_bubble_ratio": line.zb_bubble_ratio,
        "peak_memory": line.peak_memory,
        "source": point.schedule.source,
    }


def _limits(point: Point) -> tuple[int | None, ...]:
    return point.schedule.problem.memory.limit


def _published(frontier: Frontier, family: Published) -> Json:
    problem = frontier.problem
    best = frontier.within(family.limit)
    return {
        "name": family.name,
        "memory": problem.amount(family.limit),
        "objective": problem.time(family.objective_ticks),
        "best_within": None if best is None else best.objective,
    }


def _least(least: Least, problem: Problem) -> Json:
    return {
        "max_bubble": least.most_bubble,
        "objective_up_to": problem.time(least.most_ticks),
        "memory": None if least.point is None else least.point.memory,
        "proven_short_below": None if least.hopeless else problem.amount(least.short_below),
        "exact": least.exact,
    }
