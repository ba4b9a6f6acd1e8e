"""Files: problems as JSON or TOML, schedules as JSON or torch's CSV.

``load_problem(path)``, ``load_schedule(path)`` and ``save(value, path)`` are all that a caller
needs; the functions that return the text serve a caller who writes elsewhere.
"""

from pathlib import Path

from bubbleproof.schedules.files import AnyPath, Source, printable, read_source, write_file
from bubbleproof.schedules.markup import json_text, parse_json, parse_toml, toml_text
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.problem_words import problem_of_words, words_of_problem
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.schedule_words import schedule_of_words, words_of_schedule
from bubbleproof.schedules.torch_csv import compute_only_schedule, compute_only_text


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
            raise source.of("a problem is JSON or TOML, not CSV; give a .json or .toml file")
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


def load_schedule(path: AnyPath, problem: Problem | None = None) -> Schedule:
    """Read a schedule from a JSON file (``bubbleproof.schedule/1``) or torch's compute_only CSV.

    Parameters
    ----------
    path
        The file. A CSV has the extension ``.csv``, or does not start with ``{``.
    problem
        What the schedule is for. None: the problem in the JSON file; for a CSV, which has none,
        the least that explains its rows (``torch_csv.problem_of_rows``). Where it is given and
        differs from the file's, what the file claims to be proven is dropped.

    Raises
    ------
    ValueError
        If the file cannot be used: one line with its name, the line and column or the field, what
        is wrong and what would be right. An order that breaks a rule is no such error; ``verify``
        judges it.
    """
    source = read_source(path)
    match _form(path):
        case ".toml":
            raise source.of("a schedule is JSON or CSV, not TOML; give a .json or .csv file")
        case ".csv":
            return compute_only_schedule(source, problem)
        case ".json":
            words = parse_json(source)
        case _:
            if not _is_json(source):
                return compute_only_schedule(source, problem)
            words = parse_json(source)
    try:
        return schedule_of_words(words, problem)
    except ValueError as error:
        raise source.of(error) from None


def save(value: Problem | Schedule, path: AnyPath) -> None:
    """Write a problem (.json, .toml) or a schedule (.json, .csv for torch), whole or not at all.

    Raises
    ------
    ValueError
        If the extension is another one, the value has no exact text, or the file cannot be
        written.
    """
    form = _form(path)
    try:
        text = (
            problem_text(value, form) if isinstance(value, Problem) else schedule_text(value, form)
        )
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


def _form(path: AnyPath) -> str:
    return Path(path).suffix.lower()


def _is_json(source: Source) -> bool:
    return source.text.lstrip().startswith("{")
