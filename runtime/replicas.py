# pyright: reportUnknownMemberType=false
# Torch leaves collective calls untyped.
"""Copies of the same weights on several stages, as in DualPipe and Chimera.

Stage r and stage p + i hold the same layers, on devices r and p-1-r. Each sees the microbatches of
its own chain only, so the copies start equal, and what their backwards add up is summed over the
copies where the program says REDUCE_GRAD; equal gradients then keep them equal. Each set of devices
has a process group of its own: a sum can never meet one of the pipeline's messages.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor
from torch.nn import Module

from bubbleproof.runtime.stage import Stage
from bubbleproof.schedules.placement import Placement

Layout: TypeAlias = tuple[tuple[str, tuple[int, ...], str], ...]
"""The name, shape and dtype of each parameter and buffer of a module."""


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of one stage's weights.

    Parameters
    ----------
    original
        The stage that has them of its own.
    stages
        All stages that hold them, the original first.
    devices
        Their devices, each once, ascending.
    """

    original: int
    stages: tuple[int, ...]
    devices: tuple[int, ...]


def copies_of(placement: Placement) -> tuple[Copies, ...]:
    """Return what stages hold together, in the order of the originals."""
    holders: dict[int, list[int]] = {}
    for stage, original in enumerate(placement.replica_of):
        holders.setdefault(original, []).append(stage)
    return tuple(
        Copies(
            original,
            (original, *(stage for stage in stages if stage != original)),
            tuple(sorted({placement.device_of_stage[stage] for stage in stages})),
        )
        for original, stages in sorted(holders.items())
        if len(stages) > 1
    )


def layout(module: Module) -> Layout:
    """Return what must be the same in two modules that hold the same weights."""
    return tuple(
        (name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in _tensors(module)
    )


def require_same_layout(copies: Sequence[Copies], layouts: Mapping[int, Layout]) -> None:
    """Refuse copies whose parameters or buffers are not alike.

    Parameters
    ----------
    copies
        What stages hold together.
    layouts
        The layout of each stage of the placement.

    Raises
    ------
    ValueError
        With the first parameter that differs.
    """
    for each in copies:
        expected = layouts[each.original]
        for stage in each.stages[1:]:
            for ours, theirs in zip_longest(expected, layouts[stage]):
                if ours != theirs:
                    raise ValueError(
                        f"stage {stage} must hold a copy of stage {each.original}'s weights, "
                        f"but has {_shown(theirs)} where stage {each.original} has {_shown(ours)}; "
                        "build both stages from the same layers"
                    )


def connect(stages: Mapping[int, Stage], placement: Placement, group: ProcessGroup | None) -> None:
    """Make all copies equal to their originals, and have their gradients summed in each step.

    Parameters
    ----------
    stages
        This device's stages.
    placement
        All stages.
    group
        The processes of the pipeline.
    """
    groups: dict[tuple[int, ...], ProcessGroup] = {}
    for copies in copies_of(placement):
        here = [stages[stage] for stage in copies.stages if stage in stages]
        if not here:
            continue
        among = None
        if len(copies.devices) > 1:
            if copies.devices not in groups:
                groups[copies.devices] = _subgroup(copies.devices, group)
            among = groups[copies.devices]
        source = _global_rank(placement.device_of_stage[copies.original], group)
        _spread([stage.submod for stage in here], source, among)
        total = Sum(here, among, len(copies.stages))
        for stage in here:
            stage.reducers.append(total)


class Sum:
    """Sums the gradients of copies; a ``Reducer`` of each of their stages on this device.

    Parameters
    ----------
    here
        The stages on this device that hold a copy.
    among
        The processes that hold one; None where it is this device alone.
    copies
        How many copies there are.
    """

    def __init__(self, here: Sequence[Stage], among: ProcessGroup | None, copies: int) -> None:
        modules = {id(stage.submod): stage.submod for stage in here}
        self.modules = tuple(modules.values())
        self.among = among
        self.copies = copies - (len(here) - len(self.modules))
        self.expected = len(here)
        self.arrived = 0

    def begin(self) -> None:
        """Take the part of one copy from what earlier steps left, since all have all of it."""
        self.arrived = 0
        for module in self.modules:
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(self.copies)

    def reduce(self) -> None:
        """Sum when the last of this device's copies comes to it."""
        self.arrived += 1
        if self.arrived < self.expected:
            return
        with torch.no_grad():
            first, *others = (tuple(module.parameters()) for module in self.modules)
            for index, parameter in enumerate(first):
                if not parameter.requires_grad:
                    continue
                total = _held(_gradient(parameter))
                for copy in others:
                    total += _held(_gradient(copy[index]))
                if self.among is not None:
                    dist.all_reduce(total, group=self.among)
                for copy in others:
                    _held(_gradient(copy[index])).copy_(total)

    def finish(self) -> None:
        """Have nothing open: a sum is over when ``reduce`` returns."""


def _gradient(parameter: Tensor) -> Tensor:
    """Return a parameter's gradient, which is zero where no backward reached it."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _held(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds; all of it where it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _spread(here: Sequence[Module], source: int, among: ProcessGroup | None) -> None:
    """Make the copies of all devices, and then those on this device, equal to the original."""
    with torch.no_grad():
        if among is not None:
            for _, tensor in _tensors(here[0]):
                dist.broadcast(_held(tensor), source, group=among)
        for module in here[1:]:
            for (_, ours), (_, theirs) in zip(_tensors(here[0]), _tensors(module), strict=True):
                _held(theirs).copy_(_held(ours))


def _subgroup(devices: Sequence[int], group: ProcessGroup | None) -> ProcessGroup:
    # Only members take part, so that pipelines beside each other need not know of one another.
    made = dist.new_group(
        [_global_rank(device, group) for device in devices], use_local_synchronization=True
    )
    assert isinstance(made, ProcessGroup)
    return made


def _global_rank(device: int, group: ProcessGroup | None) -> int:
    return device if group is None else dist.get_global_rank(group, device)


def _tensors(module: Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _shown(entry: tuple[str, tuple[int, ...], str] | None) -> str:
    if entry is None:
        return "nothing"
    name, shape, dtype = entry
    return f"{name} {list(shape)} {dtype.removeprefix('torch.')}"
