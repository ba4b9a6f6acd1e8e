"""A schedule run for a few steps, with the timeline that its ops really had."""

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module

from bubbleproof.runtime.agree import everywhere
from bubbleproof.runtime.bytes import size_bytes, tensors_of
from bubbleproof.runtime.clocks import behind_rank_0_ns
from bubbleproof.runtime.links import transfer_times_ns
from bubbleproof.runtime.load import load
from bubbleproof.runtime.microbatches import Inputs, Targets
from bubbleproof.runtime.model import Model
from bubbleproof.runtime.stage import require_module
from bubbleproof.runtime.version import INSTALLED, dotted
from bubbleproof.schedules.intervals import Interval, measured_timeline
from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.program import Program, schedule_of
from bubbleproof.schedules.run import Run
from bubbleproof.schedules.schedule import Measured, Schedule


def held_modules(model: Model, placement: Placement, device: torch.device) -> dict[int, Module]:
    """Return this process's stages of a model; none where it is not one of the devices."""
    rank = dist.get_rank()
    own = placement.stages_of_device[rank] if rank < placement.devices else ()
    return {
        stage: require_module(model.stage(placement.replica_of[stage]), stage).to(device)
        for stage in own
    }


class Session:
    """A schedule made ready to run and to be measured, on every process of a pipeline.

    Parameters
    ----------
    plan
        The schedule, or a program whose messages are kept.
    model
        What is trained.
    modules
        This process's stages.
    device
        Where this process computes.

    Raises
    ------
    ValueError
        On all processes alike, as ``load`` does.
    """

    def __init__(
        self,
        plan: Schedule | Program,
        model: Model,
        modules: Mapping[int, Module],
        device: torch.device,
    ) -> None:
        self.schedule = schedule_of(plan) if isinstance(plan, Program) else plan
        self.model = model
        self.device = device
        self.recorded: list[Interval] = []
        self.runtime = load(
            plan, modules, loss_fn=model.loss_fn, device=device, recorder=self.recorded.append
        )
        self.modules = modules
        self.outputs_bytes: dict[int, int] = {}
        for stage, module in modules.items():
            module.register_forward_hook(_counter(self.outputs_bytes, stage))

    def run(self, *, steps: int, unit_ns: int) -> Run:
        """Train one step that is not measured and then some that are.

        Parameters
        ----------
        steps
            How many are measured.
        unit_ns
            Nanoseconds in one unit of the problem's time.
        """
        optimizer = self.model.optimizer(
            [parameter for each in self.modules.values() for parameter in each.parameters()]
        )
        losses = [self._step(0, optimizer)]
        own: list[list[Interval]] = []
        for step in range(1, 1 + steps):
            losses.append(self._step(step, optimizer))
            own.append(list(self.recorded))
        offset = behind_rank_0_ns(self.device)
        shifted = [[_later(interval, offset) for interval in each] for each in own]
        everyone = everywhere((shifted, losses, self.runtime.live.peak), None)
        number = self.schedule.problem.total_microbatches
        placement = self.schedule.problem.placement
        messages = {
            (stage, following): size
            for stage, size in self.outputs_bytes.items()
            if (following := placement.following[stage]) is not None
        }

        def timeline(step: int) -> Measured:
            intervals = [interval for theirs, _, _ in everyone for interval in theirs[step]]
            source = (
                f"step {step + 1} of {steps}, {dist.get_world_size()} processes, "
                f"{dist.get_backend()}, torch {dotted(INSTALLED)}"
            )
            return measured_timeline(self.schedule, intervals, unit_ns=unit_ns, source=source)

        return Run(
            schedule=self.schedule,
            steps=tuple(map(timeline, range(steps))),
            losses=tuple(
                sum(theirs[step] for _, theirs, _ in everyone) / number for step in range(1 + steps)
            ),
            transfer_ns=transfer_times_ns(messages, placement, self.device),
            peak_live=tuple(peak for _, _, peak in everyone),
        )

    def _step(self, step: int, optimizer: torch.optim.Optimizer) -> float:
        """Train a step and return the sum of the losses that were made here."""
        inputs, targets = self.model.batch(step)
        optimizer.zero_grad()
        everywhere(step, None)  # All begin together.
        self.recorded.clear()
        made = self.runtime.step(_inputs_on(inputs, self.device), _targets_on(targets, self.device))
        optimizer.step()
        return float(torch.stack(made).sum()) if made else 0.0


def _later(interval: Interval, offset_ns: int) -> Interval:
    return Interval(interval.op, interval.start_ns + offset_ns, interval.end_ns + offset_ns)


def _counter(
    bytes_of_stage: dict[int, int], stage: int
) -> Callable[[Module, object, object], None]:
    """Return a forward hook that notes the size of a stage's output."""

    def count(module: Module, arguments: object, output: object) -> None:
        bytes_of_stage[stage] = sum(map(size_bytes, tensors_of(output) or ()))

    return count


def _inputs_on(inputs: Inputs, device: torch.device) -> Inputs:
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    if isinstance(inputs, tuple):
        return tuple(each.to(device) for each in inputs if isinstance(each, Tensor))
    return [
        each.to(device) if isinstance(each, Tensor) else tuple(part.to(device) for part in each)
        for each in inputs
    ]


def _targets_on(targets: Targets, device: torch.device) -> Targets:
    if isinstance(targets, Tensor):
        return targets.to(device)
    return [each.to(device) if isinstance(each, Tensor) else each for each in targets]
