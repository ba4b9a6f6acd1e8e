"""What ``load`` returns: a pipeline whose steps train, of which each process has its device."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from bubbleproof.runtime.executor import Executor
from bubbleproof.runtime.failure import PeerError, first_failure
from bubbleproof.runtime.microbatches import (
    Inputs,
    Targets,
    arguments_of,
    keywords_of,
    targets_of,
)
from bubbleproof.runtime.stage import Live, Stage
from bubbleproof.schedules.program import Program

Shape: TypeAlias = tuple[torch.Size, torch.dtype]
"""What must be alike in all microbatches."""


class Runtime:
    """One device's part of a program, on the processes of a pipeline.

    Attributes
    ----------
    program
        What all devices execute.
    rank
        The device that this process is: its rank in the group.
    group
        The processes of the pipeline; None: all.
    stages
        This device's stages by their number in the placement, ascending. What sums gradients
        over more processes is appended to their ``reducers``.
    live
        How many activations this device held, counted over all steps so far.
    executor
        Torch's runtime.
    """

    def __init__(
        self,
        program: Program,
        stages: Mapping[int, Stage],
        executor: Executor,
        *,
        rank: int,
        group: ProcessGroup | None,
        live: Live,
    ) -> None:
        self.program = program
        self.rank = rank
        self.group = group
        self.stages = stages
        self.live = live
        self.executor = executor
        self.shapes: list[Shape] | None = None

    @property
    def begins(self) -> bool:
        """Whether a chain begins on this device, which then needs inputs."""
        return any(stage.is_first for stage in self.stages.values())

    @property
    def ends(self) -> bool:
        """Whether a chain ends on this device, which then needs targets and has losses."""
        return any(stage.is_last for stage in self.stages.values())

    def step(
        self, inputs: Inputs | None = None, targets: Targets | None = None, **keywords: object
    ) -> list[Tensor]:
        """Run all forwards and backwards of a batch and leave gradients in the parameters.

        Gradients add to those of earlier steps, as always in torch. Each loss counts as its part of
        the mean over all microbatches, unless ``load`` was told to leave losses as they are.

        Parameters
        ----------
        inputs
            The whole batch, of all chains, where a chain begins; not looked at elsewhere. A tensor
            or a tuple of tensors (several arguments) is split along dimension 0; a list has a
            tensor or a tuple of them for each microbatch.
        targets
            The whole batch where a chain ends; not looked at elsewhere. A tensor is split, a list
            has one entry for each microbatch, in the same order as the inputs.
        keywords
            For the forwards of all stages of this device; tensors are split along dimension 0.

        Returns
        -------
        list of Tensor
            Where chains end, the losses of their microbatches in the order of their numbers; else
            empty. With two chains, each end has its own half.

        Raises
        ------
        ValueError
            If what this device needs is missing or cannot be split, has another shape than in the
            first step, or gradients are disabled.
        PeerError
            If the step failed since it did so on another process, with that one's error.
        """
        try:
            return self._step(inputs, targets, keywords)
        except Exception as error:
            first = first_failure(error)
            if first is None:
                raise
            raise PeerError(f"{first} (this is rank {dist.get_rank()})") from error

    def _step(
        self, inputs: Inputs | None, targets: Targets | None, keywords: Mapping[str, object]
    ) -> list[Tensor]:
        if not torch.is_grad_enabled():
            raise ValueError("step under torch.no_grad(); its backwards need gradients enabled")
        number = self.program.problem.total_microbatches
        arguments: Sequence[tuple[Tensor, ...]] = [()] * number
        expected: list[object] | None = None
        if self.begins:
            if inputs is None:
                raise ValueError(f"inputs: missing on rank {self.rank}, where a chain begins")
            arguments = arguments_of(inputs, number)
            self._require_shapes([(tensor.shape, tensor.dtype) for tensor in arguments[0]])
        if self.ends:
            if targets is None:
                raise ValueError(f"targets: missing on rank {self.rank}, where a chain ends")
            expected = targets_of(targets, number)
        losses = self.executor.run(arguments, keywords_of(keywords, number), expected)
        return [loss for _, loss in sorted(losses.items())]

    def _require_shapes(self, shapes: list[Shape]) -> None:
        """Refuse what does not fit torch's receive buffers, which the first step made."""
        if self.shapes is None:
            self.shapes = shapes
        if shapes != self.shapes:
            raise ValueError(
                f"inputs: microbatches of {_shown(shapes)} after a first step with "
                f"{_shown(self.shapes)}; keep one shape, or load another runtime for this one"
            )


def _shown(shapes: Sequence[Shape]) -> str:
    return ", ".join(
        f"{list(shape)} {str(dtype).removeprefix('torch.')}" for shape, dtype in shapes
    )
