"""The cells of torch's CSV files: lines, what is no cell and why, and at which column.

torch.distributed.pipelining reads such a file leniently (``0F0xyz`` as ``0F0``, ``0FOO1`` as
``0F``, a blank line as a device, semicolons as one op). Here whatever is not exactly a cell is
refused with its cause, line and column. Lines may end in LF or, as torch writes them, CRLF.
"""

import re
from collections.abc import Callable

from bubbleproof.schedules.files import Source
from bubbleproof.schedules.quantity import shown

_OVERLAP = re.compile(r"\([^()]*\)")
_COMMUNICATION = re.compile(
    r"[0-9]+(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)[0-9]*"
)


def csv_lines(source: Source) -> list[str]:
    """Return the lines of a file, one for each device.

    Raises
    ------
    ValueError
        If a line is blank.
    """
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


def is_communication(cell: str) -> bool:
    """Whether a cell is a message or a step on weights, which only compute_comms files have."""
    return _COMMUNICATION.fullmatch(cell) is not None


def first_fault(
    source: Source, number: int, line: str, read: Callable[[str], object]
) -> ValueError:
    """Return the error for the first cell of a line that cannot be read, with the cause.

    Parameters
    ----------
    source, number, line
        The file, and the line with its index from 0.
    read
        What reads a cell; it raises a ValueError for one that it does not accept.
    """
    column = 1
    for cell in line.split(","):
        cause = _cause(cell, read)
        if cause is not None:
            offset, message = cause
            return ValueError(f"{source.name}:{number + 1}:{column + offset}: {message}")
        column += len(cell) + 1
    return ValueError(f"{source.name}:{number + 1}:1: this line cannot be read")


def cell_error(source: Source, number: int, index: int, message: str) -> ValueError:
    """Return the error for a cell, by the indices of its line and of the cell in it, from 0."""
    before = source.text.split("\n")[number].split(",")[:index]
    column = 1 + sum(len(cell) + 1 for cell in before)
    return ValueError(f"{source.name}:{number + 1}:{column}: {message}")


def _cause(cell: str, read: Callable[[str], object]) -> tuple[int, str] | None:
    """Say where in a cell and why it cannot be read; None where it can."""
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
    if "#" in cell:
        return cell.index("#"), (
            "a comment; torch's CSV has none, and each of its lines is a device, so remove it"
        )
    space = re.search(r"\s", cell)
    if space is not None:
        return space.start(), (
            f"a space in {shown(cell)}; cells are separated by commas alone, as 0F0,0F1"
        )
    try:
        read(cell)
    except ValueError as error:
        return 0, str(error)
    return None
