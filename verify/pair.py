"""Rule pair: what may overlap in one block."""

from collections import defaultdict
from collections.abc import Iterator

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import OpKind, Pair
from bubbleproof.verify.naming import named, plural
from bubbleproof.verify.reading import Reading
from bubbleproof.verify.report import Violation

RULE = "pair"


def pair(reading: Reading) -> Iterator[Violation]:
    """A pair is a forward and a full backward of two microbatches, where the problem allows pairs.

    Ops of two microbatches never depend on each other; of one microbatch F and B always do. That
    both belong to the device is the law of rule placement.
    """
    problem = reading.problem
    for device, row in enumerate(reading.rows):
        banned: defaultdict[str, list[tuple[int, Pair]]] = defaultdict(list)
        for position in reading.pairs[device]:
            block = row[position]
            if not isinstance(block, Pair):
                continue
            forward, backward = block.forward, block.backward
            reason = ""
            if device < problem.devices and problem.cost.pair[device] is None:
                banned[f"cost.pair allows none on device {device}"].append((position, block))
            elif problem.backward is Backward.SPLIT:
                banned['a pair\'s backward is a B, which backward "split" excludes'].append(
                    (position, block)
                )
            if forward.kind is not OpKind.FORWARD or backward.kind is not OpKind.BACKWARD:
                reason = "its first op must be an F and its second a B"
            elif forward.microbatch == backward.microbatch:
                reason = (
                    f"{backward} depends on {forward}, as both are of microbatch "
                    f"{forward.microbatch}; only ops of two microbatches can overlap"
                )
            if reason:
                yield Violation(
                    RULE,
                    f"device {device} cannot run {block} as one block: {reason}",
                    device,
                    position,
                    (str(forward), str(backward)),
                )
        for why, found in banned.items():
            position, first = found[0]
            more = f" and {plural(len(found) - 1, 'more pair')}" if len(found) > 1 else ""
            yield Violation(
                RULE,
                f"device {device} runs {first}{more}: {why}",
                device,
                position,
                named(each for _, each in found),
            )
