"""A periodic schedule as a file (``bubbleproof.periodic/1``), and back, without loss.

The file's problem has the microbatches of the prologue and epilogue alone; rows are written as
those of a schedule, with microbatches counted within their chain.
"""

from bubbleproof.schedules.files import AnyPath, read_source, write_file
from bubbleproof.schedules.markup import json_text, parse_json
from bubbleproof.schedules.ops import Block, Row, parse_block
from bubbleproof.schedules.periodic import Periodic
from bubbleproof.schedules.problem import MOST_OPS
from bubbleproof.schedules.problem_words import problem_of_words, words_of_problem
from bubbleproof.schedules.quantity import shown
from bubbleproof.schedules.words import count, fields, is_list, text

PERIODIC_FORMAT = "bubbleproof.periodic/1"

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


def save_periodic(periodic: Periodic, path: AnyPath) -> None:
    """Write a periodic schedule as JSON, whole or not at all.

    Raises
    ------
    ValueError
        If a number of the problem has no exact text, or the file cannot be written.
    """
    write_file(path, json_text(words_of_periodic(periodic)).encode())


def words_of_periodic(periodic: Periodic) -> dict[str, object]:
    """Return what a file says of a periodic schedule.

    Raises
    ------
    ValueError
        If a number of the problem has no finite decimal text.
    """
    words: dict[str, object] = {
        "format": PERIODIC_FORMAT,
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
    if given.get("problem") is None:
        raise ValueError("problem is missing; put what the schedule is for into it")
    try:
        problem = problem_of_words(given["problem"])
    except ValueError as error:
        raise ValueError(f"in problem: {error}") from None
    step = given.get("step", 1)
    if is_list(step):
        each = tuple(count(item, f"step[{i}]", 1, MOST_OPS) for i, item in enumerate(step))
    else:
        each = (count(step, "step", 1, MOST_OPS),) * len(problem.placement.chains)
    return Periodic(
        problem=problem,
        step=each,
        prologue=_rows(given.get("prologue"), "prologue"),
        kernel=_rows(given.get("kernel"), "kernel"),
        epilogue=_rows(given.get("epilogue"), "epilogue"),
        source=text(given.get("source", ""), "source"),
    )


def _texts(rows: tuple[Row, ...]) -> list[list[str]]:
    return [list(map(str, row)) for row in rows]


def _rows(value: object, where: str) -> tuple[Row, ...]:
    if not is_list(value):
        raise ValueError(
            f'{where}: a list with one row for each device is expected, as [["0F0", "0B0"], ...]'
        )
    return tuple(_row(row, f"{where}[{device}]") for device, row in enumerate(value))


def _row(value: object, where: str) -> Row:
    if not is_list(value):
        raise ValueError(f"{where}: a list of ops is expected, not {shown(value)}")
    return tuple(_block(item, f"{where}[{index}]") for index, item in enumerate(value))


def _block(value: object, where: str) -> Block:
    if not isinstance(value, str):
        raise ValueError(f"{where}: {shown(value)} is no op; write one, as 2F0")
    try:
        return parse_block(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
