"""Torch's compute_only CSV: a row of ops for each device, in a strict grammar.

torch.distributed.pipelining reads such a file leniently (``0F0xyz`` as ``0F0``, ``0FOO1`` as
``0F``, a blank line as a device, semicolons as one op). Here a cell is an op, a pair or empty
(idle), and anything else is refused with its cause, line and column. Lines may end in LF or, as
torch writes them, CRLF.

A cell is a place in an order, not a time: idle cells are not kept.
"""

import re
from collections.abc import Sequence, Set

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.files import Source
from bubbleproof.schedules.ops import OpKind, Pair, Row, ops_of, parse_block
from bubbleproof.schedules.placement import Placement, explicit, linear, loop, v, wave
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.quantity import shown
from bubbleproof.schedules.schedule import Schedule

UNIT_PAIR = 3
"""A pair's time where a file gives none: torch runs its F (1) and its B (2) one after the other."""

_OVERLAP = re.compile(r"\([^()]*\)")
_COMMUNICATION = re.compile(
    r"[0-9]+(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)[0-9]*"
)


class _RowError(ValueError):
    """A fault of rows, with the device and the position in its row where it shows."""

    def __init__(self, message: str, device: int, position: int) -> None:
        super().__init__(message)
        self.device = device
        self.position = position


def compute_only_schedule(source: Source, problem: Problem | None = None) -> Schedule:
    """Read a compute_only CSV.

    Parameters
    ----------
    source
        The file's text.
    problem
        What the schedule is for; None: what ``problem_of_rows`` finds in the rows.

    Raises
    ------
    ValueError
        With line and column, if a cell is no op, the file is no compute_only CSV, or its stages
        or devices are not those of the problem.
    """
    lines = _lines(source)
    rows = tuple(_row(source, number, line) for number, line in enumerate(lines))
    if problem is None:
        problem = _inferred(source, rows)
    elif len(rows) != problem.devices:
        raise source.of(
            f"{len(rows)} lines, but the problem has {problem.devices} devices; "
            "a line for each is right"
        )
    for device, row in enumerate(rows):
        for position, block in enumerate(row):
            stage = max(op.stage for op in ops_of(block))
            if stage >= problem.stages:
                raise _at(
                    source,
                    device,
                    position,
                    f"stage {stage}, but the problem's stages are 0..{problem.stages - 1}",
                )
    return Schedule(problem=problem, rows=rows, source="torch CSV")


def problem_of_rows(rows: Sequence[Row]) -> Problem:
    """Return the least problem that explains rows: one chain in stage order, unit times.

    Stages are on the devices in whose rows they are found, and microbatches are as many as the
    highest number says. F, I and W take 1, B takes 2 and a pair 3. The backward is split, fused
    or, where both are found, free.

    Raises
    ------
    ValueError
        If a stage is in two rows or in none, or there is no op at all.
    """
    device_of: dict[int, int] = {}
    first: dict[int, tuple[int, int]] = {}
    kinds: set[OpKind] = set()
    most = -1
    for device, row in enumerate(rows):
        for position, block in enumerate(row):
            for op in ops_of(block):
                held_by = device_of.setdefault(op.stage, device)
                if held_by != device:
                    raise _RowError(
                        f"stage {op.stage} is on device {held_by} and here on device {device}; "
                        "a stage is on one device",
                        device,
                        position,
                    )
                first.setdefault(op.stage, (device, position))
                kinds.add(op.kind)
                most = max(most, op.microbatch)
    if not device_of:
        raise ValueError("there is no op in any row")
    absent = next((stage for stage in range(len(device_of)) if stage not in device_of), None)
    if absent is not None:
        last = max(device_of)
        raise _RowError(
            f"stage {last} is here, but stage {absent} is in no row; "
            "stages are numbered from 0 without a gap",
            *first[last],
        )
    pairs = any(isinstance(block, Pair) for row in rows for block in row)
    return Problem(
        devices=len(rows),
        placement=_placement([device_of[stage] for stage in range(len(device_of))], len(rows)),
        microbatches=most + 1,
        cost={"F": 1, "I": 1, "W": 1, "B": 2, "pair": UNIT_PAIR if pairs else None},
        backward=_backward(kinds),
    )


