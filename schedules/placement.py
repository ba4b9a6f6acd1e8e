"""Which device holds which stage, and the order in which a microbatch passes the stages."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TypeAlias

from bubbleproof.schedules.quantity import shown
from bubbleproof.schedules.words import is_list

PlacementWords: TypeAlias = str | Mapping[str, object]
"""A placement as a file writes it: a name, or ``{"device_of_stage": [...], "chains": [...]}``."""

NAMES = '"linear", "loop:V", "v", "wave:V", "bidirectional"'
MOST_STAGES = 100_000


@dataclass(frozen=True, slots=True)
class Placement:
    """Stages on devices.

    Parameters
    ----------
    name
        As a problem file writes it (``"linear"``, ``"loop:2"``, ...), or ``"explicit"``.
    devices
        Number of devices.
    device_of_stage
        The device of each stage.
    chains
        For each chain the stages that its microbatches pass, in order. Every stage is in exactly
        one chain.
    replica_of
        For each stage the stage whose weights it holds a copy of; itself where it has its own.

    Raises
    ------
    ValueError
        If a stage is on no device, in no chain or in two, or a copy of a copy.
    """

    name: str
    devices: int
    device_of_stage: tuple[int, ...]
    chains: tuple[tuple[int, ...], ...]
    replica_of: tuple[int, ...]
    previous: tuple[int | None, ...] = field(init=False, repr=False, compare=False)
    """For each stage the stage before it in its chain; None for the first."""
    following: tuple[int | None, ...] = field(init=False, repr=False, compare=False)
    """For each stage the stage after it in its chain; None for the last."""
    chain_of_stage: tuple[int, ...] = field(init=False, repr=False, compare=False)
    stages_of_device: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    """For each device its stages, in ascending order."""

    def __post_init__(self) -> None:
        """Check the placement and derive what is looked up often."""
        stages = len(self.device_of_stage)
        if not stages:
            raise ValueError("placement: at least one stage is needed")
        self._check_replicas()
        for stage, device in enumerate(self.device_of_stage):
            if not 0 <= device < self.devices:
                raise ValueError(
                    f"placement: stage {stage} is on device {device}, "
                    f"but the devices are 0..{self.devices - 1}"
                )
        previous: list[int | None] = [None] * stages
        following: list[int | None] = [None] * stages
        chain_of: list[int | None] = [None] * stages
        for index, chain in enumerate(self.chains):
            if not chain:
                raise ValueError(f"placement: chain {index} has no stage; at least one is needed")
            for position, stage in enumerate(chain):
                if not 0 <= stage < stages:
                    raise ValueError(
                        f"placement: chain {index} names stage {stage}, "
                        f"but the stages are 0..{stages - 1}"
                    )
                if chain_of[stage] is not None:
                    raise ValueError(
                        f"placement: stage {stage} is passed twice by the chains; once is right"
                    )
                chain_of[stage] = index
                if position:
                    previous[stage] = chain[position - 1]
                    following[chain[position - 1]] = stage
        for stage, index in enumerate(chain_of):
            if index is None:
                raise ValueError(f"placement: stage {stage} is in no chain")
        held: list[list[int]] = [[] for _ in range(self.devices)]
        for stage, device in enumerate(self.device_of_stage):
            held[device].append(stage)
        object.__setattr__(self, "previous", tuple(previous))
        object.__setattr__(self, "following", tuple(following))
        object.__setattr__(self, "chain_of_stage", tuple(c for c in chain_of if c is not None))
        object.__setattr__(self, "stages_of_device", tuple(map(tuple, held)))

    def _check_replicas(self) -> None:
        if len(self.replica_of) != self.stages:
            raise ValueError(
                f"placement: replica_of has {len(self.replica_of)} numbers "
                f"where {self.stages} are needed"
            )
        for stage, original in enumerate(self.replica_of):
            if not 0 <= original < self.stages or self.replica_of[original] != original:
                raise ValueError(
                    f"placement: stage {stage} copies the weights of stage {original}, "
                    "which has none of its own; a stage that is no copy itself is right"
                )

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.device_of_stage)

    @property
    def in_order(self) -> bool:
        """Whether one chain passes all stages in ascending order, as torch's runtime does."""
        return self.chains == (tuple(range(self.stages)),)

    def chain(self, stage: int) -> tuple[int, ...]:
        """Return the stages of a stage's chain, in order."""
        return self.chains[self.chain_of_stage[stage]]

    def __str__(self) -> str:
        """The name, or the devices of the stages where there is none."""
        return self.name if self.name != "explicit" else f"explicit {list(self.device_of_stage)}"


def linear(devices: int) -> Placement:
    """Stage s on device s."""
    return _one_chain("linear", devices, range(devices))


def loop(devices: int, chunks: int) -> Placement:
    """Stage s on device s mod p: Megatron's interleaving (arXiv 2104.04473, sec. 2.2)."""
    return _one_chain(f"loop:{chunks}", devices, (*range(devices),) * chunks)


def wave(devices: int, chunks: int) -> Placement:
    """Down the devices and up again, turning at the ends: Hanayo (arXiv 2308.15762, sec. 3)."""
    return _one_chain(f"wave:{chunks}", devices, _zigzag(devices, chunks))


def v(devices: int) -> Placement:
    """Two chunks per device, down and up: ZB-V (arXiv 2405.15362, sec. 3)."""
    return _one_chain("v", devices, _zigzag(devices, 2))


