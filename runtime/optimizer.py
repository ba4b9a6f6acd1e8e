"""An optimizer's step that no device waits for the others to take, put right where it was wrong.

Clipping by the norm of all gradients, and skipping a step on a NaN or an infinity anywhere, make
each device's step depend on the gradients of all. Reducing the norm first is a barrier: no device
begins its next iteration before the last one has ended this. Post-validation (Qi et al., Zero
Bubble Pipeline Parallelism, arXiv 2401.10241, section 4) does without it:

- The devices stand in an order. In ``step`` a device receives the norm of the gradients of those
  before it, joins its own, hands the result on, and takes its step at once as long as nothing so
  far asks for clipping or skipping. It waits for no later device.
- The last device so knows the norm of all, and sends it to each of the others. (The paper hands it
  back from device to device. On a V the first device has the first backward, and would wait for
  the second one to hand it on, which waits for that backward.) In ``validate`` each compares. Where
  clipping was needed after all, the step is taken back in place and taken again with the gradients
  scaled; where something was not finite, it is taken back.

A device that already knows that the step cannot stand does not take it, and leaves it to
``validate``: so what is not finite never meets a parameter, and no step is taken back whose own
gradients alone are above the limit. That the norm carries a NaN or an infinity on makes it the flag
as well.

**When to validate.** Before the gradients change: at the latest before the next iteration's first
backward. Forwards that ran since ``step`` have seen parameters that may be wrong. They hold if the
step ``stands``, which all devices answer alike; ``runtime.ahead`` runs them and, if not, runs them
again. Validating before the first forward needs no second run, but then the first device waits
until all have ended, as with a barrier: what is saved are the steps, which run meanwhile.
"""

import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from bubbleproof.runtime.rollback import (
    Rollback,
    Undo,
    before_step,
    refuse_what_cannot_be_taken_back,
)


class Outcome(StrEnum):
    """What became of a device's step."""

    KEPT = "kept"
    """It was right as it was taken at once."""
    REDONE = "redone"
    """It was taken back, and again with scaled gradients."""
    DELAYED = "delayed"
    """It was known to need scaling, and taken once the norm of all was there."""
    UNDONE = "undone"
    """It was taken back: a gradient was not finite."""
    SKIPPED = "skipped"
    """It was not taken: a gradient was known not to be finite."""


@dataclass(frozen=True, slots=True)
class Validation:
    """What the gradients of all devices say about a step.

    Parameters
    ----------
    norm
        The 2-norm of all gradients before clipping; infinite or NaN where one is.
    stands
        Whether the plain step was right, and so forwards that ran before the validation are. The
        same on all devices.
    outcome
        What became of this device's step.
    """

    norm: float
    stands: bool
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class _Gradient:
    """A parameter and its gradient in a step, with what tells whether they were written since."""

    parameter: Tensor
    gradient: Tensor
    versions: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Pending:
    """A step that awaits its validation; undo is None where it was not taken."""

    undo: Undo | None
    options: list[dict[str, object]]
    gradients: list[_Gradient]
    norm_of_all: Callable[[], float]


