"""What processes do that train with post-validated steps, each beside a twin that steps in step.

The twin takes the synchronous step: it reduces the norm over all processes first. Its parameters,
state and gradients are its own copies, so what goes wrong stays and grows.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bubbleproof.runtime.optimizer import PostValidatedOptimizer
from bubbleproof.runtime.rollback import Rollback

WORLD = 4
STEPS = 50
MAX_NORM = 1.0

Make = Callable[[Sequence[dict[str, object]]], Optimizer]

OPTIMIZERS: dict[str, tuple[Make, Rollback]] = {
    "adamw, copy": (lambda groups: AdamW(groups, lr=1e-2), Rollback.COPY),
    "adamw, invert": (lambda groups: AdamW(groups, lr=1e-2), Rollback.INVERT),
    "adamw foreach maximize, invert": (
        lambda groups: AdamW(groups, lr=1e-2, foreach=True, maximize=True),
        Rollback.INVERT,
    ),
    "adamw fused, invert": (lambda groups: AdamW(groups, lr=1e-2, fused=True), Rollback.INVERT),
    "adamw amsgrad, copy": (lambda groups: AdamW(groups, lr=1e-2, amsgrad=True), Rollback.COPY),
    "adam decay, invert": (lambda groups: Adam(groups, weight_decay=0.1), Rollback.INVERT),
    "sgd, invert": (lambda groups: SGD(groups, lr=0.1, weight_decay=0.1), Rollback.INVERT),
    "sgd momentum dampening, invert": (
        lambda groups: SGD(groups, lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.1),
        Rollback.INVERT,
    ),
    "sgd nesterov, invert": (
        lambda groups: SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        Rollback.INVERT,
    ),
    "sgd nesterov maximize, copy": (
        lambda groups: SGD(groups, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
        Rollback.COPY,
    ),
}
"""What to train with: by name how to make the optimizer, and how its steps are taken back."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What a process saw: its farthest distance from the twin, and how often what happened."""

    distance: float
    outcomes: dict[str, int]


@cache
def first(places: int) -> dist.ProcessGroup | None:
    """Return a group of the first processes, or None to others; all ask for it, in one order."""
    group = dist.new_group(list(range(places)))  # pyright: ignore[reportUnknownMemberType]
    return group if isinstance(group, dist.ProcessGroup) else None


def everyone() -> dist.ProcessGroup:
    """Return a group of all processes, other than the one that tokens go through."""
    group = first(WORLD)
    assert group is not None
    return group


def size_of_gradient(step: int, place: int, places: int) -> float:
    """Return the norm that the gradient of a device has in a step; inf and NaN are put into it."""
    last = place == places - 1
    match step % 8:
        case 3:
            return 1.5 if last else 0.6 / places
        case 4:
            return 3.0 if place == 0 else 0.2
        case 5:
            return math.inf if last else 0.1
        case 6:
            return math.nan if place == 0 else 0.1
        case 7:
            return 1e4 if last else 0.1
        case _:
            return 0.4 / places


def parameters(seed: int) -> list[Tensor]:
    """Return a device's parameters: three tensors in float64."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((5, 3), (7,), (2, 2))
    ]


def set_gradients(
    parameters: Sequence[Tensor], *, step: int, place: int, places: int, seed: int
) -> None:
    """Give the parameters gradients that depend on them; the last one has none in odd steps."""
    generator = torch.Generator().manual_seed(1000 * seed + step)
    size = size_of_gradient(step, place, places)
    for number, parameter in enumerate(parameters):
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        gradient = noise + 0.1 * parameter.detach()
        gradient *= (size if math.isfinite(size) else 0.1) / (2 * get_total_norm([gradient]))
        if not math.isfinite(size) and number == 1:
            gradient[3] = size
        parameter.grad = None if number == 2 and step % 2 else gradient


def groups_of(parameters: Sequence[Tensor]) -> list[dict[str, object]]:
    """Return two groups of parameters, of which one has its own learning rate."""
    return [{"params": list(parameters[:1]), "lr": 3e-2}, {"params": list(parameters[1:])}]


def _distance(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    pairs = zip(some, others, strict=True)
    return max(float((one.detach() - other.detach()).abs().max()) for one, other in pairs)


def step_in_step(optimizer: Optimizer, held: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Take the synchronous step: reduce the norm, clip, and skip what is not finite."""
    square = get_total_norm([p.grad for p in held if p.grad is not None]) ** 2
    dist.all_reduce(square, group=group)  # pyright: ignore[reportUnknownMemberType]
    if torch.isfinite(square):
        clip_grads_with_norm_(held, MAX_NORM, square.sqrt())
        optimizer.step()


