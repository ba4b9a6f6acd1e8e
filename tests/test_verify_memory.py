"""Rule memory: what devices hold, and by how much they pass their limits."""

from collections.abc import Sequence

import pytest
from executor import Execution
from hypothesis import given
from strategies import one_at_a_time, one_f_one_b, schedules
from verdicts import judge, only, rules

import bubbleproof as bp
from bubbleproof.schedules.schedule import Schedule

UNIT = {"F": 1, "I": 1, "W": 1}
GROWING = {"F": 3, "I": [2, 0], "W": -5}


def alone(limit: int | None) -> bp.Problem:
    """Return one device whose I allocates two more while its F's three are still held."""
    return bp.Problem(devices=1, microbatches=2, cost=UNIT, memory={**GROWING, "limit": limit})


@pytest.mark.parametrize(
    ("row", "peak"), [("0F0 0F1 0I0 0I1 0W0 0W1", 10), ("0F0 0I0 0W0 0F1 0I1 0W1", 5)]
)
def test_a_backward_that_allocates_counts(row: str, peak: int) -> None:
    """F +3, I +2 at its start, W -5 at its end: both forwards first hold ten, one by one five."""
    assert judge(alone(None), [row]).peak_memory == (peak,)
    assert judge(alone(peak), [row]).valid
    assert only(judge(alone(peak - 1), [row]), "memory").device == 0


def test_the_first_excess_and_the_peak_are_told() -> None:
    """The limit of five is passed at 0F1, the most is held at 0I1."""
    found = only(judge(alone(5), ["0F0 0F1 0I0 0I1 0W0 0W1"]), "memory")
    assert (found.device, found.position, found.ops) == (0, 1, ("0F1",))
    assert found.message == (
        "device 0 holds 6 at 0F1, 1 above its limit of 5; its peak is 10 at 0I1 (position 3)"
    )


def test_amounts_are_told_in_the_unit_of_the_problem() -> None:
    """Two forwards of 0.29 MiB and a static 0.1 MiB pass 0.6 MiB by 0.08."""
    on = bp.Problem(
        devices=1,
        microbatches=2,
        cost=UNIT,
        memory={"unit": "MiB", "F": 0.29, "W": -0.29, "static": 0.1, "limit": 0.6},
    )
    report = judge(on, ["0F0 0F1 0I0 0W0 0I1 0W1"])
    assert only(report, "memory").message == (
        "device 0 holds 0.68 MiB at 0F1, 0.08 MiB above its limit of 0.6 MiB"
    )
    assert report.peak_memory == (0.68,)


def test_what_ends_frees_before_what_starts_allocates() -> None:
    """A W ends at 3 and the next F starts at 3: a limit of one activation is enough."""
    on = bp.Problem(devices=1, microbatches=2, cost=UNIT, memory={"F": 1, "W": -1, "limit": 1})
    assert judge(on, ["0F0 0I0 0W0 0F1 0I1 0W1"], [[0, 1, 2, 3, 4, 5]]).valid


def test_an_op_frees_only_at_its_end() -> None:
    """A backward that allocates while it runs has the forward's part beside its own."""
    on = bp.Problem(
        devices=1,
        microbatches=1,
        cost=UNIT,
        memory={"F": [2, 0], "B": [3, 5], "limit": 4},
        backward="fused",
    )
    found = only(judge(on, ["0F0 0B0"]), "memory")
    assert found.message == "device 0 holds 5 at 0B0, 1 above its limit of 4"


def test_a_pair_allocates_for_both_ops_and_frees_at_its_end() -> None:
    """0F1 allocates beside 0B0 in one block, so two activations are held; in a row, one."""
    on = bp.Problem(
        devices=1,
        microbatches=2,
        cost={**UNIT, "pair": 3},
        memory={"F": 1, "W": -1, "limit": 1},
        backward="fused",
    )
    assert judge(on, ["0F0 0B0 0F1 0B1"]).valid
    found = only(judge(on, ["0F0 (0F1;0B0)OVERLAP_F_B 0B1"]), "memory")
    assert (found.position, found.ops) == (1, ("(0F1;0B0)OVERLAP_F_B",))