class PostValidatedOptimizer:
    """An optimizer of one device of a pipeline, whose steps are validated after they are taken.

    Equal to reducing the norm over all devices first, clipping with torch's ``clip_grad_norm_``,
    and skipping the step where the norm is not finite. All devices call ``step``, ``validate`` and
    the other methods alike.

    A learning rate scheduler takes the wrapped optimizer and may step before the validation: a step
    is redone with what it was first taken with.

    Parameters
    ----------
    optimizer
        Any of torch's whose step needs no closure; for ``Rollback.INVERT`` SGD, Adam or AdamW. Its
        parameters are those of this device's stages.
    max_norm
        The norm above which gradients are scaled down to it; None: no clipping, and only what is
        not finite is found.
    group
        The processes of one pipeline, for messages of one number in memory of the CPU. On GPUs a
        group of its own, ``torch.distributed.new_group(ranks, backend="gloo")``; under gloo the
        group of the pipeline will not do either, since messages there have their fixed order.
    order
        The ranks in ``group`` in the order in which their iterations end, by default ascending, as
        they do in schedules that fill the tail with W. Devices that end first step first.
    counted_elsewhere
        Parameters whose gradients another device counts: of weights that two devices hold, as in
        bidirectional schedules or with tied embeddings, one counts them. They are stepped as others
        are, and their gradients are to be reduced before.
    rollback
        How a step is taken back.

    Raises
    ------
    ValueError
        If the group cannot send from the CPU, the order does not name its ranks once each, the norm
        is not above 0, or the optimizer's steps cannot be taken back.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        max_norm: float | None,
        group: dist.ProcessGroup,
        order: Sequence[int] | None = None,
        counted_elsewhere: Collection[Tensor] = (),
        rollback: Rollback = Rollback.COPY,
    ) -> None:
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"max_norm: {max_norm} is not above 0; None means no clipping")
        if dist.get_backend(group) == dist.Backend.NCCL:
            raise ValueError(
                "group: NCCL cannot send from the CPU; "
                'give torch.distributed.new_group(ranks, backend="gloo")'
            )
        ranks = list(range(dist.get_world_size(group)))
        order = ranks if order is None else list(order)
        if sorted(order) != ranks:
            raise ValueError(f"order: {order} has to name each of the ranks {ranks} once")
        refuse_what_cannot_be_taken_back(optimizer, rollback)
        self.optimizer = optimizer
        self.max_norm = max_norm
        self.rollback = rollback
        place = order.index(dist.get_rank(group))
        self._group = group
        self._before = order[place - 1] if place > 0 else None
        self._last = order[-1]
        self._is_last = place == len(order) - 1
        # The last one tells all what it knows, the others the next one.
        self._tells = order[:-1] if self._is_last else order[place + 1 : place + 2]
        self._counted_elsewhere = frozenset(counted_elsewhere)
        self._pending: _Pending | None = None
        self._validation: Validation | None = None
        self._sending: list[tuple[dist.Work | None, Tensor]] = []

    def step(self) -> None:
        """Take the step at once if nothing known so far is against it.

        Waits for the devices before this one in the order to come to their step, for no other.

        Raises
        ------
        RuntimeError
            If the step before was not validated.
        ValueError
            If a gradient is sparse, or a hyperparameter has changed to what cannot be inverted.
        """
        if self._pending is not None:
            raise RuntimeError("step: the step before is not validated; call validate() first")
        self._finish_sending()
        gradients = {p: p.grad for p in _parameters(self.optimizer) if p.grad is not None}
        norm = self._own_norm(gradients)
        if self._before is not None:
            norm = math.hypot(self._receive_from(self._before)(), norm)
        # First hand on what is known, so that nobody waits for this device's own step.
        for rank in self._tells:
            self._send(norm, rank)
        options = _options_of(self.optimizer)
        undo: Undo | None = None
        if self._plain(norm):
            if not self._is_last:
                undo = before_step(self.optimizer, self.rollback)
            self.optimizer.step()
        self._pending = _Pending(
            undo=undo,
            options=options,
            gradients=[_Gradient(p, g, (_version(p), _version(g))) for p, g in gradients.items()],
            norm_of_all=(lambda: norm) if self._is_last else cache(self._receive_from(self._last)),
        )
        if self._is_last:
            self._settle(self._pending)

    def stands(self) -> bool:
        """Say whether the last step was right to be neither scaled nor skipped; change nothing.

        Waits for the last device in the order to come to its step.
        """
        if self._pending is not None:
            return self._plain(self._pending.norm_of_all())
        return self._validation is None or self._validation.stands

    def validate(self) -> Validation | None:
        """Compare the step with the norm of all gradients, and put it right where it was wrong.

        Waits for the last device in the order to come to its step. Called again it returns the
        same.

        Returns
        -------
        What was found, or None before the first step.

        Raises
        ------
        RuntimeError
            If parameters or gradients were written to since the step.
        """
        if self._pending is not None:
            self._settle(self._pending)
        return self._validation

    def finish(self) -> Validation | None:
        """Validate, and wait until nothing is on its way any more; for the end of the training."""
        validation = self.validate()
        self._finish_sending()
        return validation

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Validate, and then forget the gradients."""
        self.validate()
        self.optimizer.zero_grad(set_to_none)

    def set_gradients_aside(self) -> None:
        """Make place for new gradients without validating; those of the step are kept for it."""
        self.optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, object]:
        """Validate, and return the wrapped optimizer's state: a checkpoint holds no wrong step.

        What is read of the parameters is right from then on as well.
        """
        self.validate()
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Validate, so that nothing is put right later, and load the wrapped optimizer's state."""
        self.validate()
        self.optimizer.load_state_dict(state_dict)

    def _settle(self, pending: _Pending) -> None:
        norm = pending.norm_of_all()
        self._pending = None
        stands, finite, taken = self._plain(norm), math.isfinite(norm), pending.undo is not None
        if stands and (taken or self._is_last):
            outcome = Outcome.KEPT
        elif finite:
            outcome = Outcome.REDONE if taken else Outcome.DELAYED
        else:
            outcome = Outcome.UNDONE if taken else Outcome.SKIPPED
        _refuse_what_was_written(pending)
        self._validation = Validation(norm=norm, stands=stands, outcome=outcome)
        if outcome is not Outcome.KEPT:
            self._amend(pending, norm if finite else None)

    def _amend(self, pending: _Pending, norm: float | None) -> None:
        with _as_in_the_step(self.optimizer, pending):
            if pending.undo is not None:
                pending.undo()
            if norm is None:
                return
            if self.max_norm is not None:
                clip_grads_with_norm_(
                    [gradient.parameter for gradient in pending.gradients],
                    self.max_norm,
                    torch.tensor(norm, dtype=torch.float64),
                )
            self.optimizer.step()

    def _plain(self, norm: float) -> bool:
        """Whether a step with gradients of this norm is neither scaled nor skipped."""
        if not math.isfinite(norm):
            return False
        # Torch's clip_grad_norm_ scales by this where it is below 1.
        return self.max_norm is None or self.max_norm / (norm + 1e-6) >= 1

    def _own_norm(self, gradients: Mapping[Tensor, Tensor]) -> float:
        elsewhere = self._counted_elsewhere
        counted = _norm([g for p, g in gradients.items() if p not in elsewhere])
        copies = _norm([g for p, g in gradients.items() if p in elsewhere])
        # What is not finite is never stepped with, whoever counts it.
        return counted if math.isfinite(copies) else copies

    def _send(self, norm: float, rank: int) -> None:
        message = torch.tensor(norm, dtype=torch.float64)
        work = dist.isend(message, group=self._group, group_dst=rank)
        self._sending.append((work, message))

    def _receive_from(self, rank: int) -> Callable[[], float]:
        message = torch.empty((), dtype=torch.float64)
        work = dist.irecv(message, group=self._group, group_src=rank)

        def wait() -> float:
            if work is not None:
                work.wait()
            return message.item()

        return wait

    def _finish_sending(self) -> None:
        for work, _ in self._sending:
            if work is not None:
                work.wait()
        self._sending.clear()


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _options_of(optimizer: Optimizer) -> list[dict[str, object]]:
    """Return each group's hyperparameters as they are now, tensors among them copied."""
    return [
        {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in group.items()
            if name != "params"
        }
        for group in optimizer.param_groups
    ]


