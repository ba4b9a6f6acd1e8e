"""Post-validated steps: equal to the synchronous one, and taking a step back is its inverse."""

import copy
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import post_validated
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from post_validated import Trained
from processes import World, world
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from bubbleproof.runtime.optimizer import Outcome, PostValidatedOptimizer, Validation
from bubbleproof.runtime.rollback import Rollback, before_step


@pytest.fixture(scope="module")
def four() -> Iterator[World]:
    """Yield four processes, started once for all tests."""
    with world(post_validated.WORLD) as processes:
        yield processes


def _trained(
    four: World, name: str, places: int, order: Sequence[int] | None = None
) -> list[Trained]:
    """Return what each process saw that took part."""
    answers = four.results(post_validated.train, name, places, order)
    return [answer for answer in answers if answer is not None]


@pytest.mark.slow
@pytest.mark.parametrize("places", [1, 2, 4])
@pytest.mark.parametrize("name", post_validated.OPTIMIZERS)
def test_parameters_are_those_of_the_synchronous_step(four: World, name: str, places: int) -> None:
    """50 steps in float64, with clipping and infinities, differ by no more than 1e-12."""
    trained = _trained(four, name, places)
    assert len(trained) == places
    assert max(each.distance for each in trained) <= 1e-12


@pytest.mark.slow
def test_every_outcome_comes_up(four: World) -> None:
    """Steps are kept, redone, delayed, undone and skipped: the equality above is not idle."""
    first, *_, last = _trained(four, "adamw, invert", 4)
    assert first.outcomes == {"kept": 20, "redone": 12, "delayed": 6, "undone": 6, "skipped": 6}
    assert last.outcomes == {"kept": 20, "delayed": 18, "skipped": 12}


@pytest.mark.slow
def test_devices_may_stand_in_any_order(four: World) -> None:
    """The order in which they end need not be that of their ranks."""
    trained = _trained(four, "adamw, invert", 4, [2, 0, 3, 1])
    assert max(each.distance for each in trained) <= 1e-12
    assert ["redone" in each.outcomes for each in trained] == [True, False, True, True]


@pytest.mark.slow
def test_a_step_waits_for_no_later_device(four: World) -> None:
    """All but the last device are through with their step before the last one begins its own."""
    four.results(post_validated.steps_before_the_last_begins)


@pytest.mark.slow
def test_a_checkpoint_holds_no_wrong_step(four: World) -> None:
    """After a step that an infinity on the last device forbids, state and parameters are old."""
    assert four.results(post_validated.checkpoint) == [
        (2, 0, 0.0),
        (2, 0, 0.0),
        (2, 0, 0.0),
        (0, 0, 0.0),
    ]


@pytest.mark.slow
def test_a_copy_counts_once_and_its_infinity_always(four: World) -> None:
    """Four devices hold 4 x 3.0 together and 4 x 2.0 each: the norm is √(36 + 4·16) = 10."""
    for finite, infinite in four.results(post_validated.norm_with_copies):
        assert finite == pytest.approx(10.0, abs=1e-12)
        assert infinite == math.inf


@pytest.mark.slow
def test_the_norm_is_that_of_all_gradients(four: World) -> None:
    """As torch's clip_grad_norm_ tells it where one process holds them all."""
    for validated, single in four.results(post_validated.norm_of_all):
        assert validated == pytest.approx(single, rel=1e-14)


@pytest.mark.slow
def test_what_a_step_may_need_is_not_written_over(four: World) -> None:
    """Zeroing, a backward or new parameters before the validation are refused, not lost."""
    written = (
        "validate: parameters or gradients were written to since step(), and a step can no longer "
        "be taken back; validate before the next backward, and zero gradients with this "
        "optimizer's zero_grad()"
    )
    assert four.results(post_validated.misuse)[0] == {
        "zeroed in place": written,
        "backward": written,
        "parameter": written,
        "twice": "step: the step before is not validated; call validate() first",
        "set to none": "redone",
        "zero_grad": "redone",
    }


def _parameters(number: int = 4) -> list[Tensor]:
    return [torch.randn(6, dtype=torch.float64).requires_grad_() for _ in range(number)]


