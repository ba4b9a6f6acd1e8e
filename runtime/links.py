"""How long a message takes from device to device: half a round trip of the largest one."""

from collections.abc import Mapping
from statistics import median

import torch
import torch.distributed as dist

from bubbleproof.runtime.agree import everywhere
from bubbleproof.runtime.clocks import now_ns
from bubbleproof.schedules.placement import Placement

PINGS = 12
"""Round trips of a link, of which the first two are not counted."""


def transfer_times_ns(
    messages: Mapping[tuple[int, int], int], placement: Placement, device: torch.device
) -> tuple[tuple[int, ...], ...]:
    """Return the time of a message from device to device, in nanoseconds; all processes call it.

    Parameters
    ----------
    messages
        What stages of this process send: the bytes from one stage to another.
    placement
        On which device, each a rank, a stage is. Between devices that exchange nothing the time is
        given as 0.
    device
        Where this process's tensors are.
    """
    sizes: dict[tuple[int, int], int] = {}
    for sent in everywhere(messages, None):
        for stages, size in sent.items():
            near, far = sorted(placement.device_of_stage[stage] for stage in stages)
            if near != far:
                sizes[near, far] = max(size, sizes.get((near, far), 0))
    times = {link: _link_ns(link, size, device) for link, size in sorted(sizes.items())}
    devices = range(placement.devices)
    return tuple(tuple(times.get((min(a, b), max(a, b)), 0) for b in devices) for a in devices)


def _link_ns(link: tuple[int, int], size_bytes: int, device: torch.device) -> int:
    """Return half the median round trip between two ranks; all processes call it."""
    rank, (near, far) = dist.get_rank(), link
    trips: list[int] = []
    message = torch.zeros(max(1, size_bytes), dtype=torch.uint8, device=device)
    for _ in range(PINGS if rank in link else 0):
        start = now_ns(device)
        if rank == near:
            dist.send(message, far)
            dist.recv(message, far)
        else:
            dist.recv(message, near)
            dist.send(message, near)
        trips.append(now_ns(device) - start)
    own = round(median(trips[2:]) / 2) if rank == near else None
    return next(each for each in everywhere(own, None) if each is not None)