def _norm(gradients: Sequence[Tensor]) -> float:
    """Return the 2-norm of gradients, those that are sharded over data-parallel ranks in full."""
    if any(gradient.is_sparse for gradient in gradients):
        raise ValueError("a sparse gradient has no norm here; make the module's sparse=False")
    sharded = [gradient for gradient in gradients if isinstance(gradient, DTensor)]
    whole = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
    total = get_total_norm(sharded)
    if isinstance(total, DTensor):
        total = total.full_tensor()
    return math.hypot(get_total_norm(whole).item(), total.item())


def _version(tensor: Tensor) -> int:
    """Return torch's count of in-place writes to a tensor."""
    return tensor._version  # pyright: ignore[reportPrivateUsage]


def _refuse_what_was_written(pending: _Pending) -> None:
    for kept in pending.gradients:
        now = kept.parameter.grad
        dropped_or_same = now is None or now is kept.gradient
        if not dropped_or_same or kept.versions != (
            _version(kept.parameter),
            _version(kept.gradient),
        ):
            raise RuntimeError(
                "validate: parameters or gradients were written to since step(), and a step can no "
                "longer be taken back; validate before the next backward, and zero gradients "
                "with this optimizer's zero_grad()"
            )


@contextmanager
def _as_in_the_step(optimizer: Optimizer, pending: _Pending) -> Generator[None]:
    """Put the hyperparameters and gradients of the step in place of those of now."""
    now = [dict(group) for group in optimizer.param_groups]
    dropped = [g.parameter for g in pending.gradients if g.parameter.grad is None]
    for group, options in zip(optimizer.param_groups, pending.options, strict=True):
        group.update(options)
    for kept in pending.gradients:
        kept.parameter.grad = kept.gradient
    try:
        yield
    finally:
        for group, options in zip(optimizer.param_groups, now, strict=True):
            group.update(options)
        for parameter in dropped:
            parameter.grad = None
