"""Torch's compute_comms CSV: for each device all that it executes, messages and weights included.

Torch's runtime executes such a file as it is written, cell by cell, so there are no idle cells. It
has no groups. Each message is posted alone (``batch_isend_irecv`` with one operation) and nobody
waits for it there: a SEND is waited for at the end of the step, a RECV before the op that needs
it. What stands side by side is therefore posted one after the other without a pause, and with NCCL
the messages of a pair of devices (of all devices with one communicator) complete in the order that
is written. A group is written as its messages in their order, which for the programs of ``lower``
is safe; the exchange that a group allows, both directions at once, is lost.
"""

from bubbleproof.schedules.files import Source
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import (
    Action,
    Group,
    Program,
    Step,
    blocks_of,
    parse_step,
    ungrouped,
)
from bubbleproof.schedules.quantity import shown
from bubbleproof.schedules.torch_cells import (
    cell_error,
    csv_lines,
    first_fault,
    is_communication,
)
from bubbleproof.schedules.torch_csv import (
    fitting_problem,
    require_all_rows,
    require_one_chain,
    stage_unknown,
)


def has_communication(source: Source) -> bool:
    """Whether a CSV has a message or a step on weights, and so is a compute_comms file."""
    text = source.text
    if "_" not in text and "SHARD" not in text:
        return False
    return any(map(is_communication, text.translate({10: ",", 13: ","}).split(",")))


def compute_comms_program(source: Source, problem: Problem | None = None) -> Program:
    """Read a compute_comms CSV.

    Parameters
    ----------
    source
        The file's text.
    problem
        What the program is for; None: what ``problem_of_rows`` finds in its computations.

    Raises
    ------
    ValueError
        With line and column, if a cell is no step of a program or empty, or the stages or devices
        are not those of the problem. Messages that do not fit together are no such error.
    """
    lines = csv_lines(source)
    rows = tuple(_row(source, number, line) for number, line in enumerate(lines))

    def fault(device: int, position: int, message: str) -> ValueError:
        computing = [i for i, step in enumerate(rows[device]) if not isinstance(step, Action)]
        return cell_error(source, device, computing[position], message)

    problem = fitting_problem(source, tuple(map(blocks_of, rows)), problem, fault)
    for device, row in enumerate(rows):
        for index, step in enumerate(row):
            if isinstance(step, Action) and step.stage >= problem.stages:
                raise cell_error(source, device, index, stage_unknown(step.stage, problem))
    return Program(problem=problem, rows=rows, source="torch CSV")


def compute_comms_text(program: Program) -> str:
    """Return a program as a CSV that torch's ``_load_csv`` reads with format compute_comms.

    Raises
    ------
    ValueError
        If the placement is not one chain through all stages in ascending order, the only one that
        torch runs, or a device has no steps.
    """
    require_one_chain(program.problem)
    require_all_rows(program.problem, program.rows)
    for device, row in enumerate(program.rows):
        if not row:
            raise ValueError(
                f"device {device} has no steps; torch executes a compute_comms file as it is "
                "written and takes no empty line, so each device needs a stage"
            )
    rows = ungrouped(program).rows
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def _row(source: Source, number: int, line: str) -> tuple[Step, ...]:
    try:
        return tuple(map(_cell, line.split(",")))
    except ValueError:
        raise first_fault(source, number, line, _cell) from None


def _cell(text: str) -> Step:
    if not text:
        raise ValueError(
            "an empty cell; torch executes a compute_comms file as it is written, without idle "
            "cells, so leave it out"
        )
    step = parse_step(text)
    if isinstance(step, Group):
        raise ValueError(
            f"{shown(text)} is a group, which torch does not know; write its messages one after "
            "the other, or the program as .json"
        )
    return step
