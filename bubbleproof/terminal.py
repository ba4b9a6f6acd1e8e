"""Streams, signals and the progress line of the command line."""

import json
import os
import signal
import sys
import threading
from _thread import interrupt_main
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import TextIOWrapper
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from bubbleproof.answers import Json


def prepare_streams() -> None:
    """Make any text printable: a closed stream swallows it, a narrow encoding escapes it."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        drop_stdout()
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_stdout() -> None:
    """Send to nowhere what is still to be printed, and what the flush at exit would try again."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def console(*, error: bool = False) -> "Console":
    """Return a console that takes text as it is, without markup, and raises on a closed pipe."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            """Leave the exit status to the caller; the base class would exit with 1."""
            raise BrokenPipeError

    return Piped(stderr=error, markup=False, emoji=False, highlight=False)


def put(what: "RenderableType", *, error: bool = False) -> None:
    """Print a table or text for people."""
    console(error=error).print(what)


def put_json(what: "Json") -> None:
    """Print one JSON object on one line."""
    sys.stdout.write(json.dumps(what, allow_nan=False) + "\n")


def say(line: str) -> None:
    """Write one line to stderr, whatever is in it."""
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(line.split()))
    sys.stderr.write(f"bubbleproof: {text}\n")


_terminated = threading.Event()
"""Set by SIGTERM: signals come to a process, so there is one for all of it."""


_AGAIN_S = 0.02
"""Seconds until an interrupt that was lost comes again."""


def was_terminated() -> bool:
    """Whether SIGTERM, not Ctrl-C, ended what was ``terminable``."""
    return _terminated.is_set()


def _terminate(number: int, frame: FrameType | None) -> None:
    _terminated.set()
    signal.default_int_handler(number, frame)


def _interrupt_again(lost: "sys.UnraisableHookArgs") -> None:
    """Interrupt once more where an interrupt came in a callback that lets no exception out.

    A little later, since this runs in the callback, too.
    """
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    number = signal.SIGTERM if was_terminated() else signal.SIGINT
    again = threading.Timer(_AGAIN_S, interrupt_main, (number,))
    again.daemon = True
    again.start()


@contextmanager
def terminable() -> Generator[None, None, None]:
    """Let SIGTERM end what runs inside as Ctrl-C does, and neither of them be lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _terminated.clear()
    before = signal.signal(signal.SIGTERM, _terminate)
    hook, sys.unraisablehook = sys.unraisablehook, _interrupt_again
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        sys.unraisablehook = hook


def shown(line: Callable[[], str]) -> AbstractContextManager[object]:
    """Keep a line up to date on stderr while what is inside runs, where that is a terminal."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.live import Live
    from rich.text import Text

    return Live(
        get_renderable=lambda: Text(line()),
        console=console(error=True),
        transient=True,
        refresh_per_second=4,
    )