def bidirectional(devices: int) -> Placement:
    """Two chains in opposite directions, each device with a stage of both (DualPipe, Chimera).

    Stage s < p is on device s (chain 0). Stage p+i is on device p-1-i (chain 1) and holds a
    replica of stage i's weights.
    """
    down, up = range(devices), range(devices, 2 * devices)
    return Placement(
        name="bidirectional",
        devices=devices,
        device_of_stage=(*down, *reversed(down)),
        chains=(tuple(down), tuple(up)),
        replica_of=(*down, *down),
    )


def explicit(
    devices: int,
    device_of_stage: Sequence[int],
    chains: Sequence[Sequence[int]] | None = None,
) -> Placement:
    """Any map of stages to devices; without chains one chain passes all stages in order."""
    stages = tuple(device_of_stage)
    return Placement(
        name="explicit",
        devices=devices,
        device_of_stage=stages,
        chains=(
            (tuple(range(len(stages))),) if chains is None else tuple(tuple(c) for c in chains)
        ),
        replica_of=tuple(range(len(stages))),
    )


def parse_placement(words: PlacementWords, devices: int) -> Placement:
    """Read a placement as a problem file writes it.

    Raises
    ------
    ValueError
        If the name is unknown, a number is out of range, or a stage is on no device or in no
        chain.
    """
    if isinstance(words, Mapping):
        return _parse_explicit(words, devices)
    match words:
        case "linear":
            return linear(devices)
        case "v":
            return v(devices)
        case "bidirectional":
            return bidirectional(devices)
        case str():
            shape = re.fullmatch(r"(loop|wave):([1-9][0-9]{0,5})", words)
            if shape is None:
                raise ValueError(
                    f"placement: {shown(words)} is unknown{_hint(words)} accepted are {NAMES} "
                    '(V chunks per device, as "loop:2") and {"device_of_stage": [...]}'
                )
            chunks = int(shape[2])
            if chunks * devices > MOST_STAGES:
                raise ValueError(
                    f"placement: {shown(words)} on {devices} devices is {chunks * devices} stages; "
                    f"at most {MOST_STAGES} are supported"
                )
            return loop(devices, chunks) if shape[1] == "loop" else wave(devices, chunks)
        case _:  # pyright: ignore[reportUnnecessaryComparison]
            raise ValueError(
                f"placement: a name ({NAMES}) or an object with device_of_stage is expected, "
                f"not {shown(words)}"
            )


def _hint(words: str) -> str:
    """Return the name that is most likely meant, where one is close."""
    names = ("linear", "loop:2", "v", "wave:2", "bidirectional")
    close = get_close_matches(words.strip().lower()[:40], names, n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else ";"


def placement_words(placement: Placement) -> PlacementWords:
    """Write a placement as a problem file does; ``parse_placement`` reads it back."""
    if placement.name != "explicit":
        return placement.name
    words: dict[str, object] = {"device_of_stage": list(placement.device_of_stage)}
    if not placement.in_order:
        words["chains"] = [list(chain) for chain in placement.chains]
    return words


def _parse_explicit(words: Mapping[str, object], devices: int) -> Placement:
    unknown = sorted(set(words) - {"device_of_stage", "chains"})
    if unknown:
        raise ValueError(
            f"placement: {shown(unknown[0])} is unknown; accepted are device_of_stage and chains"
        )
    if "device_of_stage" not in words:
        raise ValueError("placement: device_of_stage is missing; give one device for each stage")
    device_of_stage = _whole_numbers(words["device_of_stage"], "placement.device_of_stage")
    if not device_of_stage:
        raise ValueError("placement.device_of_stage: at least one stage is needed")
    if len(device_of_stage) > MOST_STAGES:
        raise ValueError(
            f"placement.device_of_stage: {len(device_of_stage)} stages; "
            f"at most {MOST_STAGES} are supported"
        )
    chains = words.get("chains")
    if chains is None:
        return explicit(devices, device_of_stage)
    if not is_list(chains) or not chains:
        raise ValueError("placement.chains: a list of lists of stages is expected")
    read = [
        _whole_numbers(chain, f"placement.chains[{index}]") for index, chain in enumerate(chains)
    ]
    for index, chain in enumerate(read):
        if not chain:
            raise ValueError(f"placement.chains[{index}]: a chain needs at least one stage")
    return explicit(devices, device_of_stage, read)


def _whole_numbers(value: object, where: str) -> tuple[int, ...]:
    if not is_list(value):
        raise ValueError(f"{where}: a list of whole numbers is expected, not {shown(value)}")
    numbers: list[int] = []
    for index, item in enumerate(value):
        if isinstance(item, bool) or not isinstance(item, int):
            raise ValueError(f"{where}[{index}]: {shown(item)} is not a whole number")
        if not 0 <= item < MOST_STAGES:
            raise ValueError(
                f"{where}[{index}]: {shown(item)} is out of range; 0..{MOST_STAGES - 1} is accepted"
            )
        numbers.append(item)
    return tuple(numbers)


def _one_chain(name: str, devices: int, device_of_stage: Sequence[int]) -> Placement:
    stages = tuple(range(len(device_of_stage)))
    return Placement(name, devices, tuple(device_of_stage), (stages,), stages)


def _zigzag(devices: int, chunks: int) -> tuple[int, ...]:
    down = tuple(range(devices))
    return tuple(d for chunk in range(chunks) for d in (down[::-1] if chunk % 2 else down))
