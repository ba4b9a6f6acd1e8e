"""Periodic schedules: proven for every n exactly where every unrolling verifies."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import any_order, placements

import bubbleproof as bp
from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import Block, Op, OpKind, Pair, Row
from bubbleproof.schedules.periodic import Periodic, repeated, unroll
from bubbleproof.schedules.periodic_search import periodic_of
from bubbleproof.schedules.periodic_words import load_periodic, save_periodic
from bubbleproof.schedules.schedule import parse_rows
from bubbleproof.verify.every_n import verify_every_n
from bubbleproof.verify.program_rules import verify_program

WITHOUT_KERNEL = {"gpipe", "looped_bfs"}
"""All forwards come before all backwards: what is in the middle grows with n."""

NAMES = [name for name in bp.families.names() if name not in WITHOUT_KERNEL]


def problem_of(name: str, devices: int, microbatches: int) -> bp.Problem:
    """Return a problem on a family's placement, with pairs where a family has some."""
    return bp.Problem(
        devices=devices,
        placement=bp.families.describe(name).placement.replace(":V", ":2"),
        microbatches=microbatches,
        cost={"F": 3, "I": 4, "W": 2, "pair": 5, "transfer": 1},
        backward="free",
    )


def family_of(name: str, devices: int, microbatches: int) -> bp.Schedule | None:
    """Return a family's schedule; None where it refuses the numbers."""
    try:
        return bp.families.build(name, problem_of(name, devices, microbatches))
    except ValueError:
        return None


@cache
def family_kernels() -> list[Periodic]:
    """Return the families on two devices as periodic schedules."""
    schedules = [family_of(name, 2, 8) for name in NAMES]
    found = [periodic_of(schedule) for schedule in schedules if schedule is not None]
    return [periodic for periodic in found if periodic is not None]


def two_devices(**changes: Sequence[str]) -> Periodic:
    """Return 1F1B on two devices, with other rows for some of its parts."""
    parts = {
        "prologue": ["0F0 0F1", "1F0"],
        "kernel": ["0B0 0F2", "1B0 1F1"],
        "epilogue": ["0B0 0B1", "1B0 1F1 1B1"],
    } | changes
    return Periodic(
        problem=bp.Problem(
            devices=2, microbatches=2, cost={"F": 1, "B": 2}, backward="fused", memory={"limit": 2}
        ),
        step=(1,),
        prologue=parse_rows(parts["prologue"]),
        kernel=parse_rows(parts["kernel"]),
        epilogue=parse_rows(parts["epilogue"]),
    )


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_a_family_is_proven_for_every_n(name: str, devices: int) -> None:
    """Its kernel is found, unrolls to the family itself for other n, and is proven for all.

    Each residue of n has a prologue and epilogue of its own, so each is proven by itself.
    """
    covered = 0
    for n in range(5 * devices, 6 * devices):
        schedule = family_of(name, devices, n)
        if schedule is None:
            continue
        periodic = periodic_of(schedule)
        assert periodic is not None, n
        verdict = verify_every_n(periodic)
        assert verdict.valid, verdict.report.violations
        covered += 1
        for more in range(periodic.first, n + 2 * devices + 1, periodic.period):
            other = family_of(name, devices, more)
            if other is not None and more >= n - periodic.period:
                assert unroll(periodic, more).rows == other.rows, more
    assert covered or devices % 2, "no n was accepted"


@pytest.mark.parametrize("name", NAMES)
def test_the_proof_of_a_family_agrees_with_twenty_unrollings_more(name: str) -> None:
    """What is proven holds for each n from n0 to n0 + 20 steps, judged one by one."""
    schedule = family_of(name, 4, 24)
    assert schedule is not None
    periodic = periodic_of(schedule)
    assert periodic is not None
    assert verify_every_n(periodic).valid
    for repetitions in range(21):
        assert bp.verify(repeated(periodic, repetitions)).valid, repetitions


@pytest.mark.parametrize("name", NAMES)
def test_the_messages_of_a_proven_family_arrive_for_each_n(name: str) -> None:
    """Lowered, each unrolling has its messages in one order at both ends, and ends everywhere."""
    schedule = family_of(name, 2, 8)
    assert schedule is not None
    periodic = periodic_of(schedule)
    assert periodic is not None
    for repetitions in range(9):
        program = bp.lower(repeated(periodic, repetitions))
        assert verify_program(program).valid, repetitions


