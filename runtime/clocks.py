"""The clocks of processes, brought together.

Processes of one machine read one monotonic clock. Between machines the difference to rank 0 is
estimated from round trips: the answer's time is taken for the middle of the trip, which is wrong by
at most half of the shortest one.
"""

from pathlib import Path
from socket import gethostname
from time import perf_counter_ns

import torch
import torch.distributed as dist

from bubbleproof.runtime.agree import everywhere

TRIPS = 25

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def now_ns(device: torch.device) -> int:
    """Return this process's clock once a device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter_ns()


def behind_rank_0_ns(device: torch.device) -> int:
    """Return what is to be added to this process's clock for that of rank 0; all call it at once.

    Parameters
    ----------
    device
        Where tensors are that the process group can send.
    """
    machines = everywhere(_machine(), None)
    offset = 0
    for rank in range(1, len(machines)):
        if machines[rank] != machines[0]:
            trip = round_trip_offset_ns(rank, device)
            offset = trip if rank == dist.get_rank() else offset
    return offset


def round_trip_offset_ns(rank: int, device: torch.device) -> int:
    """Return by how much a rank's clock is behind that of rank 0; 0 on ranks that take no part."""
    own = dist.get_rank()
    best: tuple[int, int] | None = None
    for _ in range(TRIPS if own in (0, rank) else 0):
        if own == 0:
            sent = perf_counter_ns()
            _send(sent, rank, device)
            _receive(rank, device)
            _send(perf_counter_ns() - sent, rank, device)
        else:
            sent = _receive(0, device)
            here = perf_counter_ns()
            _send(here, 0, device)
            trip = _receive(0, device)
            best = min(best or (trip + 1, 0), (trip, sent + trip // 2 - here))
    return 0 if best is None else best[1]


def _machine() -> str:
    """Return what tells one running machine from another, where two may have one name."""
    boot = _BOOT.read_text(encoding="ascii") if _BOOT.exists() else ""
    return f"{gethostname()} {boot.strip()}"


def _send(value: int, rank: int, device: torch.device) -> None:
    dist.send(torch.tensor([value], dtype=torch.int64, device=device), rank)


def _receive(rank: int, device: torch.device) -> int:
    number = torch.zeros(1, dtype=torch.int64, device=device)
    dist.recv(number, rank)
    return int(number.item())
