"""Files: problems as JSON or TOML, schedules and programs as JSON or torch's CSV.

``load_problem(path)``, ``load_schedule(path)``, ``load_program(path)`` and ``save(value, path)``
are all that a caller needs; the functions that return the text serve a caller who writes elsewhere.
"""

from pathlib import Path

from bubbleproof.schedules.files import AnyPath, Source, printable, read_source, write_file
from bubbleproof.schedules.markup import json_text, parse_json, parse_toml, toml_text
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.problem_words import problem_of_words, words_of_problem
from bubbleproof.schedules.program import Program, schedule_of
from bubbleproof.schedules.program_words import (
    PROGRAM_FORMAT,
    program_of_words,
    words_of_program,
)
from bubbleproof.schedules.schedule import Schedule, require_schedule
from bubbleproof.schedules.schedule_words import schedule_of_words, words_of_schedule
from bubbleproof.schedules.torch_comms import (
    compute_comms_program,
    compute_comms_text,
    has_communication,
)
from bubbleproof.schedules.torch_csv import compute_only_schedule, compute_only_text
from bubbleproof.schedules.words import is_object


def load_problem(path: AnyPath) -> Problem:
    """Read a problem from a JSON or TOML file (``bubbleproof.problem/1``).

    The extension decides which it is; without a known one a text that starts with ``{`` is JSON.

    Raises
    ------
    ValueError
        If the file cannot be used: one line with its name, the line and column or the field, what
        is wrong and what would be right.
    """
    source = read_source(path)
    match _form(path):
        case ".csv":
            raise source.of(
                "a problem is JSON or TOML, not CSV; a schedule goes to verify, show or export"
            )
        case ".toml":
            words: object = parse_toml(source)
        case ".json":
            words = parse_json(source)
        case _:
            words = parse_json(source) if _is_json(source) else parse_toml(source)
    try:
        return problem_of_words(words)
    except ValueError as error:
        raise source.of(error) from None


def load_schedule(
    path: AnyPath, problem: Problem | None = None, *, order_only: bool = False
) -> Schedule:
    """Read a schedule from a JSON file (``bubbleproof.schedule/1``) or torch's CSV.

    Where the file is a program (``bubbleproof.program/1``, or a compute_comms CSV), the schedule
    is what it computes, in its order.

    Parameters
    ----------
    path
        The file. A CSV has the extension ``.csv``, or does not start with ``{``.
    problem
        What the schedule is for. None: the problem in the JSON file; for a CSV, which has none,
        the least that explains its rows (``torch_csv.problem_of_rows``). Where it is given and
        differs from the file's, what the file claims to be proven is dropped.
    order_only
        Whether the file's starts, and what it claims of them, are dropped: how long does this
        order take with other times?

    Raises
    ------
    ValueError
        If the file cannot be used: one line with its name, the line and column or the field, what
        is wrong and what would be right. An order that breaks a rule is no such error; ``verify``
        judges it.
    """
    loaded = load_schedule_or_program(path, problem, order_only=order_only)
    return schedule_of(loaded) if isinstance(loaded, Program) else loaded


def load_program(path: AnyPath, problem: Problem | None = None) -> Program:
    """Read a program from a JSON file (``bubbleproof.program/1``) or torch's compute_comms CSV.

    Parameters
    ----------
    path, problem
        As ``load_schedule`` takes them.

    Raises
    ------
    ValueError
        If the file cannot be used, as ``load_schedule`` says it; a schedule is refused, too, since
        ``lower`` makes its program. Messages that do not fit together are no such error.
    """
    loaded = load_schedule_or_program(path, problem)
    if isinstance(loaded, Schedule):
        raise ValueError(
            f"{printable(path)}: a schedule without messages or steps on weights; "
            "lower it to get a program, or give a program"
        )
    return loaded


def load_schedule_or_program(
    path: AnyPath, problem: Problem | None = None, *, order_only: bool = False
) -> Schedule | Program:
    """Read whichever of the two a file is; a CSV is a program if anything in it is communication.

    Parameters
    ----------
    path, problem, order_only
        As ``load_schedule`` takes them.

    Raises
    ------
    ValueError
        If the file cannot be used, as ``load_schedule`` says it.
    """
    source = read_source(path)
    form = _form(path)
    if form == ".toml":
        raise source.of(
            "a schedule is JSON or CSV, not TOML; a problem goes to solve, family or compare"
        )
    if form == ".csv" or (form != ".json" and not _is_json(source)):
        if has_communication(source):
            return compute_comms_program(source, problem)
        return compute_only_schedule(source, problem)
    words = parse_json(source)
    try:
        if is_object(words) and words.get("format") == PROGRAM_FORMAT:
            return program_of_words(words, problem)
        return schedule_of_words(words, problem, order_only=order_only)
    except ValueError as error:
        raise source.of(error) from None


def save(value: Problem | Schedule | Program, path: AnyPath) -> None:
    """Write a problem (.json, .toml), a schedule or a program (.json, .csv for torch) whole.

    A file is written or stays as it was, but never half.

    Raises
    ------
    ValueError
        If the extension is another one, the value has no exact text, or the file cannot be
        written.
    TypeError
        If the value is something else, as the Result that has a schedule.
    """
    if not isinstance(value, Problem | Program):
        require_schedule(value)
    form = _form(path)
    try:
        match value:
            case Problem():
                text = problem_text(value, form)
            case Schedule():
                text = schedule_text(value, form)
            case Program():
                text = program_text(value, form)
    except ValueError as error:
        raise ValueError(f"{printable(path)}: {error}") from None
    write_file(path, text.encode())


def problem_text(problem: Problem, form: str = ".json") -> str:
    """Return a problem as the text of a file with the extension ``form``: .json or .toml.

    Reading it gives an equal problem. Where a Cost or Memory was built with more ticks or grains
    per unit than its numbers need, they come back with the least.

    Raises
    ------
    ValueError
        If a time or amount has no finite decimal text, as 1/3, or the form is another one.
    """
    match form:
        case ".json":
            return json_text(words_of_problem(problem))
        case ".toml":
            return toml_text(words_of_problem(problem))
        case _:
            raise ValueError(f"a problem is written as .json or .toml, not {form!a}")


def schedule_text(schedule: Schedule, form: str = ".json") -> str:
    """Return a schedule as the text of a file with the extension ``form``: .json or .csv (torch).

    Reading the JSON gives an equal schedule; the CSV has the order alone.

    Raises
    ------
    ValueError
        If a number has no finite decimal text, the rows do not fit the problem, or the form is
        another one.
    """
    match form:
        case ".json":
            return json_text(words_of_schedule(schedule))
        case ".csv":
            return compute_only_text(schedule)
        case _:
            raise ValueError(f"a schedule is written as .json or .csv, not {form!a}")


def program_text(program: Program, form: str = ".json") -> str:
    """Return a program as the text of a file with the extension ``form``: .json or .csv (torch).

    Reading the JSON gives an equal program; the CSV has its steps alone, and no groups.

    Raises
    ------
    ValueError
        If a number has no finite decimal text, the rows do not fit the problem, torch cannot run
        the placement (.csv), or the form is another one.
    """
    match form:
        case ".json":
            return json_text(words_of_program(program))
        case ".csv":
            return compute_comms_text(program)
        case _:
            raise ValueError(f"a program is written as .json or .csv, not {form!a}")


def _form(path: AnyPath) -> str:
    return Path(path).suffix.lower()


def _is_json(source: Source) -> bool:
    return source.text.lstrip().startswith("{")