@st.composite
def optimizers(draw: st.DrawFn, rollback: Rollback) -> Optimizer:
    """Draw an optimizer over four parameters, of which the last never gets a gradient."""
    lr = draw(st.sampled_from([1e-4, 1e-2, 0.3]))
    decay = draw(st.sampled_from([0.0, 1e-2, 0.5]))
    maximize = draw(st.booleans())
    foreach = draw(st.booleans())
    if draw(st.booleans()):
        momentum = draw(st.sampled_from([0.0, 0.5, 0.9]))
        nesterov = momentum > 0 and draw(st.booleans())
        return SGD(
            _parameters(),
            lr,
            momentum,
            dampening=0.0 if nesterov else draw(st.sampled_from([0.0, 0.3])),
            weight_decay=decay,
            nesterov=nesterov,
            maximize=maximize,
            foreach=foreach and (maximize or decay > 0 or not nesterov),
        )
    return draw(st.sampled_from([Adam, AdamW]))(
        _parameters(),
        lr,
        draw(st.sampled_from([(0.9, 0.999), (0.5, 0.9)])),
        weight_decay=decay,
        amsgrad=rollback is Rollback.COPY and draw(st.booleans()),
        maximize=maximize,
        foreach=foreach,
    )


def _held(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _give_gradients(optimizer: Optimizer, size: float) -> None:
    for parameter in _held(optimizer)[:-1]:
        parameter.grad = size * torch.randn(6, dtype=torch.float64)


def _values(optimizer: Optimizer) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Return copies of the parameters and of what is kept of each."""
    held = _held(optimizer)
    states: list[dict[str, Tensor]] = [dict(optimizer.state.get(p, {})) for p in held]
    return copy.deepcopy([p.detach() for p in held]), copy.deepcopy(states)


@given(data=st.data(), before=st.integers(0, 4), seed=st.integers(0, 2**30))
def test_a_copy_takes_a_step_back_to_the_bit(data: st.DataObject, before: int, seed: int) -> None:
    """Parameters and state are equal, and state that the step made is gone."""
    torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
    optimizer = data.draw(optimizers(Rollback.COPY))
    for _ in range(before):
        _give_gradients(optimizer, 1.0)
        optimizer.step()
    _give_gradients(optimizer, 1e3)
    parameters, states = _values(optimizer)
    undo = before_step(optimizer, Rollback.COPY)
    optimizer.step()
    undo()
    now, states_now = _values(optimizer)
    torch.testing.assert_close(now, parameters, rtol=0, atol=0)
    torch.testing.assert_close(states_now, states, rtol=0, atol=0)


@given(
    data=st.data(), before=st.integers(0, 4), size=st.floats(1e-3, 10), seed=st.integers(0, 2**30)
)
def test_inversion_takes_a_step_back(
    data: st.DataObject, before: int, size: float, seed: int
) -> None:
    """Parameters and moments are equal to 1e-12 of the larger of 1 and the gradient's square."""
    torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
    optimizer = data.draw(optimizers(Rollback.INVERT))
    for _ in range(before):
        _give_gradients(optimizer, 1.0)
        optimizer.step()
    _give_gradients(optimizer, size)
    parameters, states = _values(optimizer)
    undo = before_step(optimizer, Rollback.INVERT)
    optimizer.step()
    undo()
    now, states_now = _values(optimizer)
    tolerance = 1e-12 * max(1.0, size**2)
    torch.testing.assert_close(now, parameters, rtol=1e-12, atol=tolerance)
    torch.testing.assert_close(states_now, states, rtol=1e-12, atol=tolerance)


@pytest.mark.parametrize("optimizer", [RMSprop(_parameters()), Adagrad(_parameters())])
def test_a_copy_takes_back_steps_of_other_optimizers(optimizer: Optimizer) -> None:
    """Nothing of an optimizer's arithmetic is needed for it."""
    _give_gradients(optimizer, 1.0)
    optimizer.step()
    before = _values(optimizer)
    undo = before_step(optimizer, Rollback.COPY)
    optimizer.step()
    undo()
    torch.testing.assert_close(_values(optimizer), before, rtol=0, atol=0)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[dist.ProcessGroup]:
    """Yield a group of this process alone."""
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    group = dist.group.WORLD
    assert group is not None
    yield group
    dist.destroy_process_group()


def _one(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [torch.ones(3, dtype=dtype, requires_grad=True)]


@pytest.mark.parametrize(
    ("optimizer", "told"),
    [
        (RMSprop(_one()), "RMSprop has no inverse here; use SGD, Adam, AdamW, or Rollback.COPY"),
        (AdamW(_one(), amsgrad=True), "group 0 has amsgrad.*set amsgrad=False"),
        (AdamW(_one(), betas=(0.0, 0.9)), "let both be above 0"),
        (AdamW(_one(), lr=1.0, weight_decay=0.6), "let their product be at most 0.5"),
        (SGD(_one(), lr=1.0, weight_decay=0.6), "let their product be at most 0.5"),
        (SGD(_one(torch.bfloat16), lr=0.1), "bfloat16.*use float32 or float64"),
    ],
    ids=["rmsprop", "amsgrad", "betas", "adamw decay", "sgd decay", "bfloat16"],
)
def test_what_cannot_be_inverted_is_refused(
    alone: dist.ProcessGroup, optimizer: Optimizer, told: str
) -> None:
    """Before the first step, with what may be changed; a copy takes all of them."""
    with pytest.raises(ValueError, match=told):
        PostValidatedOptimizer(optimizer, max_norm=1.0, group=alone, rollback=Rollback.INVERT)
    PostValidatedOptimizer(optimizer, max_norm=1.0, group=alone, rollback=Rollback.COPY)


@pytest.mark.parametrize(
    ("max_norm", "order", "told"),
    [
        (0.0, None, "max_norm: 0.0 is not above 0"),
        (math.nan, None, "max_norm: nan is not above 0"),
        (1.0, [1], r"order: \[1\] has to name each of the ranks \[0\] once"),
        (1.0, [0, 0], r"order: \[0, 0\] has to name each of the ranks \[0\] once"),
    ],
)
def test_unusable_arguments_are_refused(
    alone: dist.ProcessGroup, max_norm: float, order: Sequence[int] | None, told: str
) -> None:
    """With the value, the rule and what may stand there."""
    with pytest.raises(ValueError, match=told):
        PostValidatedOptimizer(SGD(_one()), max_norm=max_norm, group=alone, order=order)


def test_gradients_that_the_step_writes_to_are_refused(alone: dist.ProcessGroup) -> None:
    """Torch's multi-tensor nesterov does so, and what it is taken again with would be wrong."""
    held = _one()
    written = SGD(held, lr=0.1, momentum=0.9, nesterov=True, foreach=True)
    with pytest.raises(ValueError, match="set foreach=False or fused=True"):
        PostValidatedOptimizer(written, max_norm=1.0, group=alone)
    ones = torch.ones(3, dtype=torch.float64)
    held[0].grad = ones.clone()
    written.step()  # pyright: ignore[reportUnknownMemberType]
    assert not held[0].grad.equal(ones)
    for accepted in (
        SGD(held, lr=0.1, momentum=0.9, nesterov=True),
        SGD(held, lr=0.1, momentum=0.9, nesterov=True, fused=True),
        SGD(held, lr=0.1, momentum=0.9, nesterov=True, foreach=True, weight_decay=0.1),
    ):
        held[0].grad = ones.clone()
        PostValidatedOptimizer(accepted, max_norm=None, group=alone).step()
        assert held[0].grad.equal(ones)


def test_recorded_steps_and_sparse_gradients_are_refused(alone: dist.ProcessGroup) -> None:
    """A differentiable step cannot be taken back, and a sparse gradient has no norm in torch."""
    with pytest.raises(ValueError, match="differentiable=True"):
        PostValidatedOptimizer(SGD(_one(), differentiable=True), max_norm=1.0, group=alone)
    held = _one()
    held[0].grad = torch.ones(3, dtype=torch.float64).to_sparse()
    with pytest.raises(ValueError, match="sparse gradient"):
        PostValidatedOptimizer(SGD(held), max_norm=1.0, group=alone).step()


def test_nothing_is_validated_before_the_first_step(alone: dist.ProcessGroup) -> None:
    """And without clipping a step of any finite gradient stands."""
    held = _one()
    validated = PostValidatedOptimizer(SGD(held, lr=0.5), max_norm=None, group=alone)
    assert validated.validate() is None
    held[0].grad = torch.full((3,), 1e8, dtype=torch.float64)
    validated.step()
    validation = validated.finish()
    assert validation is not None
    assert validation.norm == pytest.approx(1e8 * math.sqrt(3))
    assert validation == Validation(norm=validation.norm, stands=True, outcome=Outcome.KEPT)
    torch.testing.assert_close(held[0].detach(), torch.full((3,), 1 - 0.5e8).double())


def test_a_loaded_state_is_not_put_right_later(alone: dist.ProcessGroup) -> None:
    """What is saved is what a fresh optimizer goes on with."""
    held = _one()
    validated = PostValidatedOptimizer(AdamW(held), max_norm=1.0, group=alone)
    held[0].grad = torch.ones(3, dtype=torch.float64)
    validated.step()
    state = validated.state_dict()
    other = PostValidatedOptimizer(AdamW(_one()), max_norm=1.0, group=alone)
    other.load_state_dict(state)
    torch.testing.assert_close(other.state_dict(), state)
