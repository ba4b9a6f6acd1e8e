# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
# Torch's runtime is private and partly untyped; this is the only module that drives it.
"""Torch's pipeline runtime, executing one of our programs as it is written.

What is different from torch: losses are found by the number of their microbatch, so that the last
stage may run its forwards in any order; there may be several chains; and each loss is divided by
the number of microbatches before its backward, so that nothing is left to scale where gradients are
reduced, and steps may add up their gradients.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import torch
from torch.distributed.pipelining.schedules import (
    OVERLAP_F_B,
    _Action,
    _PipelineContext,
    _PipelineScheduleRuntime,
)

from bubbleproof.runtime.stage import Stage
from bubbleproof.runtime.translate import torch_actions
from bubbleproof.schedules.program import Program
from bubbleproof.schedules.torch_numbers import torch_numbers

Arguments: TypeAlias = tuple[torch.Tensor, ...]
"""What the first stage takes of one microbatch."""

Loss: TypeAlias = Callable[..., torch.Tensor]
"""Makes the loss of one microbatch from what the last stage returned and its target."""


class Overlap(Protocol):
    """Runs a pair; torch's protocol of a custom function, with torch's numbers of stages."""

    def __call__(self, action: _Action, ctx: _PipelineContext) -> None:
        """Run both halves and hand on what they make to stages on the same device."""
        ...


class Executor(_PipelineScheduleRuntime):
    """Torch's runtime for this device's part of a program.

    Parameters
    ----------
    stages
        This device's stages, in torch's order.
    program
        The program; nothing is checked here.
    loss
        Makes losses; needed where a chain ends.
    weight
        What each loss is multiplied by before its backward.
    overlap
        Runs pairs; None: one half after the other.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        program: Program,
        *,
        loss: Loss | None,
        weight: float,
        overlap: Overlap | None,
    ) -> None:
        """Put the program in place of a schedule that torch would lower."""
        problem = program.problem
        number = problem.total_microbatches
        super().__init__(list(stages), number, self._loss_of, scale_grads=False)
        self.loss = loss
        self.targets: Sequence[object] = ()
        # Torch runs the loss once, on its target 0, to find shapes. It takes tensors only, so what
        # it is given are the places of targets, which may be anything.
        self.places = [torch.tensor(place, device="cpu") for place in range(number)]
        self.held = tuple(stages)
        self.weight = weight
        self.pipeline_order_with_comms = torch_actions(program)
        numbers = torch_numbers(problem.placement)
        devices = dict(zip(numbers, problem.placement.device_of_stage, strict=True))
        self.stage_index_to_group_rank = devices
        for stage in stages:
            stage.stage_index_to_group_rank = devices
        if overlap is not None:
            self.register_custom_function(OVERLAP_F_B, overlap)

    def run(
        self,
        arguments: Sequence[Arguments],
        keywords: Sequence[Mapping[str, object]],
        targets: Sequence[object] | None,
    ) -> dict[int, torch.Tensor]:
        """Run one step and return the losses by microbatch, where chains end.

        Parameters
        ----------
        arguments
            For each microbatch what a first stage takes; empty where no chain begins.
        keywords
            For each microbatch what all stages of this device take beside.
        targets
            For each microbatch what the loss takes; None where no chain ends.
        """
        losses: dict[int, torch.Tensor] = {}

        def root(output: object, microbatch: int) -> torch.Tensor:
            loss = self._loss_of(output, self.places[microbatch])
            losses[microbatch] = loss.detach()
            return loss * self.weight

        self.targets = () if targets is None else targets
        for stage in self.held:
            stage.has_backward = True
            stage.clear_runtime_states()
            stage.roots.clear()
            stage.loss_of = root if targets is not None else None
        # One that several stages share begins and finishes once.
        reducers = dict.fromkeys(each for stage in self.held for each in stage.reducers)
        for reducer in reducers:
            reducer.begin()
        self._step_microbatches(
            list(arguments),
            [dict(each) for each in keywords],
            self.places,
            return_outputs=False,
        )
        for reducer in reducers:
            reducer.finish()
        return losses

    def _loss_of(self, output: object, place: torch.Tensor) -> torch.Tensor:
        """Return the loss of an output and the target at a place."""
        assert self.loss is not None
        return self.loss(output, self.targets[int(place)])

    def _maybe_compute_loss(
        self,
        stage: Stage,
        output: object,
        target_mbs: object,
        mb_index: int,
        loss_kwargs: object = None,
    ) -> None:
        """Do nothing: the stage made the loss together with its output."""

    def _maybe_get_loss(self, stage: Stage, mb_index: int) -> torch.Tensor | None:
        """Return what a backward starts from, on the last stage of a chain."""
        return stage.roots.pop(mb_index) if stage.is_last else None

    def _update_losses(self, stages: object, losses: object) -> None:
        """Do nothing: losses are returned by ``run``."""
