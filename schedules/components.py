"""The components of a chunk's forward and backward, each on one of a device's two streams.

A layer is attention, a dispatch (all-to-all), an MLP and a combine (all-to-all); its backward goes
the other way, with the weight parts of MLP and attention apart (DeepSeek-V3, arXiv 2412.19437,
sec. 3.2.1). A chunk is some layers that take equally long, one after the other. What a chunk sends
to the next device may keep the communication stream busy, too.
"""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TypeAlias

from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.words import Words, count, is_list, known, per_stage, spread

MOST_LAYERS = 64


class Stream(StrEnum):
    """Where a component runs: each stream of a device runs one at a time."""

    COMPUTE = "compute"
    COMM = "comm"


class Part(StrEnum):
    """What a component does; ``_W`` are the weight parts of a backward."""

    ATTN_F = "attn_F"
    DISPATCH_F = "dispatch_F"
    MLP_F = "mlp_F"
    COMBINE_F = "combine_F"
    SEND_F = "send_F"
    COMBINE_B = "combine_B"
    MLP_B = "mlp_B"
    DISPATCH_B = "dispatch_B"
    ATTN_B = "attn_B"
    SEND_B = "send_B"
    MLP_W = "mlp_W"
    ATTN_W = "attn_W"

    @property
    def stream(self) -> Stream:
        """The stream that it runs on."""
        match self:
            case Part.ATTN_F | Part.MLP_F | Part.MLP_B | Part.ATTN_B | Part.MLP_W | Part.ATTN_W:
                return Stream.COMPUTE
            case (
                Part.DISPATCH_F
                | Part.COMBINE_F
                | Part.SEND_F
                | Part.COMBINE_B
                | Part.DISPATCH_B
                | Part.SEND_B
            ):
                return Stream.COMM

    @property
    def kind(self) -> OpKind:
        """The op that it is a part of."""
        match self:
            case Part.ATTN_F | Part.DISPATCH_F | Part.MLP_F | Part.COMBINE_F | Part.SEND_F:
                return OpKind.FORWARD
            case Part.COMBINE_B | Part.MLP_B | Part.DISPATCH_B | Part.ATTN_B | Part.SEND_B:
                return OpKind.BACKWARD_INPUT
            case Part.MLP_W | Part.ATTN_W:
                return OpKind.BACKWARD_WEIGHT


Place: TypeAlias = tuple[Part, int]
"""A part, and the layer of its chunk; a send is of the layer next to the border."""

FORWARD = (Part.ATTN_F, Part.DISPATCH_F, Part.MLP_F, Part.COMBINE_F)
BACKWARD_INPUT = (Part.COMBINE_B, Part.MLP_B, Part.DISPATCH_B, Part.ATTN_B)
SENDS = (Part.SEND_F, Part.SEND_B)
WEIGHT_AFTER = {Part.MLP_B: Part.MLP_W, Part.ATTN_B: Part.ATTN_W}
"""For each part of the backward the weight part that it makes possible."""


@dataclass(frozen=True, slots=True)
class Components:
    """Durations of components, in ticks.

    Parameters
    ----------
    layers
        For each stage the number of its layers.
    times
        For each part, in the order of ``Part``, and each stage its duration in one layer (a send:
        in all); what takes no time is not run.
    """

    layers: tuple[int, ...]
    times: tuple[tuple[int, ...], ...]

    def of(self, part: Part) -> tuple[int, ...]:
        """Return the durations of one part, for each stage."""
        return self.times[_INDEX[part]]

    def places(self, stage: int, kind: OpKind) -> tuple[Place, ...]:
        """Return what one op of a stage runs, in order; W's parts in the order of their inputs.

        A B has both, I's parts first.
        """
        layers = range(self.layers[stage])
        match kind:
            case OpKind.FORWARD:
                last = self.layers[stage] - 1
                parts = [(part, layer) for layer in layers for part in FORWARD]
                parts.append((Part.SEND_F, last))
            case OpKind.BACKWARD_INPUT:
                parts = [(part, layer) for layer in reversed(layers) for part in BACKWARD_INPUT]
                parts.append((Part.SEND_B, 0))
            case OpKind.BACKWARD_WEIGHT:
                parts = [
                    (part, layer) for layer in reversed(layers) for part in WEIGHT_AFTER.values()
                ]
            case OpKind.BACKWARD:
                return (
                    *self.places(stage, OpKind.BACKWARD_INPUT),
                    *self.places(stage, OpKind.BACKWARD_WEIGHT),
                )
        return tuple(place for place in parts if self.of(place[0])[stage])

    def ticks(self, stage: int, kind: OpKind) -> int:
        """Return what an op takes with its components one after the other."""
        return sum(self.of(part)[stage] for part, _ in self.places(stage, kind))

    def load(self, stage: int, kind: OpKind, stream: Stream) -> int:
        """Return the part of that on one stream."""
        return sum(
            self.of(part)[stage] for part, _ in self.places(stage, kind) if part.stream is stream
        )

    def in_ticks(self, factor: int) -> "Components":
        """Return the same times in ticks that are so many times finer."""
        return Components(
            self.layers, tuple(tuple(factor * t for t in each) for each in self.times)
        )


