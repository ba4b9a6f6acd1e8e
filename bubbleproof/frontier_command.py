"""The command ``frontier``: memory against time."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, Token

from bubbleproof.arguments import AsJson, ProblemFile, Seed, TimeLimit, Workers, whole
from bubbleproof.steps import (
    FINE,
    INTERRUPTED,
    NO,
    Refusal,
    read_problem,
    require_folder,
    require_place,
    usable,
)
from bubbleproof.terminal import put, put_json, say, shown, terminable

if TYPE_CHECKING:
    from bubbleproof.schedules.curve import Frontier
    from bubbleproof.schedules.problem import Problem

FORMS = (".svg", ".png", ".pdf", ".json")


def _ratio(_: object, tokens: Sequence[Token]) -> float:
    """Accept a bubble as 2% or 0.02; a 2 alone may mean either and is refused."""
    from decimal import Decimal, InvalidOperation

    text = tokens[0].value
    number = text.strip().removesuffix("%")
    try:
        ratio = Decimal(number) / (100 if number != text.strip() else 1)
    except InvalidOperation:
        ratio = Decimal("NaN")
    if not (ratio.is_finite() and 0 <= ratio < 1):
        raise ValueError(f"{text!a} is no bubble; write one below 100 %, as 2% or 0.02")
    return float(ratio)


Points = Annotated[int, whole(2, 1000), Parameter(help="The most memory limits that are tried.")]
MaxBubble = Annotated[
    float | None,
    Parameter(
        name="--max-bubble",
        converter=_ratio,
        help="Ask for the least memory with at most this bubble, as 2%: of all device time for a "
        "makespan, and for a span as the Zero Bubble paper counts it.",
    ),
]
CurveFile = Annotated[
    Path | None,
    Parameter(name=["--output", "-o"], help="A picture (.svg, .png, .pdf) or .json of the curve."),
]
SchedulesFolder = Annotated[
    Path | None,
    Parameter(name="--schedules", help="Write the schedule of each point into this folder."),
]


def frontier(
    problem: ProblemFile,
    /,
    *,
    output: CurveFile = None,
    schedules: SchedulesFolder = None,
    time_limit: TimeLimit = 60.0,
    points: Points = 16,
    max_bubble: MaxBubble = None,
    workers: Workers = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Show the least time for each memory limit, from the least limit that can do.

    The problem's limits only say how those of the devices compare. Published schedules stand
    beside the curve. Ctrl-C ends the search and shows what there is.
    """
    from bubbleproof import frontiers
    from bubbleproof.schedules.files import write_file

    asked = read_problem(problem)
    if output is not None:
        require_place(output, FORMS, problem)
    if schedules is not None:
        require_folder(schedules)
    found = _search(
        asked,
        time_limit=time_limit,
        points=points,
        max_bubble=max_bubble,
        workers=workers,
        seed=seed,
    )
    if not found.points:
        say("interrupted before anything was found")
        return INTERRUPTED
    with usable():
        if schedules is not None:
            frontiers.write_schedules(found, schedules)
        if output is not None and output.suffix.lower() == ".json":
            write_file(output, frontiers.answer_text(found).encode())
    if output is not None and output.suffix.lower() != ".json":
        _draw(found, output)
    if as_json:
        put_json(frontiers.answer_of(found))
    else:
        put(frontiers.summary(found))
    for written in (schedules, output):
        if written is not None:
            say(f"written: {written}")
    if found.interrupted:
        return INTERRUPTED
    return NO if found.least is not None and found.least.point is None else FINE


def _search(
    problem: "Problem",
    *,
    time_limit: float,
    points: int,
    max_bubble: float | None,
    workers: int | None,
    seed: int,
) -> "Frontier":
    """Find the curve, and show the progress where someone can see it."""
    from bubbleproof import frontiers
    from bubbleproof.solver.frontier import frontier as search

    latest: list[Frontier] = []
    end = time.monotonic() + time_limit

    def improved(state: "Frontier") -> None:
        latest[:] = [state]

    def line() -> str:
        return frontiers.progress_line(latest[0] if latest else None, end - time.monotonic())

    with terminable(), shown(line), usable():
        return search(
            problem,
            time_limit_s=time_limit,
            points=points,
            max_bubble=max_bubble,
            workers=workers,
            seed=seed,
            on_progress=improved,
        )


def _draw(found: "Frontier", output: Path) -> None:
    from bubbleproof.schedules.plot_curve import plot_frontier

    try:
        with usable():
            plot_frontier(found, output)
    except ModuleNotFoundError as error:
        raise Refusal(f"{output}: {error}, or name it .json") from error
