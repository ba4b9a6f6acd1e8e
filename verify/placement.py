"""Rule placement: every op on the device of its stage, and stages where the name puts them."""

from collections.abc import Iterator

from bubbleproof.verify.layout import layout_of_name, stages_of_name
from bubbleproof.verify.naming import named, plural
from bubbleproof.verify.reading import Reading
from bubbleproof.verify.report import Violation

RULE = "placement"


def placement(reading: Reading) -> Iterator[Violation]:
    """Each op runs on the device that holds its stage.

    Where the placement has a name, its tables are what the name stands for.
    """
    yield from _tables(reading)
    holder, n = reading.layout.device_of_stage, reading.microbatches
    for device in range(len(reading.rows)):
        blocks = reading.codes[reading.offsets[device] : reading.offsets[device + 1]]
        stages = {code // n // 4 for codes in blocks for code in codes}
        for stage in sorted(stages):
            if holder[stage] == device:
                continue
            there = [
                (position, reading.op(code))
                for position, codes in enumerate(blocks)
                for code in codes
                if code // n // 4 == stage
            ]
            position, op = there[0]
            more = f" and {plural(len(there) - 1, 'more op')}" if len(there) > 1 else ""
            yield Violation(
                RULE,
                f"device {device} runs {op}{more} of stage {stage}, "
                f"which is on device {holder[stage]}",
                device,
                position,
                named(op for _, op in there),
            )


def _tables(reading: Reading) -> Iterator[Violation]:
    """A named placement has the stages, devices, chains and replicas of its name."""
    given, devices = reading.problem.placement, reading.problem.devices
    if given.name == "explicit":
        return
    stages = stages_of_name(given.name, devices)
    if stages is None:
        yield Violation(RULE, f"{given.name!a} names no placement; linear or explicit would")
        return
    if stages != given.stages:
        yield Violation(
            RULE,
            f"placement {given.name} has {stages} stages on {plural(devices, 'device')}, "
            f"not {given.stages}",
        )
        return
    right = layout_of_name(given.name, devices)
    tables = zip(given.device_of_stage, right.device_of_stage, strict=True)
    for stage, (device, holder) in enumerate(tables):
        if device != holder:
            yield Violation(
                RULE,
                f"placement {given.name} puts stage {stage} on device {holder}, not on {device}",
                device,
            )
    if len(given.chains) != len(right.chains):
        yield Violation(
            RULE,
            f"placement {given.name} has {plural(len(right.chains), 'chain')}, "
            f"not {len(given.chains)}",
        )
    else:
        for index, (chain, course) in enumerate(zip(given.chains, right.chains, strict=True)):
            if chain != course:
                yield Violation(RULE, _off_course(given.name, index, chain, course))
    weights = zip(given.replica_of, right.replica_of, strict=True)
    for stage, (other, original) in enumerate(weights):
        if other != original:
            device = right.device_of_stage[stage]
            yield Violation(
                RULE,
                f"stage {stage} on device {device} holds the weights of stage {original} in "
                f"placement {given.name}, not those of stage {other}",
                device,
            )


def _off_course(name: str, index: int, chain: tuple[int, ...], course: tuple[int, ...]) -> str:
    if len(chain) != len(course):
        return (
            f"chain {index} of placement {name} is {plural(len(course), 'stage')} long, "
            f"not {len(chain)}"
        )
    at = next(i for i, (one, other) in enumerate(zip(chain, course, strict=True)) if one != other)
    return (
        f"chain {index} of placement {name} runs from stage {course[0]} up to {course[-1]}; "
        f"place {at} of it is stage {course[at]}, not {chain[at]}"
    )
