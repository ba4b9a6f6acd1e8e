"""An optimizer's step taken back: out of a copy, or by doing its arithmetic backwards.

A copy gives every bit back, of any optimizer, and costs as much memory as parameters and state
until the step is known to be right. Inversion costs none. What it gives back differs by rounding:
of a parameter about one unit in its last place; of a moment as much as one unit of what the step
had added to it, so that a moment far below the gradient it was stepped with loses digits. What is
lost by dividing by a momentum or beta comes back multiplied by it in the next step.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TypeAlias

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

State: TypeAlias = dict[str, object]
"""What an optimizer keeps of a parameter, as Adam its moments."""

Undo: TypeAlias = Callable[[], None]
"""Takes back, in place, the step that was taken since it was made."""


class Rollback(StrEnum):
    """How a step that turns out wrong is taken back."""

    COPY = "copy"
    """From a copy of parameters and state: exact to the bit, for any optimizer."""
    INVERT = "invert"
    """By arithmetic, without memory: SGD, Adam and AdamW, exact but for rounding."""


def before_step(optimizer: Optimizer, rollback: Rollback) -> Undo:
    """Return what takes back the step that the optimizer takes next.

    When it is called, gradients and hyperparameters have to be those of the step. Parameters
    without a gradient are left alone, as the step leaves them.

    Raises
    ------
    ValueError
        If it could not be taken back, with what stands in the way.
    """
    refuse_what_cannot_be_taken_back(optimizer, rollback)
    match rollback:
        case Rollback.COPY:
            return _copied(optimizer)
        case Rollback.INVERT:
            return _inverted(optimizer)


def refuse_what_cannot_be_taken_back(optimizer: Optimizer, rollback: Rollback) -> None:
    """Raise if a step with the hyperparameters of now cannot be taken back and taken again.

    Raises
    ------
    ValueError
        If so, with the hyperparameter and what it may be.
    """
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise ValueError(
                "differentiable=True: a step that autograd records stays; set it False"
            )
        if isinstance(optimizer, SGD) and _writes_to_gradients(group["params"], group):
            raise ValueError(
                "SGD with nesterov and foreach writes to the gradients that a step is taken again "
                "with; set foreach=False or fused=True"
            )
    if rollback is Rollback.INVERT:
        _refuse_what_has_no_inverse(optimizer)


def _writes_to_gradients(parameters: Sequence[Tensor], options: State) -> bool:
    """Say whether torch's multi-tensor SGD adds the momentum to the gradients in place."""
    if not options["nesterov"] or options["weight_decay"] != 0 or options["maximize"]:
        return False
    # Torch takes the multi-tensor form by itself away from the CPU.
    by_itself = options["foreach"] is None and not options["fused"]
    return bool(options["foreach"]) or (
        by_itself and any(p.device.type != "cpu" for p in parameters)
    )


def _refuse_what_has_no_inverse(optimizer: Optimizer) -> None:
    if type(optimizer) not in (SGD, Adam, AdamW):
        raise ValueError(
            f"rollback by inversion: {type(optimizer).__name__} has no inverse here; "
            "use SGD, Adam, AdamW, or Rollback.COPY"
        )
    for number, group in enumerate(optimizer.param_groups):
        fault = _faulty_parameter(group["params"])
        if fault is None and isinstance(optimizer, SGD):
            if group["momentum"] == 0 or group["nesterov"]:
                fault = _faulty_decay(float(group["lr"]), float(group["weight_decay"]))
        elif fault is None:
            fault = _faulty_moments(group["betas"], amsgrad=group["amsgrad"])
            if fault is None and group["decoupled_weight_decay"]:
                fault = _faulty_decay(float(group["lr"]), float(group["weight_decay"]))
        if fault is not None:
            raise ValueError(
                f"rollback by inversion: parameter group {number} has {fault}, or use Rollback.COPY"
            )


def _faulty_parameter(parameters: Sequence[Tensor]) -> str | None:
    for parameter in parameters:
        if parameter.dtype not in (torch.float32, torch.float64):
            return f"parameters of {parameter.dtype}, which rounds too much; use float32 or float64"
    return None


def _faulty_decay(lr: float, decay: float) -> str | None:
    """Say whether the step leaves too little of a parameter itself to tell what it was."""
    if lr * decay > 0.5:
        return f"lr {lr} and weight_decay {decay}; let their product be at most 0.5"
    return None


def _faulty_moments(betas: Sequence[float | Tensor], *, amsgrad: bool) -> str | None:
    if amsgrad:
        return "amsgrad, which forgets the maximum that it had; set amsgrad=False"
    if not all(float(beta) > 0 for beta in betas):
        return f"betas {betas}, and 0 forgets the moments; let both be above 0"
    return None


