"""What ops allocate and free on their device, and what a device may hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from bubbleproof.schedules.cost import Backward, PerStage
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.quantity import common_scale, exact, in_unit
from bubbleproof.schedules.words import Words, is_list, known, per_device, per_stage, spread, text

Change: TypeAlias = tuple[int, int]
"""What an op allocates at its start and frees at its end, in grains."""

_SPLIT = (OpKind.FORWARD, OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT)
_WHOLE = (OpKind.FORWARD, OpKind.BACKWARD)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in grains, the least amount that keeps all numbers whole.

    Parameters
    ----------
    F, I, W, B
        For each stage what an op of that kind allocates at its start and frees at its end.
    static
        For each stage what its device holds all the time.
    limit
        For each device the most that it may hold; None for no limit.
    unit
        The user's unit, for reports.
    grains_per_unit
        Grains in one unit.
    """

    F: tuple[Change, ...]
    I: tuple[Change, ...]  # noqa: E741
    W: tuple[Change, ...]
    B: tuple[Change, ...]
    static: PerStage
    limit: tuple[int | None, ...]
    unit: str = ""
    grains_per_unit: int = 1

    def of(self, kind: OpKind) -> tuple[Change, ...]:
        """Return the changes of one op kind, for each stage."""
        match kind:
            case OpKind.FORWARD:
                return self.F
            case OpKind.BACKWARD_INPUT:
                return self.I
            case OpKind.BACKWARD_WEIGHT:
                return self.W
            case OpKind.BACKWARD:
                return self.B


def read_memory(words: Words, placement: Placement, backward: Backward) -> Memory:
    """Read the memory of a problem file; no op kinds: one unit per F, freed by W or B.

    Raises
    ------
    ValueError
        If an amount is not exact or a list has the wrong length. Signs and balance are those of
        ``require_balance``.
    """
    known(words, ("unit", "F", "I", "W", "B", "static", "limit"), "memory")
    stages = placement.stages
    kinds = [kind for kind in ("F", "I", "W", "B") if words.get(kind) is not None]
    nothing = ((Fraction(0), Fraction(0)),) * stages
    given = {kind: _changes(words[kind], placement, f"memory.{kind}") for kind in kinds}
    if not kinds:
        given["F"] = ((Fraction(1), Fraction(0)),) * stages
        given["W"] = ((Fraction(0), Fraction(1)),) * stages
    given.setdefault("F", nothing)
    if backward is Backward.FUSED and "B" in given and "I" not in given and "W" not in given:
        given["I"], given["W"] = given["B"], nothing
    given.setdefault("I", nothing)
    given.setdefault("W", nothing)
    given.setdefault(
        "B",
        tuple((i[0] + w[0], i[1] + w[1]) for i, w in zip(given["I"], given["W"], strict=True)),
    )
    static = (
        (Fraction(0),) * stages
        if words.get("static") is None
        else per_stage(words["static"], placement.replica_of, "memory.static")
    )
    limit = per_device(words.get("limit"), placement.devices, "memory.limit")
    numbers = [amount for changes in given.values() for change in changes for amount in change]
    numbers += [*static, *(number for number in limit if number is not None)]
    scale = common_scale(numbers, "memory")

    def grains(number: Fraction) -> int:
        return int(number * scale)

    changes = {
        kind: tuple((grains(change[0]), grains(change[1])) for change in given[kind])
        for kind in given
    }
    memory = Memory(
        F=changes["F"],
        I=changes["I"],
        W=changes["W"],
        B=changes["B"],
        static=tuple(map(grains, static)),
        limit=tuple(None if number is None else grains(number) for number in limit),
        unit=text(words.get("unit", ""), "memory.unit"),
        grains_per_unit=scale,
    )
    twos = [f"memory.{kind}" for kind in kinds if stages == 2 and _is_change(words[kind])]
    if twos:
        try:
            _require_balance(memory, backward)
        except ValueError as error:
            raise ValueError(
                f"{error} (on two stages the two numbers of {' and '.join(twos)} are one for each "
                "stage; [allocate, free] is written [[2, 3], [2, 3]])"
            ) from None
    return memory


def require_balance(memory: Memory, backward: Backward) -> None:
    """Refuse amounts that no order of ops could keep apart, read from words or ready-made.

    Raises
    ------
    ValueError
        If an amount is negative, or what F and the backward of a stage allocate and free does not
        balance to zero, whichever of the two forms the backward takes.
    """
    if memory.grains_per_unit < 1:
        raise ValueError(f"memory.grains_per_unit: {memory.grains_per_unit}; at least 1 is needed")
    amounts = [
        (f"memory.{kind.value}[{stage}]", grains)
        for kind in OpKind
        for stage, change in enumerate(memory.of(kind))
        for grains in change
    ]
    amounts += [(f"memory.static[{stage}]", grains) for stage, grains in enumerate(memory.static)]
    amounts += [
        (f"memory.limit[{device}]", grains)
        for device, grains in enumerate(memory.limit)
        if grains is not None
    ]
    for where, grains in amounts:
        if grains < 0:
            number = in_unit(grains, memory.grains_per_unit)
            raise ValueError(f"{where}: {number} is negative; 0 or more")
    _require_balance(memory, backward)


def _require_balance(memory: Memory, backward: Backward) -> None:
    # Both are checked; the first one names the kinds that the user most likely gave.
    forms = [_SPLIT, _WHOLE] if backward is not Backward.FUSED else [_WHOLE, _SPLIT]
    for stage in range(len(memory.static)):
        for kinds in forms:
            _check_stage(memory, kinds, stage)


def _check_stage(memory: Memory, kinds: Sequence[OpKind], stage: int) -> None:
    held = 0
    for index, kind in enumerate(kinds):
        allocate, free = memory.of(kind)[stage]
        held += allocate - free
        if held < 0:
            raise ValueError(
                f"memory: on stage {stage} {kind.value} frees "
                f"{in_unit(-held, memory.grains_per_unit)} more than "
                f"{' and '.join(kinds[: index + 1])} allocated"
            )
    if held:
        raise ValueError(
            f"memory: on stage {stage} {', '.join(kinds)} leave "
            f"{in_unit(held, memory.grains_per_unit)} allocated; "
            "what they allocate and free must balance to zero"
        )


def _changes(
    value: object, placement: Placement, where: str
) -> tuple[tuple[Fraction, Fraction], ...]:
    """Read a number, [allocate, free], or a list with one of either for each stage.

    Two numbers on two stages are one for each stage.
    """
    if not is_list(value):
        return (_change(value, where),) * placement.stages
    if _is_change(value) and placement.stages != 2:
        return (_change(value, where),) * placement.stages
    items = spread(value, placement.replica_of, where)
    return tuple(_change(item, f"{where}[{stage}]") for stage, item in enumerate(items))


def _is_change(value: object) -> bool:
    """Whether a value is two numbers: [allocate, free], but on two stages one for each."""
    return is_list(value) and len(value) == 2 and not any(map(is_list, value))


def _change(value: object, where: str) -> tuple[Fraction, Fraction]:
    if not is_list(value):
        number = exact(value, where)
        return max(number, Fraction(0)), max(-number, Fraction(0))
    if len(value) != 2:
        raise ValueError(f"{where}: a number or [allocate, free] is expected")
    allocate, free = (exact(item, where) for item in value)
    if allocate < 0 or free < 0:
        raise ValueError(f"{where}: [allocate, free] takes amounts of 0 or more")
    return allocate, free