def test_what_is_solved_for_one_n_can_serve_every_n() -> None:
    """A solved schedule that repeats nothing has windows to repeat all the same."""
    problem = bp.Problem(
        devices=3,
        microbatches=7,
        cost={"F": 10, "I": 12, "W": 8, "transfer": 1},
        memory={"limit": 3},
    )
    result = bp.solve(problem, time_limit_s=1, workers=1, seed=0)
    periodic = periodic_of(replace(result.schedule, starts=None))
    assert periodic is not None
    assert verify_every_n(periodic).valid
    assert bp.verify(unroll(periodic, periodic.first + 40 * periodic.period)).valid


def test_one_f_one_b_is_found_with_the_shortest_prologue() -> None:
    """1F1B on p devices serves every n from p - 1 on, one microbatch a repetition."""
    schedule = family_of("one_f_one_b", 4, 24)
    assert schedule is not None
    periodic = periodic_of(schedule)
    assert periodic is not None
    assert (periodic.first, periodic.period) == (3, 1)
    assert verify_every_n(periodic).first == 3


def test_a_cycle_of_the_kernel_is_named() -> None:
    """Copy j of device 0 waits for copy j + 1 of device 1, which waits for copy j of device 0.

    The epilogue of device 1 has another order, so that one repetition can run and two cannot.
    """
    periodic = Periodic(
        problem=bp.Problem(devices=2, microbatches=3, cost={"F": 1, "B": 2}, backward="fused"),
        step=(1,),
        prologue=parse_rows(["0F0 0F1 0F2 0B0", "1F0 1F1"]),
        kernel=parse_rows(["0B1 0F3", "1F2 1B0"]),
        epilogue=parse_rows(["0B1 0B2", "1B0 1F2 1B1 1B2"]),
    )
    assert bp.verify(unroll(periodic, 3)).valid
    assert bp.verify(unroll(periodic, 4)).valid
    verdict = verify_every_n(periodic)
    assert set(verdict.cycle) == {"0B1", "0F3", "1F2", "1B0"}
    assert verdict.failing == 5
    assert [violation.rule for violation in verdict.report.violations] == ["causal"]


def test_a_kernel_that_piles_up_activations_is_refused() -> None:
    """A kernel whose forward comes before its backward needs one activation more."""
    more = two_devices(kernel=["0F2 0B0", "1B0 1F1"])
    verdict = verify_every_n(more)
    assert [violation.rule for violation in verdict.report.violations] == ["memory"]
    assert verdict.failing == 3


def test_a_kernel_that_loses_a_backward_is_refused() -> None:
    """A count that is wrong in the kernel alone is seen with the first repetition."""
    verdict = verify_every_n(two_devices(kernel=["0F2", "1B0 1F1"]))
    assert verdict.failing == 3
    assert verdict.report.violations[0].rule == "complete"


@st.composite
def valid_periodics(draw: st.DrawFn) -> Periodic:
    """Draw one by its times: each op at a time of its own in a period, later than its inputs.

    Ops start at such times, the next microbatches a period later. Rows in the order of the starts
    have no cycle, wherever they are cut, each device at a time of its own.
    """
    placement = draw(placements())
    random = draw(st.randoms(use_true_random=False))
    backward = draw(st.sampled_from(list(Backward)))
    step = tuple(random.randint(1, 2) for _ in placement.chains)
    period = random.randint(2, 12)
    at: dict[tuple[int, int], dict[Op, int]] = {}
    for index, chain in enumerate(placement.chains):
        for turn in range(step[index]):
            at[index, turn] = times_of(chain, backward, random)
    latest = max(time for times in at.values() for time in times.values())
    cuts = [latest + random.randint(0, 3 * period) for _ in range(placement.devices)]
    copies = max(cuts) // period + 1 + random.randint(0, 1)
    parts: list[list[Row]] = [[], [], []]
    for device, cut in enumerate(cuts):
        timed = sorted(
            (time + copy * period, op.stage, op.kind.value, turn + copy * step[index])
            for (index, turn), times in at.items()
            for op, time in times.items()
            if placement.device_of_stage[op.stage] == device
            for copy in range(copies + 1)
        )
        early = [each for each in timed if each[0] < cut]
        middle = [each for each in timed if cut <= each[0] < cut + period]
        chain_of = placement.chain_of_stage
        late = [
            each for each in timed if each[0] >= cut and each[3] < copies * step[chain_of[each[1]]]
        ]
        for part, ops in zip(parts, (early, middle, late), strict=True):
            part.append(tuple(Op(s, OpKind(kind), number) for _, s, kind, number in ops))
    return Periodic(
        problem=bp.Problem(
            devices=placement.devices,
            placement=placement,
            microbatches=[copies * number for number in step],
            cost={"F": 1, "I": 2, "W": 1},
            backward=backward,
        ),
        step=step,
        prologue=tuple(parts[0]),
        kernel=tuple(parts[1]),
        epilogue=tuple(parts[2]),
    )


