"""The process group of a command that torchrun started, or of one that runs alone."""

import os
from collections.abc import Generator
from contextlib import contextmanager

import torch
import torch.distributed as dist


@contextmanager
def joined() -> Generator[torch.device]:
    """Make this process one of a group and yield the device on which it computes.

    With a GPU for each process of the machine the backend is NCCL, else gloo on the CPU. Without
    torchrun the process is alone. Where something was raised a group of several is not left: the
    others may never come to the point where they would leave it together.
    """
    alone = "RANK" not in os.environ
    local = int(os.environ.get("LOCAL_RANK", "0"))
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if torch.cuda.is_available() and torch.cuda.device_count() >= beside:
        device, backend = torch.device("cuda", local), "nccl"
        torch.cuda.set_device(device)
    else:
        device, backend = torch.device("cpu"), "gloo"
    if alone:
        store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    else:
        dist.init_process_group(backend)
    try:
        yield device
    except BaseException:
        if alone:
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()