_INDEX = {part: index for index, part in enumerate(Part)}


@dataclass(frozen=True, slots=True)
class ComponentTimes:
    """Components as they are read, before a tick is chosen: see ``Components``."""

    layers: tuple[int, ...]
    times: tuple[tuple[Fraction, ...], ...]

    def numbers(self) -> list[Fraction]:
        """Return all times."""
        return [number for each in self.times for number in each]

    def in_sequence(self, kind: OpKind) -> tuple[Fraction, ...]:
        """Return for each stage what an op takes with its components one after the other."""
        return tuple(
            sum(
                (
                    each[stage] * (1 if part in SENDS else layers)
                    for part, each in zip(Part, self.times, strict=True)
                    if part.kind is kind
                ),
                Fraction(0),
            )
            for stage, layers in enumerate(self.layers)
        )

    def ticks(self, ticks_per_unit: int) -> Components:
        """Return the components in ticks."""
        return Components(
            self.layers,
            tuple(tuple(int(number * ticks_per_unit) for number in each) for each in self.times),
        )


def read_components(words: Words, placement: Placement) -> ComponentTimes:
    """Read the components of a problem file's cost.

    A send is dropped where the neighbour in the chain is on the same device, or there is none.

    Raises
    ------
    ValueError
        If a time is negative or not exact, or F, I or W of a stage have no component.
    """
    where = "cost.components"
    known(words, ("layers", *Part), where)
    copies = placement.replica_of
    given = words.get("layers", 1)
    each = spread(given, copies, f"{where}.layers") if is_list(given) else [given] * len(copies)
    layers = tuple(count(item, f"{where}.layers", 1, MOST_LAYERS) for item in each)
    times: dict[Part, tuple[Fraction, ...]] = {}
    for part in Part:
        value = words.get(part)
        times[part] = per_stage(0 if value is None else value, copies, f"{where}.{part}")
        for stage, number in enumerate(times[part]):
            if number < 0:
                raise ValueError(
                    f"{where}.{part}[{stage}]: {float(number):g} is negative; a time is 0 or more"
                )
    _require_each_kind(times, placement.stages)
    device_of = placement.device_of_stage
    for part, neighbours in (
        (Part.SEND_F, placement.following),
        (Part.SEND_B, placement.previous),
    ):
        times[part] = tuple(
            Fraction(0) if other is None or device_of[other] == device_of[stage] else number
            for stage, (number, other) in enumerate(zip(times[part], neighbours, strict=True))
        )
    return ComponentTimes(layers, tuple(times[part] for part in Part))


def _require_each_kind(times: dict[Part, tuple[Fraction, ...]], stages: int) -> None:
    for stage in range(stages):
        for parts in (FORWARD, BACKWARD_INPUT, tuple(WEIGHT_AFTER.values())):
            if not any(times[part][stage] for part in parts):
                raise ValueError(
                    f"cost.components: stage {stage} has none of {', '.join(parts)}; "
                    "give at least one of them a time above 0"
                )
