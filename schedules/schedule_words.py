"""A schedule as the words of a file (``bubbleproof.schedule/1``), and back, without loss.

Starts are in ticks, which the file's own ``ticks_per_unit`` explains; objective, bound and proof
are in the user's unit. What a run measured has ticks of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import lcm

from bubbleproof.schedules.flow_words import flow_of_words, words_of_flow
from bubbleproof.schedules.measured_words import measured_of_words, words_of_measured
from bubbleproof.schedules.ops import Row
from bubbleproof.schedules.placement import MOST_STAGES
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.problem_words import problem_within, words_of_problem
from bubbleproof.schedules.quantity import FINEST, LARGEST, shown
from bubbleproof.schedules.schedule import (
    Bound,
    Schedule,
    Starts,
    Status,
    parse_rows,
    require_all_rows,
)
from bubbleproof.schedules.words import (
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

SCHEDULE_FORMAT = "bubbleproof.schedule/1"

_FIELDS = (
    "format",
    "problem",
    "source",
    "status",
    "objective",
    "bound",
    "ticks_per_unit",
    "rows",
    "starts",
    "proof",
    "measured",
)


def words_of_schedule(schedule: Schedule) -> dict[str, object]:
    """Return what a file says of a schedule.

    Raises
    ------
    ValueError
        If the rows or starts do not fit the problem, or a number has no finite decimal text.
    """
    problem = schedule.problem
    _check_shape(problem, schedule.rows, schedule.starts)
    per_unit = problem.cost.ticks_per_unit
    words: dict[str, object] = {"format": SCHEDULE_FORMAT, "problem": words_of_problem(problem)}
    if schedule.source:
        words["source"] = text(schedule.source, "source")
    if schedule.status is not None:
        words["status"] = schedule.status.value
    for name, ticks in (("objective", schedule.objective), ("bound", schedule.bound)):
        if ticks is not None:
            words[name] = amount(ticks, per_unit, name)
    words["ticks_per_unit"] = per_unit
    words["rows"] = [list(map(str, row)) for row in schedule.rows]
    if schedule.starts is not None:
        words["starts"] = list(map(list, schedule.starts))
    if schedule.proof:
        words["proof"] = words_of_proof(schedule.proof, per_unit)
    if schedule.measured is not None:
        words["measured"] = words_of_measured(schedule.measured, schedule.rows)
    return words


def words_of_proof(proof: Sequence[Bound], per_unit: int) -> list[dict[str, object]]:
    """Return what a file says of bounds, each with its numbers in the user's unit."""
    return [
        {
            "name": bound.name,
            "bound": amount(bound.ticks, per_unit, "proof"),
            **({} if bound.device is None else {"device": bound.device}),
            "text": bound.text,
            "terms": {
                name: amount(ticks, per_unit, f"proof: {name}")
                for name, ticks in bound.terms.items()
            },
            **({} if bound.flow is None else {"flow": words_of_flow(bound.flow, per_unit)}),
        }
        for bound in proof
    ]


def schedule_of_words(
    words: object, problem: Problem | None = None, *, order_only: bool = False
) -> Schedule:
    """Read a schedule from what a file says, for its own problem or a given one.

    Parameters
    ----------
    words
        What the file says.
    problem
        What the schedule is for; None: the file's own.
    order_only
        Whether the starts, and what is claimed of them, are dropped.

    Raises
    ------
    ValueError
        If the format is another one, the rows are no rows of ops for the problem's devices, or a
        claim contradicts itself; the message has the field.
    """
    given = fields(words, SCHEDULE_FORMAT, _FIELDS, "a schedule")
    own = problem_within(given)
    target = own if problem is None else problem
    if target is None:
        raise ValueError("problem is missing; put what the schedule is for into it, or give it")
    per_unit = target.cost.ticks_per_unit
    written = given.get("ticks_per_unit")
    ticks_per_unit = per_unit if written is None else count(written, "ticks_per_unit", 1, FINEST)
    if problem is None and ticks_per_unit != per_unit:
        per_unit = lcm(per_unit, ticks_per_unit)
        target = replace(target, cost=target.cost.in_ticks(per_unit))
    rows = _rows(given.get("rows"))
    # Before the starts, whose fault on other devices would be a consequence of this one.
    require_all_rows(target, rows)
    starts = (
        None if order_only else _starts(given.get("starts"), Fraction(per_unit, ticks_per_unit))
    )
    _check_shape(target, rows, starts)
    measured = measured_of_words(given.get("measured"), rows)
    # A run's times are in units of the problem that it was of.
    known_unit = own is None or own.time_unit == target.time_unit
    schedule = Schedule(
        problem=target,
        rows=rows,
        starts=starts,
        source=text(given.get("source", ""), "source"),
        measured=measured if known_unit else None,
    )
    if order_only or (problem is not None and problem != own):
        return schedule
    return _claimed(schedule, given)


