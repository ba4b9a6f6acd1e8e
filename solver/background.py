"""Searches in threads of their own, and how one is ended from another.

So Ctrl-C and a time limit reach who waits for them.
"""

from collections.abc import Callable, Iterable
from threading import Thread


class Background(Thread):
    """A search beside the one who waits for it.

    A daemon, so that a program that ends does not wait for a compilation.

    Parameters
    ----------
    search
        What it does.
    """

    def __init__(self, search: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._search = search
        self._error: Exception | None = None

    def run(self) -> None:
        """Search until done; an error is kept for who waits."""
        try:
            self._search()
        except Exception as error:
            self._error = error

    def require_no_error(self) -> None:
        """Raise what the search has raised, if it did."""
        if self._error is not None:
            raise self._error


class Stop:
    """Ends a search that asks for it, from any thread."""

    def __init__(self) -> None:
        self.asked = False
        self._interrupt: Callable[[], None] | None = None

    def ask(self) -> None:
        """End the program or model that is being solved, and let none begin."""
        self.asked = True
        if self._interrupt is not None:
            self._interrupt()

    def reaches(self, interrupt: Callable[[], None]) -> None:
        """Name what ends the program or model that is solved next."""
        self._interrupt = interrupt
        if self.asked:
            interrupt()


def run_together(searches: Iterable[Callable[[], None]]) -> None:
    """Run searches at once and wait for all; raise the error of the first that has one."""
    started = [Background(search) for search in searches]
    for search in started:
        search.start()
    for search in started:
        search.join()
    for search in started:
        search.require_no_error()
