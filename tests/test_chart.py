"""The timeline in the terminal."""

from rich.console import Console

import bubbleproof as bp
from bubbleproof.chart import IDLE, chart


def test_idle_time_is_dim_and_blocks_are_not() -> None:
    """Two devices, one microbatch: device 1 waits for the first forward, then runs its own."""
    problem = bp.Problem(devices=2, microbatches=1, cost={"F": 10, "I": 10, "W": 10})
    text = chart(bp.simulate(bp.families.gpipe(problem)), 42)
    console = Console()
    row = text.plain.splitlines()[1]
    second = len(text.plain.splitlines()[0]) + 1
    assert row.startswith(f"1 {IDLE}")
    styles = [
        (text.get_style_at_offset(console, second + at), character)
        for at, character in enumerate(row[2:], 2)
    ]
    assert {bool(style.dim) for style, character in styles if character == IDLE} == {True}
    assert {bool(style.dim) for style, character in styles if character.isalnum()} == {False}
