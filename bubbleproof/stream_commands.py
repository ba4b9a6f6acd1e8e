"""The command ``overlap``, and what ``solve --streams`` and ``verify`` do with streams."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from bubbleproof.arguments import AsJson, ProblemFile
from bubbleproof.steps import FINE, INTERRUPTED, NO, read_problem, usable
from bubbleproof.terminal import put, put_json, say, shown, terminable

if TYPE_CHECKING:
    from bubbleproof.schedules.problem import Problem
    from bubbleproof.schedules.streams import StreamSchedule


def overlap(problem: ProblemFile, /, *, as_json: AsJson = False) -> int:
    """Show in which order a pair's components are issued so that it takes least, with proof.

    For problems whose cost has components: attention, MLP, all-to-alls, each on its stream.
    """
    from bubbleproof import stream_views
    from bubbleproof.solver.block_order import pair_orders

    asked = read_problem(problem)
    with usable(f"{problem}: "):
        orders = pair_orders(asked)
    if as_json:
        put_json(stream_views.orders_answer(asked, orders))
    else:
        put(stream_views.orders_table(asked, orders))
    return FINE


def solved_in_streams(
    file: Path,
    problem: "Problem",
    output: Path | None,
    *,
    time_limit: float,
    workers: int | None,
    seed: int,
    asymmetric: bool,
    as_json: bool,
) -> int:
    """Order all components on the streams, judge that, and write it."""
    from bubbleproof import stream_views
    from bubbleproof.schedules.stream_words import save_streams
    from bubbleproof.solver.streams import solve_streams
    from bubbleproof.verify.streams import verify_streams

    best: list[StreamSchedule] = []

    def improved(schedule: "StreamSchedule", _: float) -> None:
        best[:] = [schedule]

    end = time.monotonic() + time_limit

    def line() -> str:
        return stream_views.progress_line(best[0] if best else None, end - time.monotonic())

    with terminable(), shown(line), usable(f"{file}: "):
        result = solve_streams(
            problem,
            time_limit_s=time_limit,
            workers=workers,
            seed=seed,
            asymmetric=asymmetric,
            on_progress=improved,
        )
    if output is not None:
        with usable():
            save_streams(result.schedule, output)
    verdict = verify_streams(result.schedule)
    if as_json:
        put_json(stream_views.answer_of(result))
    else:
        put(stream_views.summary(result, verdict))
        hint = "to keep the schedule: bubbleproof solve --streams ... -o streams.json"
        say(hint if output is None else f"written: {output}")
    if result.interrupted:
        return INTERRUPTED
    if not verdict.valid:
        put(stream_views.verdict_on(result.schedule, verdict), error=True)
        return NO
    return FINE


def verified_streams(file: Path, problem: Path | None, *, as_json: bool) -> int:
    """Judge a schedule of streams."""
    from bubbleproof import answers, stream_views
    from bubbleproof.schedules.stream_words import load_streams
    from bubbleproof.verify.streams import verify_streams

    asked = None if problem is None else read_problem(problem)
    with usable():
        schedule = load_streams(file, asked)
    verdict = verify_streams(schedule)
    if as_json:
        put_json(answers.of_report(verdict))
    else:
        put(stream_views.verdict_on(schedule, verdict))
    return FINE if verdict.valid else NO
