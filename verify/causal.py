"""Rule causal: the order can run, however long things take."""

from collections.abc import Iterator, Sequence

from bubbleproof.verify.cycle import Wait, shortest_cycle, stairs_of
from bubbleproof.verify.naming import plural
from bubbleproof.verify.reading import Reading
from bubbleproof.verify.report import Violation
from bubbleproof.verify.running import Run

RULE = "causal"
MOST_SHOWN = 12


def causal(reading: Reading, run: Run) -> Iterator[Violation]:
    """The order of the rows and the dependencies together have no cycle.

    An op waits for its inputs and for all before it in its row. Of all cycles one with the fewest
    waits for an input is named.
    """
    stairs = stairs_of(_stuck_waits(reading, run))
    if not stairs:
        return
    cycle = shortest_cycle(stairs)
    device, position = reading.where(cycle[0].block)
    blocks = dict.fromkeys(block for wait in cycle for block in (wait.block, wait.source))
    yield Violation(
        RULE,
        _message(reading, cycle),
        device,
        position,
        tuple(str(reading.block(block)) for block in blocks),
    )


def _stuck_waits(reading: Reading, run: Run) -> Iterator[tuple[int, int, Wait]]:
    """Yield the waits among blocks that never run, with the rows of both."""
    for device, head in enumerate(run.heads):
        for block in range(head, reading.offsets[device + 1]):
            for code in reading.codes[block]:
                for _, source, _ in reading.sources(code):
                    if source is not None and source != block and run.ends[source] < 0:
                        yield device, reading.where(source)[0], Wait(block, source)


def _message(reading: Reading, cycle: Sequence[Wait]) -> str:
    steps = [_step(reading, wait) for wait in cycle[:MOST_SHOWN]]
    if len(cycle) > MOST_SHOWN:
        steps.append(f"{len(cycle) - MOST_SHOWN} more")
    return f"the order cannot run, a cycle of {plural(len(cycle), 'wait')}: {'; '.join(steps)}"


def _step(reading: Reading, wait: Wait) -> str:
    device, position = reading.where(wait.block)
    other, behind = reading.where(wait.source)
    giver = "later in its own row" if other == device else f"of device {other}"
    return (
        f"device {device} stands at {reading.block(wait.block)} (position {position}) "
        f"and waits for {reading.block(wait.source)} {giver} (position {behind})"
    )
