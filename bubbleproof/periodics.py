"""What ``bubbleproof verify --all-n`` decides: a schedule's repeating middle, for every n."""

from dataclasses import replace
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from bubbleproof import answers, report
from bubbleproof.answers import Json
from bubbleproof.schedules.files import read_source
from bubbleproof.schedules.io import load_schedule
from bubbleproof.schedules.markup import parse_json
from bubbleproof.schedules.periodic import Periodic
from bubbleproof.schedules.periodic_search import periodic_of
from bubbleproof.schedules.periodic_words import PERIODIC_FORMAT, periodic_of_words
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.words import is_object
from bubbleproof.verify.every_n import EveryN


def load(path: Path, problem: Problem | None) -> Periodic | Schedule:
    """Read a periodic schedule, or a schedule in which one may be found.

    What comes through a pipe can be read once only, and is taken for a schedule.

    Raises
    ------
    ValueError
        If the file cannot be used, or is periodic and so has a problem of its own number of
        microbatches beside the one that is given.
    """
    if not path.is_file():
        return load_schedule(path, problem)
    source = read_source(path)
    words = parse_json(source) if source.text.lstrip().startswith("{") else None
    if not is_object(words) or words.get("format") != PERIODIC_FORMAT:
        return load_schedule(path, problem)
    if problem is not None:
        raise source.of("a periodic schedule is judged on its own problem; leave --problem out")
    try:
        return periodic_of_words(words)
    except ValueError as error:
        raise source.of(error) from None


def found(schedule: Schedule) -> Periodic | None:
    """Return the repeating middle of a valid schedule, if it has one; as its order runs."""
    return periodic_of(replace(schedule, starts=None))


def numbers(verdict: EveryN) -> str:
    """Return for which n a verdict is: ``n >= 4``, or ``n = 4, 6, 8, ...``."""
    if verdict.period == 1:
        return f"n >= {verdict.first}"
    first = [verdict.first + turn * verdict.period for turn in range(3)]
    return f"n = {', '.join(map(str, first))}, ..."


def summary(verdict: EveryN, periodic: Periodic) -> RenderableType:
    """Return the verdict with the kernel that it rests on, or where a rule is broken first."""
    if not verdict.valid:
        lines: list[RenderableType] = [
            Text(f"not valid for every {numbers(verdict)}: broken at n = {verdict.failing}", "bold")
        ]
        if verdict.cycle:
            lines.append(Text(f"these wait for each other in turn: {', '.join(verdict.cycle)}"))
        return Group(*lines, report.verdict(verdict.report, verdict.judged))
    lines = [Text(f"valid for every {numbers(verdict)}", "bold")]
    lines.append(
        Text(
            f"by induction: {verdict.unrolled} unrollings judged, n = {verdict.first} to "
            f"{verdict.first + (verdict.unrolled - 1) * verdict.period}, and no longer one can "
            "differ"
        )
    )
    lines.append(Text(f"kernel, {', '.join(map(str, periodic.step))} a repetition in each chain:"))
    for device, row in enumerate(periodic.kernel):
        lines.append(Text(f"  {device}  {' '.join(map(str, row))}", no_wrap=True, overflow="fold"))
    return Group(*lines)


def answer_of(verdict: EveryN) -> Json:
    """Return the object that ``--json`` prints."""
    return {
        "valid": verdict.valid,
        "first": verdict.first,
        "period": verdict.period,
        "unrolled": verdict.unrolled,
        "cycle": list(verdict.cycle),
        "failing": verdict.failing,
        "report": answers.of_report(verdict.report),
    }
