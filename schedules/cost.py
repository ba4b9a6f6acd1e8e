"""How long ops, pairs and transfers take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TypeAlias

from bubbleproof.schedules.components import Components, read_components
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.quantity import common_scale, exact, shown
from bubbleproof.schedules.words import (
    Words,
    is_list,
    is_object,
    known,
    per_device,
    per_stage,
)

PerStage: TypeAlias = tuple[int, ...]


class Backward(StrEnum):
    """How a backward may run: as I and W, as one B, or as the solver chooses per op."""

    SPLIT = "split"
    FUSED = "fused"
    FREE = "free"

    def allows(self, kind: OpKind) -> bool:
        """Whether ops of this kind may be in a schedule."""
        match kind:
            case OpKind.FORWARD:
                return True
            case OpKind.BACKWARD_INPUT | OpKind.BACKWARD_WEIGHT:
                return self is not Backward.FUSED
            case OpKind.BACKWARD:
                return self is not Backward.SPLIT


@dataclass(frozen=True, slots=True)
class Cost:
    """Durations in ticks.

    Parameters
    ----------
    F, I, W, B
        For each stage the duration of an op of that kind.
    pair
        For each device the duration of an overlapped pair; None where none is allowed.
    transfer
        Time from one device to another: one number, or a device x device matrix
        (the diagonal is not used: on one device it is 0).
    ticks_per_unit
        Ticks in one unit of the problem's time.
    components
        What F, I and W consist of on a device's two streams; None where it is not known.
    """

    F: PerStage
    I: PerStage  # noqa: E741
    W: PerStage
    B: PerStage
    pair: tuple[int | None, ...]
    transfer: int | tuple[tuple[int, ...], ...] = 0
    ticks_per_unit: int = 1
    components: Components | None = None

    def of(self, kind: OpKind) -> PerStage:
        """Return the durations of one op kind, for each stage."""
        match kind:
            case OpKind.FORWARD:
                return self.F
            case OpKind.BACKWARD_INPUT:
                return self.I
            case OpKind.BACKWARD_WEIGHT:
                return self.W
            case OpKind.BACKWARD:
                return self.B

    def in_ticks(self, ticks_per_unit: int) -> "Cost":
        """Return the same times in finer ticks, a multiple of this cost's in one unit."""
        factor = ticks_per_unit // self.ticks_per_unit

        def finer(ticks: PerStage) -> PerStage:
            return tuple(factor * t for t in ticks)

        return Cost(
            F=finer(self.F),
            I=finer(self.I),
            W=finer(self.W),
            B=finer(self.B),
            pair=tuple(None if t is None else factor * t for t in self.pair),
            transfer=factor * self.transfer
            if isinstance(self.transfer, int)
            else tuple(map(finer, self.transfer)),
            ticks_per_unit=ticks_per_unit,
            components=None if self.components is None else self.components.in_ticks(factor),
        )


def read_cost(words: Words, placement: Placement, backward: Backward) -> Cost:
    """Read the cost of a problem file.

    Where the backward is fused, B alone is enough; else B defaults to I + W. Where components are
    given, F, I and W default to these one after the other.

    Raises
    ------
    ValueError
        If a time is missing, negative, not exact, or given for the wrong number of stages.
    """
    known(words, ("F", "I", "W", "B", "pair", "transfer", "components"), "cost")
    given = {
        kind: per_stage(words[kind], placement.replica_of, f"cost.{kind}")
        for kind in ("F", "I", "W", "B")
        if words.get(kind) is not None
    }
    parts = words.get("components")
    if parts is not None and not is_object(parts):
        raise ValueError(f"cost.components: an object is expected, not {shown(parts)}")
    components = None if parts is None else read_components(parts, placement)
    if components is not None:
        for kind in (OpKind.FORWARD, OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT):
            given.setdefault(kind.value, components.in_sequence(kind))
    if "F" not in given:
        raise ValueError("cost.F is missing; give the time of a forward, as 10")
    if backward is Backward.FUSED and "B" in given:
        given.setdefault("I", given["B"])
        given.setdefault("W", tuple(Fraction(0) for _ in given["B"]))
    for kind, what in (("I", "backward for the input"), ("W", "backward for the weights")):
        if kind not in given:
            other = " (or cost.B, the whole backward)" if backward is Backward.FUSED else ""
            raise ValueError(f"cost.{kind} is missing; give the time of a {what}{other}, as 10")
    given.setdefault("B", tuple(i + w for i, w in zip(given["I"], given["W"], strict=True)))
    pair = per_device(words.get("pair"), placement.devices, "cost.pair")
    transfer = _read_transfer(words.get("transfer"), placement.devices)
    numbers = [number for kind in given.values() for number in kind]
    numbers += [number for number in pair if number is not None]
    numbers += [number for row in transfer for number in row]
    numbers += [] if components is None else components.numbers()
    if min(numbers) < 0:
        raise ValueError(_first_negative(given, pair, transfer))
    scale = common_scale(numbers, "cost")

    def ticks(number: Fraction) -> int:
        return int(number * scale)

    matrix = tuple(tuple(map(ticks, row)) for row in transfer)
    return Cost(
        F=tuple(map(ticks, given["F"])),
        I=tuple(map(ticks, given["I"])),
        W=tuple(map(ticks, given["W"])),
        B=tuple(map(ticks, given["B"])),
        pair=tuple(None if number is None else ticks(number) for number in pair),
        transfer=matrix if is_list(words.get("transfer")) else matrix[0][0],
        ticks_per_unit=scale,
        components=None if components is None else components.ticks(scale),
    )


def _read_transfer(value: object, devices: int) -> list[list[Fraction]]:
    where = "cost.transfer"
    if value is None:
        return [[Fraction(0)]]
    if not is_list(value):
        return [[exact(value, where)]]
    if len(value) != devices or not all(is_list(row) and len(row) == devices for row in value):
        raise ValueError(f"{where}: give one number, or a matrix of {devices} x {devices} numbers")
    return [
        [
            _transfer_time(number, f"{where}[{source}][{target}]", same=source == target)
            for target, number in enumerate(row)
        ]
        for source, row in enumerate(value)
        if is_list(row)
    ]


def _transfer_time(value: object, where: str, *, same: bool) -> Fraction:
    """Read an entry of the matrix; the one of a device to itself may be null and counts as 0."""
    time = Fraction(0) if same and value is None else exact(value, where)
    return Fraction(0) if same else time


def _first_negative(
    given: Mapping[str, tuple[Fraction, ...]],
    pair: Sequence[Fraction | None],
    transfer: Sequence[Sequence[Fraction]],
) -> str:
    places = [(f"cost.{kind}[{s}]", x) for kind in given for s, x in enumerate(given[kind])]
    places += [(f"cost.pair[{d}]", x) for d, x in enumerate(pair) if x is not None]
    places += [("cost.transfer", x) for row in transfer for x in row]
    where, number = next((where, number) for where, number in places if number < 0)
    return f"{where}: {float(number):g} is negative; a time is 0 or more"
