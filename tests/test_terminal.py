"""Signals of the command line."""

import signal
import time
import weakref

import pytest

from bubbleproof.terminal import terminable, was_terminated


class _Thing:
    """What can be gone."""


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_in_a_callback_is_not_lost(by: signal.Signals) -> None:
    """A weak reference's callback lets no exception out; the signal comes again right after it."""
    things = [_Thing()]

    def gone(_: object) -> None:
        signal.raise_signal(by)

    def let_go() -> None:
        with terminable():
            things.clear()
            for _ in range(500):
                time.sleep(0.01)

    _reference = weakref.ref(things[0], gone)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            let_go()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert was_terminated() is (by is signal.SIGTERM)


def test_other_lost_errors_are_told_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    """Only interrupts are raised again."""
    thing = _Thing()

    def gone(_: object) -> None:
        raise RuntimeError("told")

    _reference = weakref.ref(thing, gone)
    with terminable():
        del thing
    assert "RuntimeError: told" in capsys.readouterr().err
