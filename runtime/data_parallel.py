# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# Torch leaves collective calls untyped.
"""Several pipelines beside each other, each with its part of the data.

Gradients are the mean over pipelines of what each makes of its own batch, reduced once a step,
where the program says REDUCE_GRAD. There are two ways:

- Each process holds its stages whole. ``average_gradients`` starts a stage's reduction at its
  REDUCE_GRAD and waits for it at the end of the step: it runs beside what the device still has to
  do for other stages.
- Each process holds a part of its stages' weights, by torch's ``fully_shard`` before ``load``. The
  program's UNSHARD and RESHARD then say when weights are fetched and let go, not their use, and its
  REDUCE_GRAD scatters the sums. Torch waits for it there.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import FSDPModule
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from bubbleproof.runtime.stage import Stage
from bubbleproof.runtime.step import Runtime
from bubbleproof.schedules.program import Action, ActionKind, Program


def average_gradients(runtime: Runtime, group: ProcessGroup) -> None:
    """Make copies of a pipeline equal, and have their gradients averaged in each step.

    Parameters
    ----------
    runtime
        This process's part of its pipeline. Its parameters and buffers become those of the first
        process of the group.
    group
        The processes that are the same device in each of the pipelines. Collective calls of
        ``group`` by others would mix with those that are under way during a step.

    Raises
    ------
    ValueError
        If a stage's weights are sharded, and torch reduces them already.
    """
    for number, stage in runtime.stages.items():
        if _is_sharded(stage.submod):
            raise ValueError(
                f"stage {number} is sharded by fully_shard, which reduces its gradients; "
                "leave out average_gradients, or fully_shard"
            )
    replica_of = runtime.program.problem.placement.replica_of
    with torch.no_grad():
        for stage in runtime.stages.values():
            for tensor in (*stage.submod.parameters(), *stage.submod.buffers()):
                dist.broadcast(tensor, group=group, group_src=0)
    # Copies on one device are summed when the last of them is done, and averaged after that.
    by_layers = sorted(runtime.stages, key=lambda number: replica_of[number])
    for _, numbers in groupby(by_layers, key=lambda number: replica_of[number]):
        stages = [runtime.stages[number] for number in numbers]
        mean = Mean(stages, group)
        for stage in stages:
            stage.reducers.append(mean)


class Mean:
    """Averages gradients over pipelines while other stages go on; a ``Reducer``.

    Parameters
    ----------
    stages
        The stages of this device that are reduced together.
    group
        The processes to average over.
    """

    def __init__(self, stages: Sequence[Stage], group: ProcessGroup) -> None:
        self.modules = tuple({id(stage.submod): stage.submod for stage in stages}.values())
        self.group = group
        self.expected = len(stages)
        self.arrived = 0
        self.open: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Begin to count; what earlier steps left is the same on all, and so is its mean."""
        self.arrived = 0

    def reduce(self) -> None:
        """Start to reduce when the last of the stages comes to it."""
        self.arrived += 1
        if self.arrived < self.expected:
            return
        gradients: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for module in self.modules:
            for parameter in module.parameters():
                if parameter.requires_grad:
                    if parameter.grad is None:
                        # Where no backward came to it, one of another pipeline may have.
                        parameter.grad = torch.zeros_like(parameter)
                    kind = (parameter.device, parameter.dtype)
                    gradients.setdefault(kind, []).append(parameter.grad)
        self.open += [_start_mean(alike, self.group) for alike in gradients.values()]

    def finish(self) -> None:
        """Wait for the means and put them into the gradients."""
        for end in self.open:
            end()
        self.open.clear()


def _start_mean(gradients: Sequence[Tensor], group: ProcessGroup) -> Callable[[], None]:
    """Start to average gradients in one message, and return what waits for it and stores it."""
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    flat.div_(dist.get_world_size(group))
    work = dist.all_reduce(flat, group=group, async_op=True)

    def end() -> None:
        assert isinstance(work, dist.Work)
        work.wait()
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    return end


def follow_program(modules: Mapping[int, Module], program: Program) -> None:
    """Leave it to a program when sharded weights are fetched, let go and reduced.

    Parameters
    ----------
    modules
        This device's stages.
    program
        Verified.

    Raises
    ------
    ValueError
        If the program has no UNSHARD for a sharded stage, or a module reduces by itself.
    """
    unsharded = {
        step.stage
        for row in program.rows
        for step in row
        if isinstance(step, Action) and step.kind is ActionKind.UNSHARD
    }
    for stage, module in modules.items():
        if isinstance(module, DistributedDataParallel):
            raise ValueError(
                f"stage {stage} is wrapped in DistributedDataParallel, which does not see W and "
                "counts microbatches by itself; give the module itself, and call "
                "bubbleproof.runtime.average_gradients"
            )
        if not _is_sharded(module):
            continue
        if not isinstance(module, FSDPModule):
            raise ValueError(
                f"stage {stage} has sharded layers but is not sharded itself; "
                "call fully_shard on the stage's module, too"
            )
        if stage not in unsharded:
            raise ValueError(
                f"stage {stage} is sharded, but the program has no {stage}UNSHARD; "
                "lower it with most_unsharded"
            )
        # Torch would let weights go behind each F; an I finds them gone.
        module.set_reshard_after_forward(False)


def _is_sharded(module: Module) -> bool:
    return any(isinstance(each, FSDPModule) for each in module.modules())
