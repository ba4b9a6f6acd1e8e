"""Rule weights: a stage's weights are whole when they are used, and its gradients reduced once."""

from collections.abc import Iterator
from dataclasses import dataclass

from bubbleproof.schedules.program import Action, ActionKind
from bubbleproof.verify.naming import MOST_NAMED, plural
from bubbleproof.verify.reading import B, Reading, W
from bubbleproof.verify.report import Violation

RULE = "weights"
NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Step:
    """A step on a stage's weights: UNSHARD, RESHARD or REDUCE_GRAD."""

    device: int
    position: int
    action: Action


def weights(reading: Reading) -> Iterator[Violation]:
    """Weights are unsharded before each use and resharded after; gradients are reduced at the end.

    In programs with any UNSHARD or RESHARD the two alternate for each stage, and each of its ops
    stands between them. In programs with any REDUCE_GRAD each stage has one, after its last W
    or B.
    """
    steps = _steps(reading)
    if not steps:
        return
    kinds = {step.action.kind for step in steps}
    own: list[Step] = []
    for step in steps:
        fault = _out_of_place(reading, step)
        if fault is None:
            own.append(step)
        else:
            yield _violation(step, fault)
    if ActionKind.UNSHARD in kinds or ActionKind.RESHARD in kinds:
        yield from _alternation(own)
        yield from _uses(reading, own)
    if ActionKind.REDUCE_GRAD in kinds:
        yield from _reductions(reading, own)


def left_open(reading: Reading) -> Iterator[Violation]:
    """Yield warnings: stages that stay unsharded, and weights that move without a reduction."""
    steps = _steps(reading)
    if not steps:
        return
    unsharded: dict[int, Step] = {}
    for step in steps:
        match step.action.kind:
            case ActionKind.UNSHARD:
                unsharded[step.action.stage] = step
            case ActionKind.RESHARD:
                unsharded.pop(step.action.stage, None)
            case _:
                pass
    for stage, step in sorted(unsharded.items()):
        yield _violation(step, f"stage {stage} is left unsharded; {stage}RESHARD would end it")
    if all(step.action.kind is not ActionKind.REDUCE_GRAD for step in steps):
        yield Violation(
            RULE,
            "no stage has a REDUCE_GRAD; where one program step is to reduce and scale gradients, "
            "each stage needs one after its last W or B",
        )


def _steps(reading: Reading) -> list[Step]:
    return [
        Step(device, position, step)
        for device, positions in enumerate(reading.on_weights)
        for position in positions
        if isinstance(step := reading.rows[device][position], Action)
    ]


def _out_of_place(reading: Reading, step: Step) -> str | None:
    stage = step.action.stage
    if not 0 <= stage < reading.stages:
        return f"there is no stage {stage}; the stages are 0..{reading.stages - 1}"
    holder = reading.layout.device_of_stage[stage]
    return None if holder == step.device else f"stage {stage} is on device {holder}"


def _alternation(steps: list[Step]) -> Iterator[Violation]:
    """Yield each UNSHARD of weights that are whole, and each RESHARD of some that are not."""
    whole: set[int] = set()
    for step in steps:
        stage = step.action.stage
        match step.action.kind:
            case ActionKind.UNSHARD:
                if stage in whole:
                    yield _violation(step, f"stage {stage} is unsharded already")
                whole.add(stage)
            case ActionKind.RESHARD:
                if stage not in whole:
                    yield _violation(step, f"stage {stage} is not unsharded")
                whole.discard(stage)
            case _:
                pass


def _uses(reading: Reading, steps: list[Step]) -> Iterator[Violation]:
    """Yield for each stage the ops that run while its weights are sharded."""
    switches: dict[int, list[tuple[int, bool]]] = {stage: [] for stage in range(reading.stages)}
    for step in steps:
        if step.action.kind is not ActionKind.REDUCE_GRAD:
            at = reading.offsets[step.device] + step.position
            switches[step.action.stage].append((at, step.action.kind is ActionKind.UNSHARD))
    early: dict[int, list[tuple[int, int]]] = {}
    codes_per_stage = 4 * reading.microbatches
    # Codes are in the order of the rows, as the switches are.
    for of_stage in switches.values():
        of_stage.append((len(reading.codes), False))
        of_stage.reverse()
    whole = [False] * reading.stages
    until = [of_stage[-1][0] for of_stage in switches.values()]
    for block, codes in enumerate(reading.codes):
        for code in codes:
            stage = code // codes_per_stage
            while until[stage] < block:
                _, whole[stage] = switches[stage].pop()
                until[stage] = switches[stage][-1][0]
            if not whole[stage]:
                early.setdefault(stage, []).append((block, code))
    for stage, found in sorted(early.items()):
        block, code = found[0]
        device, position = reading.where(block)
        more = f" and {plural(len(found) - 1, 'more op')}" if len(found) > 1 else ""
        yield Violation(
            RULE,
            f"device {device} runs {reading.op(code)}{more} of stage {stage} while its weights are "
            f"sharded; {stage}UNSHARD comes before and {stage}RESHARD after",
            device,
            position,
            tuple(str(reading.op(each)) for _, each in found[:MOST_NAMED]),
        )


def _reductions(reading: Reading, steps: list[Step]) -> Iterator[Violation]:
    """Yield stages without a reduction, with two, or with one before the last W or B."""
    n = reading.microbatches
    last: dict[int, int] = {}
    for block, codes in enumerate(reading.codes):
        for code in codes:
            group = code // n
            if group % 4 in (W, B):
                last[group // 4] = block
    reduced: set[int] = set()
    for step in steps:
        stage = step.action.stage
        if step.action.kind is not ActionKind.REDUCE_GRAD:
            continue
        if stage in reduced:
            yield _violation(step, f"the gradients of stage {stage} are reduced already")
        reduced.add(stage)
        block = last.get(stage, -1)
        device, position = reading.where(block) if block >= 0 else (NOWHERE, 0)
        if device == step.device and position > step.position:
            yield _violation(
                step,
                f"{reading.block(block)} (position {position}) adds to the gradients of stage "
                f"{stage} after that; the last W or B comes before",
            )
    original = reading.layout.replica_of
    changed = {original[stage] for stage in last}
    needed = {stage for stage in range(reading.stages) if original[stage] in changed}
    for stage in sorted(needed - reduced):
        device = reading.layout.device_of_stage[stage]
        yield Violation(
            RULE,
            f"device {device} never reduces the gradients of stage {stage}; {stage}REDUCE_GRAD "
            "comes after its last W or B, as for other stages and for copies of its weights",
            device,
            None,
            (f"{stage}REDUCE_GRAD",),
        )


def _violation(step: Step, why: str) -> Violation:
    return Violation(
        RULE,
        f"device {step.device} has {step.action}: {why}",
        step.device,
        step.position,
        (str(step.action),),
    )
