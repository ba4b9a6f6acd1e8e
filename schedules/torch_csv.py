"""Torch's compute_only CSV: a row of ops for each device, in a strict grammar.

A cell is an op, a pair or empty (idle), and anything else is refused (``torch_cells``). It is a
place in an order, not a time: idle cells are not kept.
"""

from collections.abc import Callable, Sequence, Set

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.files import Source
from bubbleproof.schedules.ops import Block, OpKind, Row, has_pairs, ops_of, parse_block
from bubbleproof.schedules.placement import Placement, explicit, linear, loop, v, wave
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.quantity import shown
from bubbleproof.schedules.schedule import Schedule, require_all_rows
from bubbleproof.schedules.torch_cells import cell_error, csv_lines, first_fault, is_communication

GUESSED = "unit times, guessed from a CSV"
"""The name of a problem that nobody gave: with it, reports say what their times are worth."""

UNIT_PAIR = 3
"""A pair's time where a file gives none: torch runs its F (1) and its B (2) one after the other."""


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
    lines = csv_lines(source)
    rows = tuple(_row(source, number, line) for number, line in enumerate(lines))

    def fault(device: int, position: int, message: str) -> ValueError:
        filled = [index for index, cell in enumerate(lines[device].split(",")) if cell]
        return cell_error(source, device, filled[position], message)

    problem = fitting_problem(source, rows, problem, fault)
    return Schedule(problem=problem, rows=rows, source="torch CSV")


def fitting_problem(
    source: Source,
    rows: Sequence[Row],
    problem: Problem | None,
    fault: Callable[[int, int, str], ValueError],
) -> Problem:
    """Return the problem that a file's rows are for: the given one, or what explains them.

    Parameters
    ----------
    source, rows
        The file and what is computed in each of its lines.
    problem
        The given one; None: ``problem_of_rows``.
    fault
        Makes the error for the block at a position of a device's row.

    Raises
    ------
    ValueError
        If the rows have other devices or stages than the problem, or nothing explains them.
    """
    if problem is None:
        try:
            problem = problem_of_rows(rows)
        except _RowError as error:
            raise fault(error.device, error.position, str(error)) from None
        except ValueError as error:
            raise source.of(error) from None
    elif len(rows) != problem.devices:
        raise source.of(
            f"{len(rows)} lines, but the problem has {problem.devices} devices; "
            "a line for each is right"
        )
    for device, row in enumerate(rows):
        for position, block in enumerate(row):
            stage = max(op.stage for op in ops_of(block))
            if stage >= problem.stages:
                raise fault(device, position, stage_unknown(stage, problem))
    return problem


def stage_unknown(stage: int, problem: Problem) -> str:
    """Say that a problem has no such stage."""
    return f"stage {stage}, but the problem's stages are 0..{problem.stages - 1}"


def problem_of_rows(rows: Sequence[Row]) -> Problem:
    """Return the least problem that explains rows: one chain in stage order, unit times.

    Its name is ``GUESSED``. Stages are on the devices in whose rows they are found, and
    microbatches are as many as the highest number says. F, I and W take 1, B takes 2 and a pair 3.
    The backward is split, fused or, where both are found, free.

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
    pairs = has_pairs(rows)
    return Problem(
        devices=len(rows),
        placement=_placement([device_of[stage] for stage in range(len(device_of))], len(rows)),
        microbatches=most + 1,
        cost={"F": 1, "I": 1, "W": 1, "B": 2, "pair": UNIT_PAIR if pairs else None},
        backward=_backward(kinds),
        name=GUESSED,
    )


def compute_only_text(schedule: Schedule) -> str:
    """Return the rows as a CSV that torch's ``_load_csv`` reads with format compute_only.

    Raises
    ------
    ValueError
        If the placement is not one chain through all stages in ascending order, the only one that
        torch runs.
    """
    require_one_chain(schedule.problem)
    require_all_rows(schedule.problem, schedule.rows)
    # An idle device has an empty cell: a blank line is refused on reading, as a likely slip.
    return "".join(",".join(map(str, row)) + "\n" if row else ",\n" for row in schedule.rows)


def require_one_chain(problem: Problem) -> None:
    """Refuse a placement that no torch CSV can express.

    Raises
    ------
    ValueError
        If it is not one chain through all stages in ascending order.
    """
    if not problem.placement.in_order:
        raise ValueError(
            f"placement: {problem.placement} has no CSV; torch passes every microbatch through "
            "all stages in ascending order, so save it as .json"
        )


def _cell(text: str) -> Block | None:
    """Read a cell; None where it is empty, which is idle."""
    if not text:
        return None
    if is_communication(text):
        raise ValueError(
            f"{shown(text)} is no computation, so this is a compute_comms file; "
            "compute_only, with F, I, W, B and OVERLAP_F_B, is expected"
        )
    return parse_block(text)


def _row(source: Source, number: int, line: str) -> Row:
    try:
        return tuple([parse_block(cell) for cell in line.split(",") if cell])
    except ValueError:
        raise first_fault(source, number, line, _cell) from None


def _placement(device_of_stage: Sequence[int], devices: int) -> Placement:
    """Return a named placement where one is the same map, else an explicit one."""
    stages, chunks = tuple(device_of_stage), max(1, len(device_of_stage) // devices)
    named = (linear(devices), v(devices), loop(devices, chunks), wave(devices, chunks))
    same = (placement for placement in named if placement.device_of_stage == stages)
    return next(same, None) or explicit(devices, stages)


def _backward(kinds: Set[OpKind]) -> Backward:
    split = bool(kinds & {OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT})
    if split != (OpKind.BACKWARD in kinds):
        return Backward.SPLIT if split else Backward.FUSED
    return Backward.FREE