def _rows(value: object) -> tuple[Row, ...]:
    if not is_list(value):
        raise ValueError(
            'rows: a list with one row for each device is expected, as [["0F0", "0B0"], ...]'
        )
    texts: list[list[str] | str] = []
    for device, row in enumerate(value):
        if isinstance(row, str):
            texts.append(row)
        elif is_list(row):
            texts.append([_op_text(item, device, i) for i, item in enumerate(row)])
        else:
            raise ValueError(f"rows[{device}]: a list of ops is expected, not {shown(row)}")
    return parse_rows(texts)


def _op_text(item: object, device: int, position: int) -> str:
    if not isinstance(item, str):
        raise ValueError(f"rows[{device}][{position}]: {shown(item)} is no op; write one, as 2F0")
    return item


def _starts(value: object, factor: Fraction) -> Starts | None:
    if value is None:
        return None
    if not is_list(value):
        raise ValueError("starts: a list of ticks for each device is expected, as [[0, 1], [1, 2]]")
    starts: list[tuple[int, ...]] = []
    for device, row in enumerate(value):
        if not is_list(row):
            raise ValueError(f"starts[{device}]: a list of ticks is expected, not {shown(row)}")
        each = [_start(item, device, i) for i, item in enumerate(row)]
        if factor != 1:
            scaled = [item * factor for item in each]
            for i, item in enumerate(scaled):
                if item.denominator != 1:
                    raise ValueError(
                        f"starts[{device}][{i}]: {each[i]} is no whole number of ticks of the "
                        f"problem; one of its ticks is {1 / factor} of the file's, so "
                        "take the order alone (--order-only)"
                    )
            each = [int(item) for item in scaled]
        starts.append(tuple(each))
    return tuple(starts)


def _start(item: object, device: int, position: int) -> int:
    if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < LARGEST:
        raise ValueError(
            f"starts[{device}][{position}]: {shown(item)} is no start; "
            "whole ticks from 0 to below 2^53 are"
        )
    return item


def _check_shape(problem: Problem, rows: Sequence[Row], starts: Starts | None) -> None:
    require_all_rows(problem, rows)
    if starts is None:
        return
    if len(starts) != len(rows):
        raise ValueError(f"starts: {len(starts)} lists for {len(rows)} rows; one for each is right")
    for device, (row, each) in enumerate(zip(rows, starts, strict=True)):
        if len(row) != len(each):
            raise ValueError(
                f"starts[{device}]: {len(each)} starts for {len(row)} ops; one for each is right"
            )
        if each and not 0 <= min(each) <= max(each) < LARGEST:
            raise ValueError(f"starts[{device}]: from 0 to below 2^53 is accepted")


def _claimed(schedule: Schedule, given: Mapping[str, object]) -> Schedule:
    """Return the schedule with what the file says is proven of it."""
    per_unit = schedule.problem.cost.ticks_per_unit
    objective, bound = (
        None if given.get(name) is None else whole_ticks(given[name], per_unit, name)
        for name in ("objective", "bound")
    )
    status = given.get("status")
    read = None if status is None else choice(Status, status, "status")
    if read is Status.OPTIMAL and (objective is None or objective != bound):
        raise ValueError(
            f"status: optimal, but objective {shown(given.get('objective'))} and bound "
            f'{shown(given.get("bound"))} are not the same number; "feasible" is right'
        )
    proof = given.get("proof")
    if proof is not None and not is_list(proof):
        raise ValueError(f"proof: a list of bounds is expected, not {shown(proof)}")
    return replace(
        schedule,
        objective=objective,
        bound=bound,
        status=read,
        proof=tuple(_bound(item, f"proof[{i}]", per_unit) for i, item in enumerate(proof or ())),
    )


def _bound(value: object, where: str, per_unit: int) -> Bound:
    if not is_object(value):
        raise ValueError(f"{where}: an object is expected, not {shown(value)}")
    known(value, ("name", "bound", "device", "text", "terms", "flow"), where)
    for name in ("name", "bound", "text"):
        if value.get(name) is None:
            raise ValueError(f"{where}.{name} is missing")
    device = value.get("device")
    terms = value.get("terms")
    if terms is None:
        terms = dict[str, object]()
    elif not is_object(terms):
        raise ValueError(f"{where}.terms: an object of numbers is expected, not {shown(terms)}")
    return Bound(
        name=text(value["name"], f"{where}.name"),
        ticks=whole_ticks(value["bound"], per_unit, f"{where}.bound"),
        text=text(value["text"], f"{where}.text"),
        device=None if device is None else count(device, f"{where}.device", 0, MOST_STAGES - 1),
        terms={
            name: whole_ticks(term, per_unit, f"{where}.terms.{name}")
            for name, term in terms.items()
        },
        flow=flow_of_words(value.get("flow"), per_unit, f"{where}.flow"),
    )
