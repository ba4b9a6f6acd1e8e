"""A pipeline stage of torch that knows our placement, times its ops and counts what it holds.

Torch's stage takes number 0 for the first of all and the last number for the one that computes the
loss. With two chains there are two of each, so a stage here asks its placement. What is timed is
compute alone: the methods that are wrapped wait for no message.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch
from torch.distributed import ProcessGroup
from torch.distributed.pipelining import PipelineStage

from bubbleproof.runtime.bytes import tensors_of
from bubbleproof.runtime.clocks import now_ns
from bubbleproof.schedules.intervals import Interval
from bubbleproof.schedules.ops import Op, OpKind
from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.torch_numbers import torch_numbers

Recorder: TypeAlias = Callable[[Interval], None]
"""What is told of each op when it has run; the ``append`` of a list is one."""


@dataclass(slots=True)
class Live:
    """How many activations the stages of a device hold: one from each F to its B or W.

    Parameters
    ----------
    now
        For each stage how many it holds.
    peak_of_stage
        For each stage the most that it held at once.
    peak
        The most that all together held at once.
    """

    now: Counter[int] = field(default_factory=Counter[int])
    peak_of_stage: Counter[int] = field(default_factory=Counter[int])
    peak: int = 0

    def allocate(self, stage: int) -> None:
        """Count an activation that a forward makes."""
        self.now[stage] += 1
        self.peak_of_stage[stage] = max(self.peak_of_stage[stage], self.now[stage])
        self.peak = max(self.peak, self.now.total())

    def free(self, stage: int) -> None:
        """Count an activation that a backward has used up."""
        self.now[stage] -= 1


def require_module(given: object, stage: int) -> torch.nn.Module:
    """Return the module that a user gave for a stage.

    Raises
    ------
    ValueError
        If it is something else.
    """
    if not isinstance(given, torch.nn.Module):
        raise ValueError(f"stage {stage}: a {type(given).__name__} is no torch.nn.Module; give one")
    return given


def require_tensors(output: object, stage: int) -> tuple[torch.Tensor, ...]:
    """Return what a stage returned as a tuple of tensors.

    Raises
    ------
    ValueError
        If it is something else: a list would reach the loss as one, and the next stage as tensors.
    """
    tensors = tensors_of(output)
    if not tensors:
        raise ValueError(
            f"stage {stage} returned a {type(output).__name__}; a tensor or a tuple of tensors "
            "can be handed on"
        )
    return tensors


class Reducer(Protocol):
    """Sums a stage's gradients over processes; data parallelism plugs in here."""

    def begin(self) -> None:
        """Prepare for a step, before anything of it runs."""
        ...

    def reduce(self) -> None:
        """Start to reduce: all microbatches of the stage are done."""
        ...

    def finish(self) -> None:
        """End a step: gradients are read next."""
        ...


class Stage(PipelineStage):
    """A stage of a placement on this device.

    Parameters
    ----------
    module
        What the stage computes.
    number
        The stage's number in the placement. ``stage_index`` is torch's number, which differs where
        there are several chains.
    placement
        All stages.
    device
        Where the module's parameters are.
    group
        The processes of the pipeline, one per device; None: all.
    recorder
        Told of each op that ran. On a GPU the device is then synchronized around each op, so that
        the times are those of the op and not of its launch.
    live
        Counts what the device holds; shared by its stages.

    Attributes
    ----------
    number
        The stage's number in the placement; torch's is ``stage_index``.
    live
        What the device holds.
    loss_of
        On the last stage of a chain what makes of an output and its microbatch the value that the
        backward starts from; it is part of the forward and of its time. Set for each step.
    roots
        On the last stage of a chain these values by microbatch, until the backward takes them: in
        whatever order forwards run, each backward finds its own.
    before_backward
        Called before each I and B, for what has to be over before gradients are written.
    reducers
        What REDUCE_GRAD does beside torch's reduction of sharded weights, one after the other.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        number: int,
        *,
        placement: Placement,
        device: torch.device,
        group: ProcessGroup | None = None,
        recorder: Recorder | None = None,
        live: Live | None = None,
    ) -> None:
        """Build the stage; its neighbours are met in the first step."""
        # Torch asks for is_first and is_last while it builds the stage.
        self.number = number
        self.starts_chain = placement.previous[number] is None
        self.ends_chain = placement.following[number] is None
        self.recorder = recorder
        self.live = Live() if live is None else live
        self.loss_of: Callable[[object, int], torch.Tensor] | None = None
        self.roots: dict[int, torch.Tensor] = {}
        self.before_backward: Callable[[], None] | None = None
        self.reducers: list[Reducer] = []
        numbers = torch_numbers(placement)
        super().__init__(module, numbers[number], max(numbers) + 1, device, group=group)

    @property
    def is_first(self) -> bool:
        """Whether a chain begins here."""
        return self.starts_chain

    @property
    def is_last(self) -> bool:
        """Whether a chain ends here, with the loss."""
        return self.ends_chain

    def forward_one_chunk(
        self,
        fwd_chunk_id: int,
        args: tuple[object, ...],
        kwargs: dict[str, object] | None = None,
        save_forward_output: bool = True,
    ) -> object:
        """Run F, and the loss on the last stage."""
        self.live.allocate(self.number)
        start = self._clock()
        output: object = super().forward_one_chunk(fwd_chunk_id, args, kwargs, save_forward_output)
        require_tensors(output, self.number)
        if self.loss_of is not None and self.ends_chain:
            self.roots[fwd_chunk_id] = self.loss_of(output, fwd_chunk_id)
        self._report(OpKind.FORWARD, fwd_chunk_id, start)
        return output

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: torch.Tensor | None = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        """Run B, or I where it is not the full backward."""
        if self.before_backward is not None:
            self.before_backward()
        start = self._clock()
        super().backward_one_chunk(  # pyright: ignore[reportUnknownMemberType]
            bwd_chunk_id, loss, full_backward, last_backward
        )
        if full_backward:
            self.live.free(self.number)
        kind = OpKind.BACKWARD if full_backward else OpKind.BACKWARD_INPUT
        self._report(kind, bwd_chunk_id, start)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Run W; on the first stage of a chain it is the whole backward, since I does nothing."""
        start = self._clock()
        if self.starts_chain:
            # Torch would do so for its stage 0 only.
            inputs, _, output, gradients = self.backward_state.pop(bwd_chunk_id)
            arguments = {
                "stage_output": output,
                "output_grads": gradients,
                "input_values": inputs,
            }
            self.backward_maybe_with_nosync(  # pyright: ignore[reportUnknownMemberType]
                "full", arguments, last_backward
            )
        else:
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        self.live.free(self.number)
        self._report(OpKind.BACKWARD_WEIGHT, bwd_chunk_id, start)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Run REDUCE_GRAD."""
        super().perform_reduce_grad(grad_scale_factor)
        for reducer in self.reducers:
            reducer.reduce()

    def _clock(self) -> int:
        return 0 if self.recorder is None else now_ns(self.device)

    def _report(self, kind: OpKind, microbatch: int, start_ns: int) -> None:
        if self.recorder is not None:
            op = Op(self.number, kind, microbatch)
            self.recorder(Interval(op, start_ns, self._clock()))
