"""What the name of a placement stands for, by formula."""

import re
from dataclasses import dataclass

from bubbleproof.schedules.placement import Placement

_CHUNKED = re.compile(r"(loop|wave):([1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class Layout:
    """Stages on devices, and the order in which microbatches pass them.

    Parameters
    ----------
    device_of_stage
        The device of each stage.
    chains
        For each chain its stages in order.
    replica_of
        For each stage the stage whose weights it holds; itself where they are its own.
    """

    device_of_stage: tuple[int, ...]
    chains: tuple[tuple[int, ...], ...]
    replica_of: tuple[int, ...]


def layout_as_given(placement: Placement) -> Layout:
    """Return the layout that the placement's own tables describe."""
    return Layout(placement.device_of_stage, placement.chains, placement.replica_of)


def stages_of_name(name: str, devices: int) -> int | None:
    """Return how many stages a named placement has; None for a name that stands for nothing."""
    match name:
        case "linear":
            return devices
        case "v" | "bidirectional":
            return 2 * devices
        case _:
            shape = _CHUNKED.fullmatch(name)
            return devices * int(shape[2]) if shape else None


def layout_of_name(name: str, devices: int) -> Layout:
    """Return the layout that a name stands for on p devices.

    linear: stage s on device s. loop:V: on s mod p. v and wave:V: down the devices and up again,
    turning at both ends. bidirectional: stage s < p on device s in chain 0, and stage p+i on
    device p-1-i in chain 1 with a copy of stage i's weights.

    Raises
    ------
    ValueError
        If ``stages_of_name`` knows no such name.
    """
    stages = stages_of_name(name, devices)
    if stages is None:
        raise ValueError(f"{name!a} is the name of no placement; linear is one")
    everything = tuple(range(stages))
    if name == "bidirectional":
        return Layout(
            device_of_stage=tuple(s if s < devices else 2 * devices - 1 - s for s in everything),
            chains=(everything[:devices], everything[devices:]),
            replica_of=tuple(s % devices for s in everything),
        )
    if name.startswith("loop"):
        device_of_stage = tuple(s % devices for s in everything)
    else:
        device_of_stage = tuple(_turning(s, devices) for s in everything)
    return Layout(device_of_stage, (everything,), everything)


def _turning(stage: int, devices: int) -> int:
    leg, step = divmod(stage, devices)
    return step if leg % 2 == 0 else devices - 1 - step
