"""A program as the words of a file (``bubbleproof.program/1``), and back, without loss."""

from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.problem_words import problem_within, words_of_problem
from bubbleproof.schedules.program import Program, Step, parse_step
from bubbleproof.schedules.quantity import shown
from bubbleproof.schedules.schedule import require_all_rows
from bubbleproof.schedules.words import fields, is_list, text

PROGRAM_FORMAT = "bubbleproof.program/1"

_FIELDS = ("format", "problem", "source", "rows")


def words_of_program(program: Program) -> dict[str, object]:
    """Return what a file says of a program: its problem, and rows of steps as text.

    Raises
    ------
    ValueError
        If there is not one row for each device, or a number of the problem has no finite decimal
        text.
    """
    require_all_rows(program.problem, program.rows)
    words: dict[str, object] = {
        "format": PROGRAM_FORMAT,
        "problem": words_of_problem(program.problem),
    }
    if program.source:
        words["source"] = text(program.source, "source")
    words["rows"] = [list(map(str, row)) for row in program.rows]
    return words


def program_of_words(words: object, problem: Problem | None = None) -> Program:
    """Read a program from what a file says, for its own problem or a given one.

    Raises
    ------
    ValueError
        If the format is another one, or the rows are no rows of steps for the problem's devices;
        the message has the field.
    """
    given = fields(words, PROGRAM_FORMAT, _FIELDS, "a program")
    if problem is None:
        problem = problem_within(given)
    if problem is None:
        raise ValueError("problem is missing; put what the program is for into it, or give it")
    rows = given.get("rows")
    if not is_list(rows):
        raise ValueError(
            'rows: a list with one row for each device is expected, as [["0F0", "0SEND_F0"], ...]'
        )
    program = Program(
        problem=problem,
        rows=tuple(_row(row, device) for device, row in enumerate(rows)),
        source=text(given.get("source", ""), "source"),
    )
    require_all_rows(problem, program.rows)
    return program


def _row(value: object, device: int) -> tuple[Step, ...]:
    if not is_list(value):
        raise ValueError(f"rows[{device}]: a list of steps is expected, not {shown(value)}")
    return tuple(_step(item, f"rows[{device}][{index}]") for index, item in enumerate(value))


def _step(value: object, where: str) -> Step:
    if not isinstance(value, str):
        raise ValueError(f"{where}: {shown(value)} is no step; write one, as 2F0 or 0SEND_F1")
    try:
        return parse_step(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
