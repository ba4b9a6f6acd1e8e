"""Batches that begin before the optimizer's last step is validated train as one process does.

Twelve steps with AdamW in float64, of which three or more are clipped and one has an infinity.
"""

from collections.abc import Callable, Generator

import pytest
from processes import World, worlds
from training_ahead import STEPS, train

import bubbleproof as bp
from bubbleproof.schedules import families
from bubbleproof.schedules.schedule import Schedule

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world() -> Generator[Callable[[int], World]]:
    """Start the processes of each size once."""
    with worlds() as started:
        yield started


def schedule_of(family: str, devices: int, placement: str) -> Schedule:
    """Return a published schedule, in its own form."""
    problem = bp.Problem(
        devices=devices,
        placement=placement,
        microbatches=2 * devices,
        cost={"F": 1, "I": 1, "W": 1, "pair": 3},
        backward="free",
    )
    return families.build(family, problem)


@pytest.mark.parametrize("ahead", [False, True], ids=["before", "ahead"])
@pytest.mark.parametrize(
    ("family", "devices", "placement"),
    [
        ("one_f_one_b", 1, "linear"),
        ("one_f_one_b", 2, "linear"),
        ("zb_h2", 4, "linear"),
        ("zb_v", 4, "v"),
        ("dualpipe", 4, "bidirectional"),
    ],
)
def test_steps_train_as_one_process_does(
    world: Callable[[int], World], family: str, devices: int, placement: str, ahead: bool
) -> None:
    """Losses and parameters differ by no more than 1e-12; a wrong step costs one batch more."""
    schedule = schedule_of(family, devices, placement)
    outcomes = world(devices).results(train, schedule, ahead)
    assert max(each.loss_error for each in outcomes) <= 1e-12
    assert max(each.parameter_error for each in outcomes) <= 1e-12
    for each in outcomes:
        assert 4 <= each.wrong < STEPS
        assert each.batches == STEPS + (each.wrong if ahead else 0)