def compute_only_text(schedule: Schedule) -> str:
    """Return the rows as a CSV that torch's ``_load_csv`` reads with format compute_only.

    Raises
    ------
    ValueError
        If the placement is not one chain through all stages in ascending order, the only one that
        torch runs.
    """
    problem = schedule.problem
    if problem.placement.chains != (tuple(range(problem.stages)),):
        raise ValueError(
            f"placement: {problem.placement} has no CSV; torch passes every microbatch through "
            "all stages in ascending order, so save it as .json"
        )
    if len(schedule.rows) != problem.devices:
        raise ValueError(
            f"rows: {len(schedule.rows)} rows for {problem.devices} devices; one for each is right"
        )
    # A device without ops needs a cell: a blank line is no row to torch's reader.
    return "".join(",".join(map(str, row)) + "\n" if row else ",\n" for row in schedule.rows)


def _lines(source: Source) -> list[str]:
    lines = source.text.split("\n")
    if not lines[-1]:
        lines.pop()
    lines = [line.removesuffix("\r") for line in lines]
    for number, line in enumerate(lines):
        if not line.strip():
            raise ValueError(
                f"{source.name}:{number + 1}:1: a blank line; every line is a device to torch, "
                "so remove it (an idle device is written as a comma)"
            )
    return lines


def _row(source: Source, number: int, line: str) -> Row:
    try:
        return tuple([parse_block(cell) for cell in line.split(",") if cell])
    except ValueError:
        raise _fault(source, number, line) from None


def _fault(source: Source, number: int, line: str) -> ValueError:
    """Find the first cell of a line that is no op, and the cause."""
    column = 1
    for cell in line.split(","):
        cause = _cause(cell)
        if cause is not None:
            offset, message = cause
            return ValueError(f"{source.name}:{number + 1}:{column + offset}: {message}")
        column += len(cell) + 1
    return ValueError(f"{source.name}:{number + 1}:1: no line of ops")


def _cause(cell: str) -> tuple[int, str] | None:
    """Say where in a cell and why it is no op; None where it is one or empty."""
    named = {
        "\0": "a NUL byte; the file is no text",
        "\r": "a carriage return within a line; lines end in LF or CRLF",
        "\t": "a tab; cells are separated by commas",
        '"': "a quote; ops are written without, as 2F0",
        "'": "a quote; ops are written without, as 2F0",
    }
    for character, message in named.items():
        if character in cell:
            return cell.index(character), message
    outside = _OVERLAP.sub(lambda pair: "-" * len(pair[0]), cell)
    if ";" in outside and "(" not in outside:
        return outside.index(";"), "a semicolon; cells are separated by commas"
    space = re.search(r"\s", cell)
    if space is not None:
        return space.start(), (
            f"a space in {shown(cell)}; cells are separated by commas alone, as 0F0,0F1"
        )
    if _COMMUNICATION.fullmatch(cell):
        return 0, (
            f"{shown(cell)} is no computation, so this is a compute_comms file; "
            "compute_only, with F, I, W, B and OVERLAP_F_B, is expected"
        )
    if not cell:
        return None
    try:
        parse_block(cell)
    except ValueError as error:
        return 0, str(error)
    return None


def _inferred(source: Source, rows: Sequence[Row]) -> Problem:
    try:
        return problem_of_rows(rows)
    except _RowError as error:
        raise _at(source, error.device, error.position, str(error)) from None
    except ValueError as error:
        raise source.of(error) from None


def _at(source: Source, device: int, position: int, message: str) -> ValueError:
    """Return the error for the op at a position of a device's row."""
    column = 1
    for cell in source.text.split("\n")[device].split(","):
        if cell.rstrip("\r"):
            if not position:
                break
            position -= 1
        column += len(cell) + 1
    return ValueError(f"{source.name}:{device + 1}:{column}: {message}")


def _placement(device_of_stage: Sequence[int], devices: int) -> Placement:
    """Return a named placement where one is the same map, else an explicit one."""
    stages, chunks = tuple(device_of_stage), len(device_of_stage) // devices
    named = (linear(devices), v(devices), loop(devices, chunks), wave(devices, chunks))
    same = (placement for placement in named if placement.device_of_stage == stages)
    return next(same, None) or explicit(devices, stages)


def _backward(kinds: Set[OpKind]) -> Backward:
    split = bool(kinds & {OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT})
    if split != (OpKind.BACKWARD in kinds):
        return Backward.SPLIT if split else Backward.FUSED
    return Backward.FREE