def times_of(chain: Sequence[int], backward: Backward, random: Random) -> dict[Op, int]:
    """Return a microbatch's ops, each at a time after its inputs."""
    times: dict[Op, int] = {}
    now = 0
    for stage in chain:
        now += random.randint(1, 3)
        times[Op(stage, OpKind.FORWARD, 0)] = now
    for stage in reversed(chain):
        now += random.randint(1, 3)
        whole = backward is Backward.FUSED or (backward is Backward.FREE and random.random() < 0.5)
        times[Op(stage, OpKind.BACKWARD if whole else OpKind.BACKWARD_INPUT, 0)] = now
        if not whole:
            times[Op(stage, OpKind.BACKWARD_WEIGHT, 0)] = now + random.randint(1, 9)
    return times


@st.composite
def mutants(draw: st.DrawFn) -> Periodic:
    """Draw a periodic schedule with a few blocks of any part moved, swapped, renumbered or lost."""
    if draw(st.booleans()):
        periodic = draw(valid_periodics())
    else:
        periodic = draw(st.sampled_from(family_kernels()))
    random = draw(st.randoms(use_true_random=False))
    for _ in range(draw(st.integers(0, 3))):
        periodic = random.choice([mutated, delayed])(periodic, random)
    limits = draw(st.sampled_from([None, 3, 5, 8]))
    words = {"limit": limits, "static": 0}
    return replace(
        periodic,
        problem=bp.Problem(
            devices=periodic.problem.devices,
            placement=periodic.problem.placement,
            microbatches=periodic.problem.microbatches,
            cost=periodic.problem.cost,
            backward=periodic.problem.backward,
            memory=words,
        ),
    )


def mutated(periodic: Periodic, random: Random) -> Periodic:
    """Exchange two neighbours of a part, or move a whole boundary, or do harm."""
    part = random.choice(["prologue", "kernel", "kernel", "kernel", "epilogue"])
    rows = [
        list(row)
        for row in {
            "prologue": periodic.prologue,
            "kernel": periodic.kernel,
            "epilogue": periodic.epilogue,
        }[part]
    ]
    device = random.randrange(len(rows))
    row = rows[device]
    if not row:
        return periodic
    at = random.randrange(len(row))
    match random.choice(["swap", "swap", "swap", "far", "far", "late", "lose", "twice"]):
        case "swap":
            other = min(at + 1, len(row) - 1)
            row[at], row[other] = row[other], row[at]
        case "far":
            row.insert(random.randrange(len(row)), row.pop(at))
        case "late":
            row[at] = later(row[at])
        case "lose":
            del row[at]
        case _:
            row.append(row[at])
    changed: tuple[Row, ...] = tuple(map(tuple, rows))
    match part:
        case "prologue":
            return replace(periodic, prologue=changed)
        case "kernel":
            return replace(periodic, kernel=changed)
        case _:
            return replace(periodic, epilogue=changed)


def delayed(periodic: Periodic, random: Random) -> Periodic:
    """Run an op of the kernel a repetition later, for all n: all counts stay right."""
    device = random.randrange(len(periodic.kernel))
    row = periodic.kernel[device]
    ops = [block for block in row if isinstance(block, Op)]
    if not ops:
        return periodic
    op = random.choice(ops)
    step = periodic.step[periodic.problem.placement.chain_of_stage[op.stage]]
    before = Op(op.stage, op.kind, op.microbatch - step)
    prologue, epilogue = list(periodic.prologue[device]), list(periodic.epilogue[device])
    if before not in prologue:
        return periodic
    prologue.remove(before)
    epilogue.insert(0, before)
    kernel = tuple(before if block == op else block for block in row)
    return replace(
        periodic,
        prologue=exchanged(periodic.prologue, device, tuple(prologue)),
        kernel=exchanged(periodic.kernel, device, kernel),
        epilogue=exchanged(periodic.epilogue, device, tuple(epilogue)),
    )


