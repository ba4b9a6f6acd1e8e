"""A periodic schedule as a file (``bubbleproof.periodic/1``), and back, without loss.

A periodic program (``bubbleproof.periodic-program/1``) has the same fields; its rows hold messages,
groups and steps on weights as well.

The file's problem has the microbatches of the prologue and epilogue alone; rows are written as
those of a schedule, with microbatches counted within their chain.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from bubbleproof.schedules.files import AnyPath, read_source, write_file
from bubbleproof.schedules.markup import json_text, parse_json
from bubbleproof.schedules.ops import parse_block
from bubbleproof.schedules.periodic import Periodic
from bubbleproof.schedules.periodic_program import PeriodicProgram
from bubbleproof.schedules.problem import MOST_OPS, Problem
from bubbleproof.schedules.problem_words import problem_within, words_of_problem
from bubbleproof.schedules.program import parse_step
from bubbleproof.schedules.quantity import shown
from bubbleproof.schedules.words import count, fields, is_list, text

PERIODIC_FORMAT = "bubbleproof.periodic/1"
PERIODIC_PROGRAM_FORMAT = "bubbleproof.periodic-program/1"

Item = TypeVar("Item")
"""What a row holds: blocks, or any steps."""

_FIELDS = ("format", "problem", "source", "step", "prologue", "kernel", "epilogue")


def load_periodic(path: AnyPath) -> Periodic:
    """Read a periodic schedule from a JSON file.

    Raises
    ------
    ValueError
        If the file cannot be used: one line with its name, the line and column or the field, what
        is wrong and what would be right. Rows that break a rule are no such error.
    """
    source = read_source(path)
    words = parse_json(source)
    try:
        return periodic_of_words(words)
    except ValueError as error:
        raise source.of(error) from None


def save_periodic(periodic: Periodic | PeriodicProgram, path: AnyPath) -> None:
    """Write a periodic schedule or program as JSON, whole or not at all.

    Raises
    ------
    ValueError
        If a number of the problem has no exact text, or the file cannot be written.
    """
    write_file(path, json_text(words_of_periodic(periodic)).encode())


def words_of_periodic(periodic: Periodic | PeriodicProgram) -> dict[str, object]:
    """Return what a file says of a periodic schedule or program.

    Raises
    ------
    ValueError
        If a number of the problem has no finite decimal text.
    """
    words: dict[str, object] = {
        "format": PERIODIC_FORMAT if isinstance(periodic, Periodic) else PERIODIC_PROGRAM_FORMAT,
        "problem": words_of_problem(periodic.problem),
    }
    if periodic.source:
        words["source"] = text(periodic.source, "source")
    words["step"] = list(periodic.step)
    words["prologue"] = _texts(periodic.prologue)
    words["kernel"] = _texts(periodic.kernel)
    words["epilogue"] = _texts(periodic.epilogue)
    return words


def periodic_of_words(words: object) -> Periodic:
    """Read a periodic schedule from what a file says; one step stands for all chains.

    Raises
    ------
    ValueError
        If the format is another one, a part is missing, or there are not as many rows as devices
        or steps as chains; the message has the field.
    """
    given = fields(words, PERIODIC_FORMAT, _FIELDS, "a periodic schedule")
    problem, step = _problem_and_step(given)
    return Periodic(
        problem=problem,
        step=step,
        prologue=_rows(given.get("prologue"), "prologue", parse_block),
        kernel=_rows(given.get("kernel"), "kernel", parse_block),
        epilogue=_rows(given.get("epilogue"), "epilogue", parse_block),
        source=text(given.get("source", ""), "source"),
    )


def periodic_program_of_words(words: object) -> PeriodicProgram:
    """Read a periodic program from what a file says.

    Raises
    ------
    ValueError
        As ``periodic_of_words``.
    """
    given = fields(words, PERIODIC_PROGRAM_FORMAT, _FIELDS, "a periodic program")
    problem, step = _problem_and_step(given)
    return PeriodicProgram(
        problem=problem,
        step=step,
        prologue=_rows(given.get("prologue"), "prologue", parse_step),
        kernel=_rows(given.get("kernel"), "kernel", parse_step),
        epilogue=_rows(given.get("epilogue"), "epilogue", parse_step),
        source=text(given.get("source", ""), "source"),
    )


def _problem_and_step(given: Mapping[str, object]) -> tuple[Problem, tuple[int, ...]]:
    problem = problem_within(given)
    if problem is None:
        raise ValueError("problem is missing; put what the schedule is for into it")
    step = given.get("step", 1)
    if is_list(step):
        return problem, tuple(count(x, f"step[{i}]", 1, MOST_OPS) for i, x in enumerate(step))
    return problem, (count(step, "step", 1, MOST_OPS),) * len(problem.placement.chains)


def _texts(rows: Sequence[Sequence[object]]) -> list[list[str]]:
    return [list(map(str, row)) for row in rows]


def _rows(value: object, where: str, parse: Callable[[str], Item]) -> tuple[tuple[Item, ...], ...]:
    if not is_list(value):
        raise ValueError(
            f'{where}: a list with one row for each device is expected, as [["0F0", "0B0"], ...]'
        )
    return tuple(_row(row, f"{where}[{device}]", parse) for device, row in enumerate(value))


def _row(value: object, where: str, parse: Callable[[str], Item]) -> tuple[Item, ...]:
    if not is_list(value):
        raise ValueError(f"{where}: a list of ops is expected, not {shown(value)}")
    return tuple(_item(item, f"{where}[{index}]", parse) for index, item in enumerate(value))


def _item(value: object, where: str, parse: Callable[[str], Item]) -> Item:
    if not isinstance(value, str):
        raise ValueError(f"{where}: {shown(value)} is no op; write one, as 2F0")
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
