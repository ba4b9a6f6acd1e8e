"""How violations name ops and microbatches."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

MOST_NAMED = 100
"""How many ops a violation names at most; its message has the number of them all."""


def named(ops: Iterable[object]) -> tuple[str, ...]:
    """Return the text of the first ops."""
    return tuple(str(op) for op in islice(ops, MOST_NAMED))


def plural(number: int, word: str) -> str:
    """Return a number with its word: ``1 op``, ``2 ops``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def microbatches_text(numbers: Sequence[int]) -> str:
    """Return ascending microbatch numbers with runs drawn together: ``microbatches 0..3, 7``."""
    if len(numbers) == 1:
        return f"microbatch {numbers[0]}"
    runs = list(islice(_runs(numbers), 9))
    shown = [f"{first}..{last}" if first < last else str(first) for first, last in runs[:8]]
    return f"microbatches {', '.join(shown + ['...'] * (len(runs) > 8))}"


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    if numbers[-1] - numbers[0] + 1 == len(numbers):
        yield numbers[0], numbers[-1]
        return
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last
