"""Modules that take the times of a problem and compute next to nothing: they sleep.

Sleeping occupies no core, so that a pipeline of many processes runs on few cores in the times of
the problem. Transfers are those of the machine.

F sleeps in the forward, I and W in the backwards of two nodes of the graph, one on the path to the
input and one on the path to the weight: torch's split backward then runs the first in I and the
second in W, and a full backward runs both. On the first stage of a chain nothing asks for the
gradient of the input; torch leaves I empty there and does the whole backward in W.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import sleep

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import Module, Parameter

from bubbleproof.runtime.model import Model
from bubbleproof.schedules.cost import PerStage
from bubbleproof.schedules.intervals import UNIT_NS
from bubbleproof.schedules.problem import Problem

WIDTH = 16
"""Numbers in a microbatch, so that messages are small."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """How long a stage's ops take, in seconds."""

    forward: float
    backward_input: float
    backward_weight: float
    backward: float


@dataclass(slots=True)
class _Backward:
    """The backward of one microbatch: whether its weight part has run."""

    seconds: Seconds
    weight_done: bool = False

    def weight(self) -> None:
        """Take the time of W."""
        self.weight_done = True
        sleep(self.seconds.backward_weight)

    def input(self) -> None:
        """Take the time of I, or where this is a full backward the rest of B.

        Autograd runs what was made last in the forward first, which is the weight's node. In a
        split backward I comes before W.
        """
        if self.weight_done:
            sleep(max(0.0, self.seconds.backward - self.seconds.backward_weight))
        else:
            sleep(self.seconds.backward_input)

    def all(self) -> None:
        """Take the time of B."""
        sleep(self.seconds.backward)


class _Node(torch.autograd.Function):
    """The identity, with something to do in the backward."""

    @staticmethod
    def forward(ctx: FunctionCtx, value: Tensor, work: Callable[[], None]) -> Tensor:
        ctx.work = work  # pyright: ignore[reportAttributeAccessIssue]
        return value.view_as(value)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        work: Callable[[], None] = ctx.work  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
        work()
        return gradient, None


class Sleeper(Module):
    """A stage that adds a weight to its input and takes given times for it.

    Parameters
    ----------
    seconds
        Its times.
    first
        Whether it is the first of its chain, whose backward is all in one.
    """

    def __init__(self, seconds: Seconds, *, first: bool) -> None:
        super().__init__()
        self.seconds = seconds
        self.first = first
        self.weight = Parameter(torch.zeros(WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        """Take the time of F."""
        sleep(self.seconds.forward)
        work = _Backward(self.seconds)
        value = _through(value, work.input)
        return value + _through(self.weight, work.all if self.first else work.weight)


def emulated(problem: Problem, *, unit_ns: float) -> Model:
    """Return a model that takes the times of a problem, with a row of numbers as a microbatch.

    Parameters
    ----------
    problem
        The problem.
    unit_ns
        Nanoseconds in one unit of its time.
    """
    cost, placement = problem.cost, problem.placement
    tick_s = unit_ns / cost.ticks_per_unit / UNIT_NS["s"]

    def stage(number: int) -> Module:
        def seconds(ticks: PerStage) -> float:
            return ticks[number] * tick_s

        times = Seconds(seconds(cost.F), seconds(cost.I), seconds(cost.W), seconds(cost.B))
        return Sleeper(times, first=placement.previous[number] is None)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        rows = torch.full((problem.total_microbatches, WIDTH), float(step))
        return rows, torch.zeros_like(rows)

    return Model(stage=stage, batch=batch, loss_fn=torch.nn.functional.mse_loss)


def _through(value: Tensor, work: Callable[[], None]) -> Tensor:
    return _Node.apply(value, work)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportReturnType]
