"""Published schedules train as one process does, and hold as many activations as is said of them.

Each step is on fresh data, three steps each, in float64.
"""

from collections.abc import Callable, Generator

import pytest
from processes import World, worlds
from training import assert_trains_alike

import bubbleproof as bp
from bubbleproof.schedules import families
from bubbleproof.schedules.schedule import Schedule

PLACEMENTS = ("linear", "loop:2", "v", "wave:2", "wave:3", "bidirectional")
COST = {"F": 1, "I": 1, "W": 1, "pair": 3}
NEED_TWO_DEVICES = ("chimera", "dualpipe")


@pytest.fixture(scope="module")
def world() -> Generator[Callable[[int], World]]:
    """Start the processes of each size once."""
    with worlds() as started:
        yield started


def schedules(family: str, devices: int, microbatches: int) -> list[Schedule]:
    """Return a family's schedule on each placement that it takes, in its own form."""
    found: list[Schedule] = []
    for placement in PLACEMENTS:
        problem = bp.Problem(
            devices=devices,
            placement=placement,
            microbatches=microbatches,
            cost=COST,
            backward="free",
        )
        try:
            found.append(families.build(family, problem))
        except ValueError:
            continue
    return found


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("family", families.names())
def test_a_family_trains_as_one_process_does(
    world: Callable[[int], World], family: str, devices: int
) -> None:
    """On each placement that it takes, with one microbatch and with some per device."""
    ran = 0
    for microbatches in (1, 2 * devices, 3 * devices):
        for schedule in schedules(family, devices, microbatches):
            assert_trains_alike(world(devices), schedule)
            ran += 1
    assert ran or (devices == 1 and family in NEED_TWO_DEVICES)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_every_family_trains_alike_with_every_number_of_microbatches(
    world: Callable[[int], World], devices: int
) -> None:
    """With 1 to 3p microbatches on p devices."""
    ran: set[str] = set()
    for family in families.names():
        for microbatches in range(1, 3 * devices + 1):
            for schedule in schedules(family, devices, microbatches):
                assert_trains_alike(world(devices), schedule)
                ran.add(family)
    assert ran == {
        family for family in families.names() if devices > 1 or family not in NEED_TWO_DEVICES
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "placement"),
    [
        ("gpipe", "linear"),
        ("one_f_one_b", "linear"),
        ("zb_h1", "linear"),
        ("chimera", "bidirectional"),
        ("dualpipe", "bidirectional"),
    ],
)
def test_eight_devices_train_alike(
    world: Callable[[int], World], family: str, placement: str
) -> None:
    """One way and both ways."""
    ran = 0
    for microbatches in (8, 16, 24):
        for schedule in schedules(family, 8, microbatches):
            if schedule.problem.placement.name == placement:
                assert_trains_alike(world(8), schedule)
                ran += 1
    assert ran >= 2
