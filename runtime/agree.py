"""What all processes must see alike before a step runs, so that none waits for one that gave up."""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist
from torch.distributed import ProcessGroup

T = TypeVar("T")


def everywhere(own: T, group: ProcessGroup | None) -> list[T]:
    """Return what each process of a group has, by rank."""
    gathered: list[T | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, own, group)  # pyright: ignore[reportUnknownMemberType]
    return [each for each in gathered if each is not None]


def all_or_none(make: Callable[[], T], group: ProcessGroup | None) -> T:
    """Return what this process makes, or raise the same error on all if one of them refuses.

    Raises
    ------
    ValueError
        With the first rank that refused and its reason; without the rank where all refused alike.
    """
    made: list[T] = []
    reason = ""
    try:
        made.append(make())
    except (OSError, TypeError, ValueError) as error:
        reason = str(error)
    reasons = everywhere(reason, group)
    refused = [rank for rank, each in enumerate(reasons) if each]
    if refused:
        first = reasons[refused[0]]
        raise ValueError(first if set(reasons) == {first} else f"rank {refused[0]}: {first}")
    return made[0]
