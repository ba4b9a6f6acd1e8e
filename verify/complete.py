"""Rule complete: every op of the problem, once."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import Op, OpKind
from bubbleproof.verify.naming import microbatches_text, named, plural
from bubbleproof.verify.reading import KINDS, B, F, Found, I, Reading, W
from bubbleproof.verify.report import Violation

RULE = "complete"


def complete(reading: Reading) -> Iterator[Violation]:
    """Each stage runs each microbatch of its chain once: F, and either B or I and W.

    Nothing else is there: no second copy, no stage or microbatch of another chain or of none, no
    kind that the problem's backward excludes. There is one row for each device.
    """
    yield from _row_count(reading)
    yield from _strangers(reading)
    yield from _copies(reading)
    counts = Counter(code // reading.microbatches for code in reading.place)
    yield from _excluded(reading, counts)
    for stage in range(reading.stages):
        yield from _missing_forward(reading, stage, counts)
        yield from _backward(reading, stage, counts)


def _row_count(reading: Reading) -> Iterator[Violation]:
    rows, devices = len(reading.rows), reading.problem.devices
    if rows != devices:
        yield Violation(
            RULE, f"{plural(rows, 'row')} for {plural(devices, 'device')}; each device has one row"
        )


def _strangers(reading: Reading) -> Iterator[Violation]:
    """Ops of stages or microbatches that the problem does not have, by row and stage."""
    for (device, stage), found in _grouped(reading.strangers).items():
        if not 0 <= stage < reading.stages:
            why = f"there is no stage {stage}; the stages are 0..{reading.stages - 1}"
        else:
            window = reading.window[stage]
            right = microbatches_text(window) if window else "none"
            why = f"stage {stage} takes {right} of {reading.microbatches}"
        ops = [each.op for each in found]
        yield Violation(
            RULE,
            f"device {device} runs {_first_of(ops)}: {why}",
            device,
            found[0].position,
            named(ops),
        )


def _copies(reading: Reading) -> Iterator[Violation]:
    for (device, _), found in _grouped(reading.copies).items():
        op = found[0].op
        kind = KINDS.index(op.kind)
        first = reading.place[reading.code(op.stage, kind, op.microbatch)]
        home, position = reading.where(first)
        ops = [each.op for each in found]
        yield Violation(
            RULE,
            f"device {device} runs {_first_of(ops)} again: {op} is already at position "
            f"{position} of device {home}; each op runs once",
            device,
            found[0].position,
            named(ops),
        )


def _excluded(reading: Reading, counts: Counter[int]) -> Iterator[Violation]:
    match reading.problem.backward:
        case Backward.SPLIT:
            excluded, right = (B,), "I and W"
        case Backward.FUSED:
            excluded, right = (I, W), "B"
        case Backward.FREE:
            return
    for stage in range(reading.stages):
        for kind in excluded:
            if not counts[4 * stage + kind]:
                continue
            codes = [
                code
                for code in (reading.code(stage, kind, m) for m in reading.window[stage])
                if code in reading.place
            ]
            first = min(codes, key=reading.place.__getitem__)
            device, position = reading.where(reading.place[first])
            ops = [reading.op(first), *(reading.op(code) for code in codes if code != first)]
            yield Violation(
                RULE,
                f"device {device} runs {_first_of(ops)}, but the problem's backward is "
                f'"{reading.problem.backward}"; it runs as {right}',
                device,
                position,
                named(ops),
            )


def _missing_forward(reading: Reading, stage: int, counts: Counter[int]) -> Iterator[Violation]:
    window = reading.window[stage]
    count = counts[4 * stage + F]
    if count == len(window):
        return
    missing: Sequence[int] = window
    if count:
        missing = [m for m in window if reading.code(stage, F, m) not in reading.place]
    yield _lacking(reading, stage, (OpKind.FORWARD,), missing, "")


def _backward(reading: Reading, stage: int, counts: Counter[int]) -> Iterator[Violation]:
    """Either B, or I and W: not neither, not one half, not both forms."""
    window = reading.window[stage]
    inputs, weights, fused = (counts[4 * stage + kind] for kind in (I, W, B))
    split = inputs == weights == len(window) and not fused
    if split or (fused == len(window) and not inputs and not weights):
        return
    whole = (
        (OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT)
        if reading.problem.backward is Backward.SPLIT
        else (OpKind.BACKWARD,)
    )
    free = reading.problem.backward is Backward.FREE
    hint = " (or its I and W)" if free else ""
    if not inputs and not weights and not fused:
        yield _lacking(reading, stage, whole, window, hint)
        return
    forms: defaultdict[tuple[bool, bool, bool], list[int]] = defaultdict(list)
    for m in window:
        i, w, b = (reading.code(stage, kind, m) in reading.place for kind in (I, W, B))
        forms[i, w, b].append(m)
    for (i, w, b), found in sorted(forms.items()):
        if b and (i or w):
            yield _mixed(reading, stage, found)
        elif i and not w and not b:
            lost = "; its I is there, and the weight gradient of a lone I is lost"
            yield _lacking(reading, stage, (OpKind.BACKWARD_WEIGHT,), found, lost)
        elif w and not i and not b:
            lost = "; its W is there and needs the I"
            yield _lacking(reading, stage, (OpKind.BACKWARD_INPUT,), found, lost)
        elif not b and not i:
            yield _lacking(reading, stage, whole, found, hint)


def _lacking(
    reading: Reading, stage: int, kinds: Sequence[OpKind], numbers: Sequence[int], more: str
) -> Violation:
    device = reading.layout.device_of_stage[stage]
    what = " and ".join(kind.value for kind in kinds)
    return Violation(
        RULE,
        f"stage {stage} (device {device}) never runs {what} of {microbatches_text(numbers)}{more}",
        device,
        None,
        named(Op(stage, kind, m) for m in numbers for kind in kinds),
    )


def _mixed(reading: Reading, stage: int, numbers: Sequence[int]) -> Violation:
    there = [
        code
        for m in numbers
        for code in (reading.code(stage, kind, m) for kind in (I, W, B))
        if code in reading.place
    ]
    block = max(reading.place[code] for code in there if code // reading.microbatches % 4 == B)
    device, position = reading.where(block)
    return Violation(
        RULE,
        f"stage {stage} runs the backward of {microbatches_text(numbers)} as a B and as I or W; "
        "it runs as one B, or as one I and one W",
        device,
        position,
        named(map(reading.op, there)),
    )


def _grouped(found: Sequence[Found]) -> dict[tuple[int, int], list[Found]]:
    """Return what was found by row and stage."""
    groups: defaultdict[tuple[int, int], list[Found]] = defaultdict(list)
    for each in found:
        groups[each.device, each.op.stage].append(each)
    return groups


def _first_of(ops: Sequence[Op]) -> str:
    return str(ops[0]) if len(ops) == 1 else f"{ops[0]} and {plural(len(ops) - 1, 'more op')}"
