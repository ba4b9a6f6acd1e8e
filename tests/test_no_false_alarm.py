"""What is right is accepted: torch's own schedules as torch lowers them, and lowered families."""

from collections.abc import Iterator
from random import Random

import pytest
from family_plans import family_schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_schedules import LOOPED, ON_A_V, SINGLE, printed_rows, torch_program

import bubbleproof as bp
from bubbleproof.schedules import families
from bubbleproof.schedules.lower import lower
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.verify.program_rules import verify_program

PRINTED_WRONG = "Schedule1F1B"
"""Says of its last device that it runs forwards 1..n; docs/torch.md."""

TORCH = sorted({*SINGLE, *LOOPED, *ON_A_V} - {PRINTED_WRONG})


def chunks(name: str) -> tuple[int, ...]:
    """Return how many stages a device may have in a schedule of torch."""
    if name in SINGLE:
        return (1,)
    return (2,) if name in ON_A_V else (1, 2, 3)


def accepted_by_torch(name: str, devices: int, each: int, microbatches: int) -> bool:
    """Whether torch builds the schedule for that many microbatches."""
    if name == "ScheduleDualPipeV":
        return microbatches >= 2 * devices
    if name in ("ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble"):
        return microbatches % max(1, microbatches // devices) == 0
    return True


def judge_torch(name: str, devices: int, microbatches: int) -> None:
    """Check that verify accepts what torch executes, under all transports."""
    for each in chunks(name):
        if accepted_by_torch(name, devices, each, microbatches):
            report = verify_program(torch_program(name, devices, each, microbatches))
            assert report.violations == ()
        else:
            with pytest.raises(ValueError, match="microbatches"):
                torch_program(name, devices, each, microbatches)


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize(("devices", "microbatches"), [(1, 4), (2, 2), (2, 5), (3, 7), (4, 8)])
def test_torchs_own_schedules_are_accepted(name: str, devices: int, microbatches: int) -> None:
    """As torch 2.13 lowers them: messages, weights, and their end under all four transports."""
    judge_torch(name, devices, microbatches)


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("devices", [1, 2, 3, 5, 8, 16])
def test_torchs_own_schedules_of_many_sizes_are_accepted(name: str, devices: int) -> None:
    """The same on up to 16 devices, with fewer and with more microbatches than devices."""
    for microbatches in (1, 2, 3, 6, 16, 33, 40):
        judge_torch(name, devices, microbatches)


@pytest.mark.parametrize(("devices", "microbatches"), [(1, 3), (2, 2), (4, 4), (4, 9)])
def test_the_1f1b_that_torch_prints_is_refused(devices: int, microbatches: int) -> None:
    """Its last row skips forward 0 and has forward n; torch's own validator refuses it as well."""
    problem = bp.Problem(
        devices=devices, microbatches=microbatches, cost={"F": 1, "B": 2}, backward="fused"
    )
    rows = printed_rows(PRINTED_WRONG, devices, microbatches)
    report = bp.verify(Schedule(problem, rows))
    last = devices - 1
    assert {violation.rule for violation in report.violations} == {"complete"}
    assert [violation.ops for violation in report.violations] == [
        (f"{last}F{microbatches}",),
        (f"{last}F0",),
    ]
    assert rows[:last] == families.one_f_one_b(problem).rows[:last]
    with pytest.raises(AssertionError, match="without first running Forward"):
        torch_program(PRINTED_WRONG, devices, 1, microbatches)


def lowered_family(family: str, devices: int, microbatches: int) -> Iterator[bp.Report]:
    """Yield the verdict on a family's program for each placement that it takes."""
    for schedule in family_schedule(family, devices, microbatches):
        for grouped in (True, False):
            yield verify_program(lower(schedule, grouped=grouped))


@pytest.mark.parametrize("family", families.names())
@settings(max_examples=6)
@given(devices=st.integers(1, 4), microbatches=st.integers(1, 10))
def test_lowered_families_are_accepted(family: str, devices: int, microbatches: int) -> None:
    """Whatever size a family accepts, its program breaks no rule under any transport."""
    for report in lowered_family(family, devices, microbatches):
        assert report.violations == ()


@pytest.mark.slow
@pytest.mark.parametrize("family", families.names())
def test_lowered_families_of_many_sizes_are_accepted(family: str) -> None:
    """On 1 to 16 devices, with up to 40 microbatches."""
    random = Random(family)
    judged = 0
    for devices in range(1, 17):
        # Some families take no odd number, and none below twice that of devices.
        sizes = {random.randrange(1, 40), random.randrange(2, 39, 2), 40}
        for report in (r for n in sorted(sizes) for r in lowered_family(family, devices, n)):
            assert report.violations == ()
            judged += 1
    assert judged >= 16
