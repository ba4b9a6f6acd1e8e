# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# The backward functions are those of torch's own stages, which are private and partly untyped.
"""What the stages of a model take: times, memory and transfers, measured one op at a time.

Microbatches pass the stages one by one, so that nothing is measured but the op itself: no wait, and
no other device at work. The backwards are those that torch's stages run. On the first stage of a
chain torch leaves I empty and does the whole backward in W; that is measured as it is.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining._backward import (
    stage_backward,
    stage_backward_input,
    stage_backward_weight,
)
from torch.nn import Module

from bubbleproof.runtime.agree import everywhere
from bubbleproof.runtime.bytes import allocated, size_bytes
from bubbleproof.runtime.clocks import now_ns
from bubbleproof.runtime.links import transfer_times_ns
from bubbleproof.runtime.microbatches import arguments_of, targets_of
from bubbleproof.runtime.model import Model
from bubbleproof.runtime.stage import require_module, require_tensors
from bubbleproof.schedules.intervals import Interval
from bubbleproof.schedules.ops import Op, OpKind
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.profile import Profile, StageBytes, spreads

WARM_UP = 2
"""Walks that are not counted: first ones allocate, compile and fill caches."""

T = TypeVar("T")

Tensors = tuple[Tensor, ...]


def measure(model: Model, problem: Problem, *, device: torch.device, rounds: int = 5) -> Profile:
    """Return what a model takes on the devices of this process group; all processes call it.

    Parameters
    ----------
    model
        The model; each process makes the stages that it holds. With one process, all of them.
    problem
        Its placement and number of microbatches; its times are not read.
    device
        Where this process computes.
    rounds
        How often each op is measured.

    Raises
    ------
    ValueError
        If there are several processes, but not one for each device, or a batch cannot be split.
    """
    processes = dist.get_world_size()
    placement = problem.placement
    require_processes(processes, placement.devices)
    holders = placement.device_of_stage if processes > 1 else (0,) * placement.stages
    rank = dist.get_rank()
    modules = {
        stage: require_module(model.stage(placement.replica_of[stage]), stage).to(device)
        for stage, holder in enumerate(holders)
        if holder == rank
    }
    for module in modules.values():
        for parameter in module.parameters():
            # Gradients are there in all steps but the first; they are no part of an op.
            parameter.grad = torch.zeros_like(parameter)
    inputs, targets = model.batch(0)
    number = problem.total_microbatches
    walker = _Walker(
        model=model,
        problem=problem,
        holders=holders,
        rank=rank,
        modules=modules,
        device=device,
        inputs=arguments_of(inputs, number),
        targets=targets_of(targets, number),
    )
    for turn in range(WARM_UP + rounds):
        if turn == WARM_UP:
            walker.intervals.clear()
        for split in (True, False):
            walker.walk(turn, split=split)
    walker.counting = True
    walker.walk(0, split=True)
    transfer = None
    if processes > 1:
        transfer = transfer_times_ns(walker.messages, placement, device)
    reports = everywhere((walker.intervals, walker.bytes_of_stages()), None)
    memory = {stage: each for _, held in reports for stage, each in held.items()}
    return Profile(
        placement=placement,
        times=spreads(interval for intervals, _ in reports for interval in intervals),
        transfer_ns=transfer,
        memory=tuple(memory[stage] for stage in range(placement.stages)),
    )


def require_processes(processes: int, devices: int) -> None:
    """Refuse processes that are neither one for each device nor one alone.

    Raises
    ------
    ValueError
        With both numbers.
    """
    if processes not in (1, devices):
        raise ValueError(
            f"{processes} processes for {devices} devices; start one for each, or one alone, "
            "which measures no transfers"
        )


@dataclass(slots=True)
class _Walker:
    """Takes microbatches through all stages and back, together with the other processes.

    ``counting`` is whether bytes are counted, which takes time, instead of times.
    """

    model: Model
    problem: Problem
    holders: Sequence[int]
    rank: int
    modules: dict[int, Module]
    device: torch.device
    inputs: Sequence[Tensors]
    targets: Sequence[object]
    counting: bool = False
    intervals: list[Interval] = field(default_factory=list[Interval])
    counted: dict[tuple[int, OpKind], int] = field(default_factory=dict[tuple[int, OpKind], int])
    messages: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """Bytes from one stage to another."""

    def walk(self, turn: int, *, split: bool) -> None:
        """Take a microbatch of each chain forward through its stages and back."""
        for index, stages in enumerate(self.problem.placement.chains):
            numbers = self.problem.microbatches_of(index)
            if numbers:
                self._walk_chain(stages, numbers[turn % len(numbers)], split=split)

    def _walk_chain(self, stages: Sequence[int], microbatch: int, *, split: bool) -> None:
        ran: dict[int, tuple[Tensors, Tensors]] = {}
        values: Tensors = tuple(each.to(self.device) for each in self.inputs[microbatch])
        for position, stage in enumerate(stages):
            if position:
                values = self._hand_over(values, stages[position - 1], stage)
            if self.holders[stage] == self.rank:
                received = values
                last = position == len(stages) - 1
                values = self._measured(
                    Op(stage, OpKind.FORWARD, microbatch),
                    lambda s=stage, v=received, e=last: self._forward(s, v, microbatch, last=e),
                )
                ran[stage] = (received, values)
        gradients: Tensors = ()
        for position in reversed(range(len(stages))):
            stage = stages[position]
            last = position == len(stages) - 1
            if not last:
                gradients = self._hand_over(gradients, stages[position + 1], stage)
            if stage in ran:
                # Taken out, so that what is freed is freed within the op.
                ran_here = ran.pop(stage)
                gradients = self._backward(
                    stage, microbatch, ran_here, None if last else gradients, split=split
                )

    def _forward(self, stage: int, values: Tensors, microbatch: int, *, last: bool) -> Tensors:
        output: object = self.modules[stage](*values)
        outputs = require_tensors(output, stage)
        if not last:
            return outputs
        target = self.targets[microbatch]
        if isinstance(target, Tensor):
            target = target.to(self.device)
        return (self.model.loss_fn(output, target) / self.problem.total_microbatches,)

    def _backward(
        self,
        stage: int,
        microbatch: int,
        ran: tuple[Tensors, Tensors],
        gradients: Tensors | None,
        *,
        split: bool,
    ) -> Tensors:
        values, outputs = ran
        parameters = list(self.modules[stage].parameters())
        first = self.problem.placement.previous[stage] is None
        # The last stage starts from its loss, which has no gradient given.
        root = outputs[0] if gradients is None else list(outputs)
        given = None if gradients is None else _aligned(outputs, gradients)

        def whole() -> Tensors:
            return _present(stage_backward(root, given, list(values)))

        if not split:
            return self._measured(Op(stage, OpKind.BACKWARD, microbatch), whole)
        if first:
            self._measured(Op(stage, OpKind.BACKWARD_INPUT, microbatch), tuple)
            return self._measured(Op(stage, OpKind.BACKWARD_WEIGHT, microbatch), whole)
        made, groups = self._measured(
            Op(stage, OpKind.BACKWARD_INPUT, microbatch),
            lambda: stage_backward_input(list(outputs), given, list(values), iter(parameters)),
        )
        self._measured(
            Op(stage, OpKind.BACKWARD_WEIGHT, microbatch),
            lambda: stage_backward_weight(iter(parameters), groups),
        )
        return _present(made)

    def _measured(self, op: Op, work: Callable[[], T]) -> T:
        if self.counting:
            result, self.counted[op.stage, op.kind] = allocated(work, self.device)
            return result
        start = now_ns(self.device)
        result = work()
        self.intervals.append(Interval(op, start, now_ns(self.device)))
        return result

    def _hand_over(self, values: Tensors, source: int, target: int) -> Tensors:
        """Take tensors from the process of a stage to that of another; the others look on."""
        sender, receiver = self.holders[source], self.holders[target]
        forward = self.problem.placement.following[source] == target
        if self.rank == sender:
            self.messages[source, target] = sum(map(size_bytes, values))
        if sender == receiver:
            return tuple(_fresh(value, forward=forward) for value in values)
        shapes = [[(value.shape, value.dtype) for value in values]]
        dist.broadcast_object_list(shapes, sender, device=self.device)
        if self.rank == sender:
            for value in values:
                dist.send(value.detach().contiguous(), receiver)
        if self.rank != receiver:
            return ()
        received: list[Tensor] = []
        for shape, dtype in shapes[0]:
            buffer = torch.empty(shape, dtype=dtype, device=self.device)
            dist.recv(buffer, sender)
            received.append(_fresh(buffer, forward=forward))
        return tuple(received)

    def bytes_of_stages(self) -> dict[int, StageBytes]:
        """Return what each stage of this process holds.

        What a stage sends stays with torch's runtime until the step ends, and each microbatch has a
        receive buffer of its own for each direction. So messages between devices count as static,
        for all microbatches of the chain, and not with the op that makes them.
        """
        placement = self.problem.placement
        held: dict[int, StageBytes] = {}
        for stage, module in self.modules.items():
            number = len(self.problem.microbatches_of_stage(stage))
            before, behind = placement.previous[stage], placement.following[stage]
            gradient = 0 if before is None else self.messages[stage, before]
            output = 0 if behind is None else self.messages[stage, behind]
            own = placement.device_of_stage[stage]
            far_before = before is not None and placement.device_of_stage[before] != own
            far_behind = behind is not None and placement.device_of_stage[behind] != own
            forward = self.counted[stage, OpKind.FORWARD] - (output if far_behind else 0)
            forward = max(0, forward)
            weights = sum(map(size_bytes, module.parameters()))
            held[stage] = StageBytes(
                forward=forward,
                backward_input=max(-forward, self.counted[stage, OpKind.BACKWARD_INPUT] - gradient)
                if before is not None
                else 0,
                static=2 * weights
                + sum(map(size_bytes, module.buffers()))
                + 2 * number * (gradient * far_before + output * far_behind),
            )
        return held


def _fresh(value: Tensor, *, forward: bool) -> Tensor:
    """Return a tensor as it arrives at a stage: an activation is where its graph begins."""
    value = value.detach()
    return value.requires_grad_() if forward and value.is_floating_point() else value


def _present(gradients: Iterable[Tensor | None]) -> Tensors:
    return tuple(gradient for gradient in gradients if gradient is not None)


def _aligned(outputs: Tensors, gradients: Tensors) -> list[Tensor]:
    """Give each output that has a gradient its own; torch does not look at those of the others."""
    given = iter(gradients)
    return [next(given) if output.requires_grad else output for output in outputs]
