"""A schedule of components as the words of a file (``bubbleproof.streams/1``), and back."""

from pathlib import Path

from bubbleproof.schedules.files import AnyPath, read_source, write_file
from bubbleproof.schedules.markup import json_text, parse_json
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.problem_words import problem_within, words_of_problem
from bubbleproof.schedules.quantity import LARGEST, shown
from bubbleproof.schedules.schedule import Status
from bubbleproof.schedules.streams import (
    STREAMS,
    Component,
    StreamSchedule,
    parse_component,
    require_stream_rows,
)
from bubbleproof.schedules.words import (
    Words,
    amount,
    choice,
    count,
    fields,
    is_list,
    is_object,
    known,
    text,
    whole_ticks,
)

STREAMS_FORMAT = "bubbleproof.streams/1"

_FIELDS = (
    "format",
    "problem",
    "source",
    "status",
    "objective",
    "bound",
    "mirrored_bound",
    "rows",
    "starts",
)


def holds_streams(path: AnyPath) -> bool:
    """Whether a file is a schedule of components; a pipe, which can be read once only, is none."""
    if not Path(path).is_file():
        return False
    source = read_source(path)
    if STREAMS_FORMAT not in source.text:
        return False
    words = parse_json(source)
    return is_object(words) and words.get("format") == STREAMS_FORMAT


def load_streams(path: AnyPath, problem: Problem | None = None) -> StreamSchedule:
    """Read a schedule of components from a JSON file, for its own problem or a given one.

    Raises
    ------
    ValueError
        If the file cannot be used: one line with its name, the place, what is wrong and what would
        be right. What breaks a rule is no such error; ``verify_streams`` judges it.
    """
    source = read_source(path)
    words = parse_json(source)
    try:
        return streams_of_words(words, problem)
    except ValueError as error:
        raise source.of(error) from None


def save_streams(schedule: StreamSchedule, path: AnyPath) -> None:
    """Write a schedule of components into a JSON file.

    Raises
    ------
    ValueError
        If its rows do not fit its problem, or the file cannot be written.
    """
    write_file(path, json_text(words_of_streams(schedule)).encode())


def words_of_streams(schedule: StreamSchedule) -> dict[str, object]:
    """Return what a file says of a schedule of components.

    Raises
    ------
    ValueError
        If the rows do not fit the problem, or a number has no finite decimal text.
    """
    problem = schedule.problem
    require_stream_rows(problem, schedule.rows)
    words: dict[str, object] = {"format": STREAMS_FORMAT, "problem": words_of_problem(problem)}
    if schedule.source:
        words["source"] = text(schedule.source, "source")
    if schedule.status is not None:
        words["status"] = schedule.status.value
    per_unit = problem.cost.ticks_per_unit
    for name, ticks in (
        ("objective", schedule.objective),
        ("bound", schedule.bound),
        ("mirrored_bound", schedule.mirrored_bound),
    ):
        if ticks is not None:
            words[name] = amount(ticks, per_unit, name)
    words["rows"] = [
        {stream.value: list(map(str, row)) for stream, row in zip(STREAMS, device, strict=True)}
        for device in schedule.rows
    ]
    if schedule.starts is not None:
        words["starts"] = [
            {
                stream.value: [amount(tick, per_unit, "starts") for tick in row]
                for stream, row in zip(STREAMS, device, strict=True)
            }
            for device in schedule.starts
        ]
    return words


def streams_of_words(words: object, problem: Problem | None = None) -> StreamSchedule:
    """Read a schedule of components from what a file says.

    Where a problem is given that differs from the file's own, what the file claims is dropped.

    Raises
    ------
    ValueError
        If the format is another one, or the rows and starts do not fit the problem's devices.
    """
    given = fields(words, STREAMS_FORMAT, _FIELDS, "a schedule of streams")
    own = problem_within(given)
    target = own if problem is None else problem
    if target is None:
        raise ValueError("problem is missing; put what the schedule is for into it, or give it")
    per_unit = target.cost.ticks_per_unit

    def claimed(name: str) -> int | None:
        if target != own or given.get(name) is None:
            return None
        return whole_ticks(given[name], per_unit, name)

    rows = tuple(
        tuple(_row(row, where) for row, where in device)
        for device in _devices(given.get("rows"), "rows")
    )
    require_stream_rows(target, rows)
    starts = None
    if given.get("starts") is not None:
        starts = tuple(
            tuple(_starts(row, per_unit, where) for row, where in device)
            for device in _devices(given["starts"], "starts")
        )
        if [list(map(len, each)) for each in starts] != [list(map(len, each)) for each in rows]:
            raise ValueError("starts: one for each component of rows is needed, or none at all")
    status = given.get("status")
    return StreamSchedule(
        problem=target,
        rows=rows,
        starts=starts,
        source=text(given.get("source", ""), "source"),
        objective=claimed("objective"),
        bound=claimed("bound"),
        status=None if status is None or target != own else choice(Status, status, "status"),
        mirrored_bound=claimed("mirrored_bound"),
    )


def _devices(value: object, name: str) -> list[list[tuple[object, str]]]:
    """Return for each device the items of its streams, with the place of each."""
    if not is_list(value):
        raise ValueError(
            f"{name}: a list with one object for each device is expected, "
            f'as [{{"compute": [], "comm": []}}], not {shown(value)}'
        )
    return [_streams(device, f"{name}[{index}]") for index, device in enumerate(value)]


def _streams(value: object, where: str) -> list[tuple[object, str]]:
    if not is_object(value):
        raise ValueError(f"{where}: an object with {' and '.join(STREAMS)} is expected")
    words: Words = value
    known(words, STREAMS, where)
    for stream in STREAMS:
        if stream not in words:
            raise ValueError(f"{where}: {stream} is missing; [] stands for a stream without work")
    return [(words[stream], f"{where}.{stream}") for stream in STREAMS]


def _row(value: object, where: str) -> tuple[Component, ...]:
    items = value.split() if isinstance(value, str) else value
    if not is_list(items):
        raise ValueError(f"{where}: a list of components is expected, as 2attn_F0")
    row: list[Component] = []
    for index, item in enumerate(items):
        try:
            row.append(parse_component(item if isinstance(item, str) else shown(item)))
        except ValueError as error:
            raise ValueError(f"{where}[{index}]: {error}") from None
    return tuple(row)


def _starts(value: object, per_unit: int, where: str) -> tuple[int, ...]:
    if not is_list(value):
        raise ValueError(f"{where}: a list of times is expected, not {shown(value)}")
    starts = tuple(
        whole_ticks(item, per_unit, f"{where}[{index}]") for index, item in enumerate(value)
    )
    for index, start in enumerate(starts):
        count(start, f"{where}[{index}], in ticks", 0, LARGEST)
    return starts