def exchanged(rows: Sequence[Row], device: int, row: Row) -> tuple[Row, ...]:
    """Return rows with one of them exchanged."""
    return (*rows[:device], row, *rows[device + 1 :])


def later(block: Block) -> Block:
    """Return a block, of a pair the forward, with the next microbatch."""
    if isinstance(block, Pair):
        forward = block.forward
        return Pair(Op(forward.stage, forward.kind, forward.microbatch + 1), block.backward)
    return Op(block.stage, block.kind, block.microbatch + 1)


@given(valid_periodics())
@settings(max_examples=60, deadline=None)
def test_rows_in_the_order_of_periodic_times_are_proven(periodic: Periodic) -> None:
    """A schedule that times repeat is valid for all n, whatever the cuts and steps are."""
    assert verify_every_n(periodic).valid


@pytest.mark.parametrize("seed", range(6))
def test_a_kernel_that_is_found_in_any_order_is_proven(seed: int) -> None:
    """Windows that run with few repetitions and with eight are valid for all."""
    problem = bp.Problem(
        devices=3, microbatches=4, cost={"F": 1, "I": 2, "W": 1, "pair": 3}, backward="free"
    )
    found = periodic_of(any_order(problem, Random(seed)))
    assert found is None or verify_every_n(found).valid


@pytest.mark.slow
@given(mutants())
@settings(max_examples=100, deadline=None)
def test_the_proof_says_yes_exactly_where_every_unrolling_verifies(periodic: Periodic) -> None:
    """Proof and explicit unrolling agree up to 20 repetitions, on valid and broken kernels."""
    verdict = verify_every_n(periodic)
    explicit = [bp.verify(repeated(periodic, number)).valid for number in range(21)]
    if verdict.valid:
        assert all(explicit)
    else:
        assert verdict.failing is not None
        failing = (verdict.failing - periodic.first) // periodic.period
        assert not bp.verify(repeated(periodic, failing)).valid
        assert all(explicit[:failing])


@pytest.mark.slow
@given(valid_periodics(), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_kernels_in_another_order_fail_where_the_proof_says(
    periodic: Periodic, random: Random
) -> None:
    """With all counts right, the first unrolling that cannot run is the one that is named."""
    kernels = [list(row) for row in periodic.kernel]
    for row in kernels:
        for _ in range(random.randint(0, 3) if row else 0):
            row.insert(random.randrange(len(row)), row.pop(random.randrange(len(row))))
    periodic = replace(periodic, kernel=tuple(map(tuple, kernels)))
    verdict = verify_every_n(periodic)
    judged = [bp.verify(repeated(periodic, number)).valid for number in range(5)]
    if verdict.failing is None:
        assert all(judged)
    else:
        failing = (verdict.failing - periodic.first) // periodic.period
        assert judged[:failing] == [True] * min(failing, len(judged))
        assert not bp.verify(repeated(periodic, failing)).valid


@given(valid_periodics())
@settings(max_examples=30, deadline=None)
def test_a_periodic_schedule_survives_its_file(
    tmp_path_factory: pytest.TempPathFactory, periodic: Periodic
) -> None:
    """Reading what was written gives the same rows, steps and problem."""
    path: Path = tmp_path_factory.mktemp("periodic") / "p.json"
    save_periodic(periodic, path)
    assert load_periodic(path) == periodic


def test_a_number_that_no_repetition_reaches_is_refused_with_the_next() -> None:
    """Unrolling says which n it can make."""
    periodic = two_devices()
    with pytest.raises(ValueError, match="microbatches: 1 is not 2 and whole steps of 1 more; 2"):
        unroll(periodic, 1)
    with pytest.raises(ValueError, match="step: 2 numbers for 1 chains"):
        replace(periodic, step=(1, 1))
    with pytest.raises(ValueError, match=r"step\[0\]: 0; at least 1"):
        replace(periodic, step=(0,))
    with pytest.raises(ValueError, match="kernel: 1 rows for 2 devices"):
        replace(periodic, kernel=periodic.kernel[:1])