def train(rank: int, name: str, places: int, order: Sequence[int] | None = None) -> Trained | None:
    """Train beside the twin, with learning rates that change between a step and its validation."""
    group = first(places)
    if group is None:
        return None
    make, rollback = OPTIMIZERS[name]
    place = rank if order is None else order.index(rank)
    held, twins = parameters(rank), parameters(rank)
    optimizer, twin = make(groups_of(held)), make(groups_of(twins))
    validated = PostValidatedOptimizer(
        optimizer, max_norm=MAX_NORM, group=group, order=order, rollback=rollback
    )
    schedulers = [LambdaLR(each, lambda epoch: 0.97**epoch) for each in (optimizer, twin)]
    outcomes: Counter[str] = Counter()
    distance = 0.0
    for step in range(STEPS):
        for each in (held, twins):
            set_gradients(each, step=step, place=place, places=places, seed=rank)
        validated.step()
        step_in_step(twin, twins, group)
        for scheduler in schedulers:
            scheduler.step()
        validation = validated.validate()
        assert validation is not None
        outcomes[validation.outcome.value] += 1
        distance = max(distance, _distance(held, twins))
    validated.finish()
    assert all(bool(p.isfinite().all()) for p in held)
    return Trained(distance=distance, outcomes=dict(outcomes))


def steps_before_the_last_begins(rank: int) -> None:
    """Return once all have stepped, where the last one steps only after all others have."""
    last = WORLD - 1
    held = parameters(rank)
    set_gradients(held, step=0, place=rank, places=WORLD, seed=rank)
    validated = PostValidatedOptimizer(SGD(held, lr=0.1), max_norm=None, group=everyone())
    token = torch.zeros(1)
    if rank == last:
        for other in range(last):
            dist.recv(token, group_src=other)
        validated.step()
    else:
        validated.step()
        dist.send(token, group_dst=last)
    validated.finish()


def checkpoint(rank: int) -> tuple[int, int, float]:
    """Return how many states a step made that an infinity forbids, how many are saved, and moves.

    The last device has the infinity; the move is that of the parameters when the state is saved.
    """
    held = parameters(rank)
    optimizer = AdamW(held)
    validated = PostValidatedOptimizer(optimizer, max_norm=MAX_NORM, group=everyone())
    set_gradients(held, step=5, place=rank, places=WORLD, seed=rank)
    validated.step()
    taken = len(optimizer.state)
    kept = len(validated.state_dict()["state"])  # pyright: ignore[reportArgumentType]
    moved = _distance(held, parameters(rank))
    validated.finish()
    return taken, kept, moved


def norm_with_copies(rank: int) -> list[float]:
    """Return the norm where all devices hold one parameter that only the first counts; and ∞."""
    shared, own = (torch.ones(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    validated = PostValidatedOptimizer(
        SGD([shared, own], lr=0.1),
        max_norm=None,
        group=everyone(),
        counted_elsewhere=[shared] if rank else [],
    )
    norms: list[float] = []
    for size in (3.0, math.inf):
        shared.grad = torch.full((4,), size if rank or size < math.inf else 0.0).double()
        own.grad = torch.full((4,), 2.0).double()
        validated.step()
        validation = validated.validate()
        assert validation is not None
        norms.append(validation.norm)
    validated.finish()
    assert bool(shared.isfinite().all())
    return norms


def misuse(rank: int) -> dict[str, str]:
    """Return what a device is told that writes to what a step may need, or forgets gradients."""
    told: dict[str, str] = {}
    for name in ("zeroed in place", "backward", "parameter", "twice", "set to none", "zero_grad"):
        held = parameters(rank)
        optimizer = SGD(held, lr=0.1)
        validated = PostValidatedOptimizer(optimizer, max_norm=MAX_NORM, group=everyone())
        set_gradients(held, step=3, place=rank, places=WORLD, seed=rank)
        validated.step()
        try:
            match name:
                case "zeroed in place":
                    optimizer.zero_grad(set_to_none=False)
                case "backward":
                    torch.autograd.backward(held[0].square().sum())
                case "parameter":
                    with torch.no_grad():
                        held[0].zero_()
                case "twice" if rank < WORLD - 1:
                    validated.step()
                case "set to none":
                    optimizer.zero_grad(set_to_none=True)
                case _:
                    validated.zero_grad()
            validation = validated.validate()
            told[name] = "" if validation is None else validation.outcome.value
        except RuntimeError as error:
            told[name] = str(error)
        if name == "twice":
            validated.validate()
        validated.finish()
    return told


def norm_of_all(rank: int) -> tuple[float, float]:
    """Return a norm as validated, and as torch's clip_grad_norm_ tells it of all gradients."""
    held = parameters(rank)
    optimizer = SGD(held, lr=0.1)
    validated = PostValidatedOptimizer(optimizer, max_norm=MAX_NORM, group=everyone())
    of_all = [parameters(other) for other in range(WORLD)]
    for place, each in enumerate(of_all):
        set_gradients(each, step=3, place=place, places=WORLD, seed=place)
    set_gradients(held, step=3, place=rank, places=WORLD, seed=rank)
    validated.step()
    validation = validated.finish()
    assert validation is not None
    return validation.norm, float(clip_grad_norm_(list(chain(*of_all)), MAX_NORM))
