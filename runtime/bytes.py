# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# The events of torch's profiler have no types.
"""What an op leaves allocated: what it allocates less what it frees."""

import os
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

T = TypeVar("T")

_RANGE = "bubbleproof: one op"


def allocated(work: Callable[[], T], device: torch.device) -> tuple[T, int]:
    """Run an op and return its result with the bytes by which it raised what is allocated.

    On a GPU the allocator is asked; on a CPU torch's profiler counts what its allocator does.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        result = work()
        torch.cuda.synchronize(device)
        return result, torch.cuda.memory_allocated(device) - before
    # Else the profiler's own notes would be on the user's screen.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
        record_function(_RANGE),
    ):
        result = work()
    changes = [event.cpu_memory_usage for event in profiler.events() or () if event.name == _RANGE]
    return result, sum(changes)


def tensors_of(output: object) -> tuple[Tensor, ...] | None:
    """Return what a stage made as a tuple of tensors; None where it is something else."""
    parts = output if isinstance(output, tuple) else (output,)
    tensors = tuple(part for part in parts if isinstance(part, Tensor))
    return tensors if len(tensors) == len(parts) else None


def size_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's numbers."""
    return tensor.numel() * tensor.element_size()