def test_a_static_part_above_the_limit_is_told_once() -> None:
    """Device 1 cannot even hold its weights; no position stands for that."""
    on = bp.Problem(
        devices=2, microbatches=4, cost=UNIT, memory={"static": [1, 9], "F": 1, "W": -1, "limit": 8}
    )
    found = only(bp.verify(one_f_one_b(on)), "memory")
    assert (found.device, found.position, found.ops) == (1, None, ())
    assert found.message.startswith("device 1 holds 9 before its first op, 1 above its limit of 8;")


@pytest.mark.parametrize(
    ("devices", "microbatches", "peaks"),
    [
        (4, 8, (4, 3, 2, 1)),
        (4, 16, (4, 3, 2, 1)),
        (4, 32, (4, 3, 2, 1)),
        (8, 16, (8, 7, 6, 5, 4, 3, 2, 1)),
        (4, 2, (2, 2, 2, 1)),
    ],
)
def test_1f1b_holds_p_minus_s_activations_whatever_n_is(
    devices: int, microbatches: int, peaks: Sequence[int]
) -> None:
    """Not one more (a known off-by-one), and the first device's ramp is the schedule's own."""
    on = bp.Problem(devices=devices, microbatches=microbatches, cost=UNIT)
    assert bp.verify(one_f_one_b(on)).peak_memory == tuple(peaks)


def test_static_memory_is_that_of_the_device_and_no_average() -> None:
    """Layers 1, 2, 2, 3 at one unit each: the fullest device holds three, not 8/4."""
    on = bp.Problem(
        devices=4,
        microbatches=1,
        cost=UNIT,
        memory={"static": [1, 2, 2, 3], "F": 0, "I": 0, "W": 0},
    )
    assert bp.verify(one_at_a_time(on)).peak_memory == (1, 2, 2, 3)


def test_a_bidirectional_device_holds_the_static_memory_of_both_its_stages() -> None:
    """Device d holds the layers of stages d and p-1-d."""
    on = bp.Problem(
        devices=4,
        placement="bidirectional",
        microbatches=2,
        cost=UNIT,
        memory={"static": [1, 2, 4, 8], "F": 0, "I": 0, "W": 0},
    )
    assert bp.verify(one_at_a_time(on)).peak_memory == (9, 6, 6, 9)


@pytest.mark.parametrize(("devices", "microbatches", "most"), [(4, 8, 5), (8, 20, 9)])
def test_dualpipe_holds_p_plus_one_activations_on_every_device(
    devices: int, microbatches: int, most: int
) -> None:
    """The published peak, p+1, and a limit of p is refused on every device."""
    on = bp.Problem(
        devices=devices,
        placement="bidirectional",
        microbatches=microbatches,
        cost={**UNIT, "pair": 3},
        memory={"F": 1, "W": -1, "limit": most},
        backward="free",
    )
    schedule = bp.families.dualpipe(on)
    report = bp.verify(schedule)
    assert report.valid
    assert report.peak_memory == (most,) * devices
    tighter = bp.Problem(
        devices=devices,
        placement="bidirectional",
        microbatches=microbatches,
        cost={**UNIT, "pair": 3},
        memory={"F": 1, "W": -1, "limit": most - 1},
        backward="free",
    )
    broken = bp.verify(schedule, tighter).violations
    assert [(each.rule, each.device) for each in broken] == [("memory", d) for d in range(devices)]


def test_a_row_without_its_own_ops_is_not_judged_by_memory() -> None:
    """A lost W leaves memory held: the lost op is the fault, the peak is still reported."""
    on = bp.Problem(devices=1, microbatches=2, cost=UNIT, memory={"F": 1, "W": -1, "limit": 1})
    report = judge(on, ["0F0 0I0 0F1 0I1 0W1"])
    assert rules(report) == ["complete"]
    assert report.peak_memory == (2,)


def test_each_device_is_judged_for_itself() -> None:
    """A fault on device 1 does not hide that device 0 passes its limit."""
    on = bp.Problem(devices=2, microbatches=2, cost=UNIT, memory={"F": 1, "W": -1, "limit": 1})
    rows = ["0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1I0 1F1 1I1 1W1"]
    assert [(each.rule, each.device) for each in judge(on, rows).violations] == [
        ("complete", 1),
        ("memory", 0),
    ]


@given(schedule=schedules())
def test_peaks_are_those_of_an_execution(schedule: Schedule) -> None:
    """Actors that allocate and free as they run hold the same at most."""
    amount = schedule.problem.amount
    assert bp.verify(schedule).peak_memory == tuple(map(amount, Execution(schedule).peaks))
