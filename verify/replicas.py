"""Rule replicas: devices that hold copies of the same weights reduce them in one order.

A reduction over copies is a collective step of their devices: each waits there for the other, and
what both reduce first is summed with what the other reduces first, whatever it is called.
"""

from collections.abc import Iterator
from itertools import combinations

from bubbleproof.schedules.program import Action, ActionKind
from bubbleproof.verify.reading import Reading
from bubbleproof.verify.report import Violation

RULE = "replicas"


def replicas(reading: Reading) -> Iterator[Violation]:
    """Two devices that share weights come to the reductions of these in the same order.

    A stage that is reduced on one of them only is for rule weights to report.
    """
    by_device = _reductions(reading)
    for one, other in combinations(sorted(by_device), 2):
        shared = by_device[one].keys() & by_device[other].keys()
        first = [weights for weights in by_device[one] if weights in shared]
        second = [weights for weights in by_device[other] if weights in shared]
        for here, there in zip(first, second, strict=True):
            if here != there:
                at, action = by_device[one][here]
                position, opposite = by_device[other][there]
                yield Violation(
                    RULE,
                    f"device {one} reduces {action} (position {at}) where device {other} reduces "
                    f"{opposite}: the gradients of stages {here} and {there} "
                    "are summed with each other, or both wait for ever; reduce copies in the order "
                    "of their originals on both devices",
                    other,
                    position,
                    (str(action), str(opposite)),
                )
                break


def met_early(reading: Reading) -> Iterator[Violation]:
    """Yield warnings: reductions of copies that a device comes to before it is done otherwise."""
    for device, reductions in sorted(_reductions(reading).items()):
        last = max(
            (
                position
                for position, step in enumerate(reading.rows[device])
                if not isinstance(step, Action) or step.kind.is_message
            ),
            default=-1,
        )
        for position, action in reductions.values():
            if position < last:
                yield Violation(
                    RULE,
                    f"device {device} waits at {action} for the device with the copy, and has "
                    f"more to do (position {last}) that the other may wait for; put reductions of "
                    "copies at the end of the row",
                    device,
                    position,
                    (str(action),),
                )
                break


def _copied(reading: Reading) -> set[int]:
    """Return the stages whose weights are on another device, too."""
    holder, original = reading.layout.device_of_stage, reading.layout.replica_of
    devices: dict[int, set[int]] = {}
    for stage, weights in enumerate(original):
        devices.setdefault(weights, set()).add(holder[stage])
    return {stage for stage, weights in enumerate(original) if len(devices[weights]) > 1}


def _reductions(reading: Reading) -> dict[int, dict[int, tuple[int, Action]]]:
    """Return for each device, by original stage and in its order, its reductions of copies."""
    copied, holder = _copied(reading), reading.layout.device_of_stage
    found: dict[int, dict[int, tuple[int, Action]]] = {}
    if not copied:
        return found
    for device, positions in enumerate(reading.on_weights):
        for position in positions:
            step = reading.rows[device][position]
            if (
                isinstance(step, Action)
                and step.kind is ActionKind.REDUCE_GRAD
                and step.stage in copied
                and holder[step.stage] == device
            ):
                weights = reading.layout.replica_of[step.stage]
                found.setdefault(device, {}).setdefault(weights, (position, step))
    return found
