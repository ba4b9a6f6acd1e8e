"""Texts from files and into files: every fault is a ValueError of one line, every write is whole.

A message starts with the file's name as the caller wrote it, as compilers do; where a file cannot
be opened at all it has the resolved path too, because configurations carry relative ones.
"""

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TypeAlias

AnyPath: TypeAlias = str | os.PathLike[str]

LARGEST_FILE_BYTES = 2**30

_MARKS = (
    (b"\xef\xbb\xbf", "a byte order mark (BOM, U+FEFF), as spreadsheets write it"),
    (b"\xff\xfe", "the byte order mark of UTF-16"),
    (b"\xfe\xff", "the byte order mark of UTF-16"),
)


@dataclass(frozen=True, slots=True)
class Source:
    """A text and the name of its file, for messages.

    Parameters
    ----------
    name
        The file's name as the caller wrote it, in printable form.
    text
        The text, with its line ends as they are.
    """

    name: str
    text: str

    def at(self, position: int, message: str) -> ValueError:
        """Return the error for a place in the text, as ``name:line:column: message``."""
        line, column = line_and_column(self.text, position)
        return ValueError(f"{self.name}:{line}:{column}: {message}")

    def of(self, message: object) -> ValueError:
        """Return the error for a text as a whole, or for a field that the message names."""
        return ValueError(f"{self.name}: {message}")


def line_and_column(text: str, position: int) -> tuple[int, int]:
    r"""Return the line and column, both from 1, of a position; only ``\n`` ends a line."""
    line_start = text.rfind("\n", 0, position) + 1
    return text.count("\n", 0, position) + 1, position - line_start + 1


def printable(path: AnyPath) -> str:
    """Return a file's name so that it keeps a message on one line."""
    name = os.fspath(path)
    return name if name.isprintable() and name else ascii(name)


def read_source(path: AnyPath) -> Source:
    """Read a UTF-8 text file, or a pipe.

    Raises
    ------
    ValueError
        If it is missing, a folder, unreadable, too large, empty, or not plain UTF-8.
    """
    name = printable(path)
    data = _read(path, name)
    for mark, what in _MARKS:
        if data.startswith(mark):
            raise ValueError(
                f"{name}:1:1: the file starts with {what}; save it as UTF-8 without one"
            )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode()
        line, column = line_and_column(before, len(before))
        raise ValueError(
            f"{name}:{line}:{column}: byte 0x{data[error.start]:02x} is not UTF-8; "
            "save the file as UTF-8 text"
        ) from None
    if not text.strip():
        raise ValueError(f"{name}: the file is empty")
    return Source(name, text)


def _read(path: AnyPath, name: str) -> bytes:
    if "\0" in os.fspath(path):
        raise ValueError(f"{name}: a file name cannot have a NUL character")
    resolved = printable(os.path.realpath(path))
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise ValueError(f"{name}: is a folder ({resolved}); a file is expected")
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise ValueError(f"{name}: is no regular file ({resolved}); a file is expected")
        with open(path, "rb") as file:
            data = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ValueError(f"{name}: there is no such file ({resolved})") from None
    except OSError as error:
        raise ValueError(f"{name}: cannot be read ({resolved}): {error.strerror}") from None
    if len(data) > LARGEST_FILE_BYTES:
        raise ValueError(f"{name}: larger than {LARGEST_FILE_BYTES} bytes; no schedule is")
    return data


def write_file(path: AnyPath, data: bytes) -> None:
    """Write a file whole or not at all: a cut write leaves what was there before.

    A link stays a link, and a file that exists keeps its permissions. What is no regular file
    (a pipe, ``/dev/null``) is written into.

    Raises
    ------
    ValueError
        If the folder is missing, or nothing can be written there.
    """
    target = _target(path)
    with _writing(path, target):
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target, data)


def require_writable(path: AnyPath) -> None:
    """Refuse what ``write_file`` could not write, before anything long is computed for it.

    A file beside it is made and removed: permissions alone do not tell what a file system takes.

    Raises
    ------
    ValueError
        As ``write_file`` would.
    """
    target = _target(path)
    with _writing(path, target):
        if not target.exists() or target.is_file():
            temporary = _temporary(target)
            os.close(_created(temporary))
            temporary.unlink()


def _target(path: AnyPath) -> Path:
    name = printable(path)
    if "\0" in os.fspath(path):
        raise ValueError(f"{name}: a file name cannot have a NUL character")
    target = Path(os.path.realpath(path))
    if os.path.isdir(target):
        raise ValueError(f"{name}: is a folder ({printable(target)}); a file is expected")
    return target


@contextmanager
def _writing(path: AnyPath, target: Path) -> Generator[None, None, None]:
    """Say in one line why nothing can be written at a place."""
    name = printable(path)
    try:
        yield
    except FileNotFoundError:
        folder = printable(target.parent)
        # Some file systems, as /proc, say that a new file is not found rather than not allowed.
        raise ValueError(
            f"{name}: no file can be made in the folder {folder}; give another"
            if os.path.isdir(target.parent)
            else f"{name}: the folder {folder} does not exist; make it first"
        ) from None
    except OSError as error:
        raise ValueError(
            f"{name}: cannot be written ({printable(target)}): {error.strerror}"
        ) from None


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name[:100]}.{token_hex(6)}.tmp")


def _created(path: Path) -> int:
    # Not tempfile: its files are private to the user, which a new file here is not.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


def _replace(target: Path, data: bytes) -> None:
    temporary = _temporary(target)
    handle = _created(temporary)
    try:
        with open(handle, "wb") as file:
            if target.exists():
                os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
