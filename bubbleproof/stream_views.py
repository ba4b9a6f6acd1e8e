"""Schedules of streams and orders of pairs, as the command line shows and prints them."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bubbleproof.answers import Json
from bubbleproof.report import percent
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.stream_run import StreamTimeline, simulate_streams
from bubbleproof.schedules.streams import STREAMS, StreamSchedule
from bubbleproof.solver.block_order import PairOrder
from bubbleproof.solver.streams import StreamResult
from bubbleproof.verify.report import Report

_MOST_VIOLATIONS = 10


def answer_of(result: StreamResult) -> Json:
    """Return what a search over streams found and proved."""
    schedule, time = result.schedule, result.schedule.problem.time
    timeline = simulate_streams(schedule)
    mirrored = schedule.mirrored_bound
    return {
        "status": None if schedule.status is None else schedule.status.value,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "mirrored_bound": None if mirrored is None else time(mirrored),
        "makespan": timeline.makespan,
        "peak_memory": list(timeline.peak_memory),
        "busy": [
            dict(zip((s.value for s in STREAMS), each, strict=True)) for each in timeline.busy
        ],
        "seconds": round(result.seconds, 3),
        "source": schedule.source,
        "blocks": {
            "objective": result.blocks.objective,
            "bound": result.blocks.bound,
            "lost": result.lost_by_blocks,
            "surely_lost": result.surely_lost_by_blocks,
        },
    }


def summary(result: StreamResult, verdict: Report) -> RenderableType:
    """Return what was found, what is proven, and what blocks lose against it."""
    schedule, blocks = result.schedule, result.blocks
    lines = [
        ("status", _status(result)),
        ("makespan", _time(schedule.problem, result.objective)),
        ("bound", f"{_time(schedule.problem, result.bound)}, gap {percent(result.gap)}"),
        ("source", schedule.source),
        (
            "blocks",
            f"{_time(schedule.problem, blocks.objective)} at best known, bound {blocks.bound}: "
            f"whole blocks lose {percent(result.lost_by_blocks)}"
            f" (surely {percent(result.surely_lost_by_blocks)})",
        ),
        ("checked", "valid" if verdict.valid else f"{len(verdict.violations)} violations"),
        ("search", f"{result.seconds:.1f} s" + (", interrupted" if result.interrupted else "")),
    ]
    return Group(_facts(lines), "", _devices(simulate_streams(schedule)))


def progress_line(schedule: StreamSchedule | None, seconds_left: float) -> str:
    """Return one line on a search that runs."""
    left = f"{max(0.0, seconds_left):.0f} s left"
    if schedule is None or schedule.objective is None or schedule.bound is None:
        return f"solving blocks, {left}"
    time = schedule.problem.time
    return f"best {time(schedule.objective)}, bound {time(schedule.bound)}, {left}"


def verdict_on(schedule: StreamSchedule, verdict: Report) -> RenderableType:
    """Return a verdict with its first violations."""
    if verdict.makespan is None:
        lines = [("streams", "not valid")]
    else:
        lines = [
            ("streams", "valid" if verdict.valid else "not valid"),
            ("makespan", _time(schedule.problem, verdict.makespan)),
            ("span", _time(schedule.problem, verdict.span or 0)),
            ("peak memory", ", ".join(map(str, verdict.peak_memory))),
        ]
    return Group(_facts(lines), *_violations(verdict))


def orders_table(problem: Problem, orders: Sequence[PairOrder]) -> RenderableType:
    """Return for each order of a pair a table of its components, in the order of issue."""
    parts: list[RenderableType] = []
    time = problem.time
    for pair in orders:
        order = pair.order
        proof = f"proven: {order.bound_in_words}" if order.optimal else f"bound {time(order.bound)}"
        table = Table(box=None, pad_edge=False)
        table.add_column("issue", justify="right")
        table.add_column("component")
        table.add_column("layer", justify="right")
        table.add_column("stream")
        table.add_column("start", justify="right")
        table.add_column("end", justify="right")
        for number, ((part, layer), start, end) in enumerate(
            zip(order.places, order.starts, order.ends, strict=True)
        ):
            stream = part.stream.value
            table.add_row(
                str(number), part.value, str(layer), stream, str(time(start)), str(time(end))
            )
        lines = [
            ("pair", f"{_time(problem, time(order.ticks))}, {proof}"),
            ("published", f"{_time(problem, time(pair.published_ticks))} in DeepSeek's order"),
            ("where", "; ".join(_where(pair))),
        ]
        parts += [_facts(lines), "", table, ""]
    return Group(*parts[:-1])


def orders_answer(problem: Problem, orders: Sequence[PairOrder]) -> Json:
    """Return the same as one object."""
    time = problem.time
    return {
        "pairs": [
            {
                "time": time(pair.order.ticks),
                "bound": time(pair.order.bound),
                "published": time(pair.published_ticks),
                "where": [
                    {"device": device, "forward": forward, "backward": backward}
                    for device, forward, backward in pair.where
                ],
                "order": [
                    {
                        "component": part.value,
                        "layer": layer,
                        "stream": part.stream.value,
                        "start": time(start),
                        "end": time(end),
                    }
                    for (part, layer), start, end in zip(
                        pair.order.places, pair.order.starts, pair.order.ends, strict=True
                    )
                ],
            }
            for pair in orders
        ]
    }


def _where(pair: PairOrder) -> Iterator[str]:
    """Yield each device once, with the stages of its pairs."""
    by_device: dict[int, list[str]] = {}
    for device, forward, backward in pair.where:
        by_device.setdefault(device, []).append(f"F{forward} with B{backward}")
    for device, stages in by_device.items():
        yield f"device {device}: {', '.join(stages)}"


def _status(result: StreamResult) -> str:
    schedule = result.schedule
    if result.bound_ticks == result.objective_ticks:
        return "optimal"
    if result.mirrored_optimal:
        return "feasible; optimal among schedules with mirrored directions"
    if schedule.mirrored_bound is not None:
        bound = schedule.problem.time(schedule.mirrored_bound)
        return f"feasible; with mirrored directions none is below {bound}"
    return "feasible"


def _devices(timeline: StreamTimeline) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column("device", justify="right")
    for stream in STREAMS:
        table.add_column(f"{stream} busy", justify="right")
    table.add_column("peak memory", justify="right")
    for device, (busy, peak) in enumerate(zip(timeline.busy, timeline.peak_memory, strict=True)):
        table.add_row(str(device), *map(percent, busy), str(peak))
    return table


def _violations(verdict: Report) -> Iterator[RenderableType]:
    for violation in verdict.violations[:_MOST_VIOLATIONS]:
        yield Text.assemble((violation.rule, "bold red"), f"  {violation.message}")
    more = len(verdict.violations) - _MOST_VIOLATIONS
    if more > 0:
        yield Text(f"and {more} more; --json lists all")


def _facts(lines: Sequence[tuple[str, str]]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", min_width=len("peak memory"))
    for name, value in lines:
        table.add_row(name, value)
    return table


def _time(problem: Problem, number: int | float) -> str:
    return f"{number} {problem.time_unit}".rstrip()