def _copied(optimizer: Optimizer) -> Undo:
    parameters = _with_gradient(optimizer)
    kept = [(parameter, parameter.detach().clone()) for parameter in parameters]
    states = [
        (parameter, _copy_of(optimizer.state[parameter]) if parameter in optimizer.state else None)
        for parameter in parameters
    ]

    def undo() -> None:
        with torch.no_grad():
            for parameter, value in kept:
                parameter.copy_(value)
            for parameter, state in states:
                if state is None:
                    optimizer.state.pop(parameter, None)
                else:
                    _restore(optimizer.state[parameter], state)

    return undo


def _copy_of(state: State) -> State:
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else value
        for name, value in state.items()
    }


def _restore(state: State, kept: State) -> None:
    """Bring a state back in place, so that what else refers to its tensors still does."""
    for name in state.keys() - kept.keys():
        del state[name]
    for name, value in kept.items():
        now = state.get(name)
        if isinstance(now, Tensor) and isinstance(value, Tensor):
            now.copy_(value)
        else:
            state[name] = value


def _inverted(optimizer: Optimizer) -> Undo:
    fresh = {p for p in _with_gradient(optimizer) if not _has_tensors(optimizer.state.get(p))}

    def undo() -> None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                parameters: list[Tensor] = group["params"]
                for parameter in parameters:
                    if parameter.grad is None:
                        continue
                    gradient = -parameter.grad if group["maximize"] else parameter.grad
                    state: dict[str, Tensor] = optimizer.state.get(parameter, {})
                    if isinstance(optimizer, SGD):
                        _invert_sgd(
                            parameter,
                            gradient,
                            state.get("momentum_buffer"),
                            lr=float(group["lr"]),
                            decay=float(group["weight_decay"]),
                            momentum=float(group["momentum"]),
                            dampening=float(group["dampening"]),
                            nesterov=group["nesterov"],
                        )
                    else:
                        _invert_adam(
                            parameter,
                            gradient,
                            state,
                            lr=float(group["lr"]),
                            decay=float(group["weight_decay"]),
                            decoupled=group["decoupled_weight_decay"],
                            beta1=float(group["betas"][0]),
                            beta2=float(group["betas"][1]),
                            eps=float(group["eps"]),
                        )
                    if parameter in fresh:
                        optimizer.state.pop(parameter, None)

    return undo


def _invert_sgd(
    parameter: Tensor,
    gradient: Tensor,
    buffer: Tensor | None,
    *,
    lr: float,
    decay: float,
    momentum: float,
    dampening: float,
    nesterov: bool,
) -> None:
    """Solve p' = p - lr·d for p, and b' = momentum·b + (1 - dampening)·(g + decay·p) for b.

    d is b', with nesterov g + decay·p + momentum·b', and without momentum g + decay·p.
    """
    if buffer is None or momentum == 0:
        parameter.add_(gradient, alpha=lr).div_(1 - lr * decay)
        return
    parameter.add_(buffer, alpha=lr * momentum if nesterov else lr)
    if nesterov:
        parameter.add_(gradient, alpha=lr).div_(1 - lr * decay)
    decayed = gradient.add(parameter, alpha=decay)
    buffer.sub_(decayed, alpha=1 - dampening).div_(momentum)


def _invert_adam(
    parameter: Tensor,
    gradient: Tensor,
    state: dict[str, Tensor],
    *,
    lr: float,
    decay: float,
    decoupled: bool,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """Solve p' = (1 - lr·decay)·p - lr·m̂'/(√v̂' + eps) for p, and the moments' averages for m, v.

    Where the decay is not decoupled, it is in the gradient, g + decay·p, and not in the parameter.
    """
    mean, square, steps = state["exp_avg"], state["exp_avg_sq"], state["step"]
    taken = float(steps)
    spread = square.sqrt().div_((1 - beta2**taken) ** 0.5).add_(eps)
    parameter.addcdiv_(mean, spread, value=lr / (1 - beta1**taken))
    if decoupled:
        parameter.div_(1 - lr * decay)
    else:
        gradient = gradient.add(parameter, alpha=decay)
    mean.sub_(gradient, alpha=1 - beta1).div_(beta1)
    # Rounding may leave less than nothing where there was next to nothing.
    square.addcmul_(gradient, gradient, value=beta2 - 1).div_(beta2).clamp_(min=0)
    steps.sub_(1)


def _with_gradient(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def _has_tensors(state: State | None) -> bool:
    return state is not None and any(isinstance(value, Tensor) for value in state.values())
