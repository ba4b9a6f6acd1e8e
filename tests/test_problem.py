"""The model: ops as text, placements, exact times and amounts, and every refusal."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from file_strategies import placements
from hypothesis import given
from hypothesis import strategies as st

from bubbleproof.schedules.cost import Backward, Cost
from bubbleproof.schedules.memory import Memory
from bubbleproof.schedules.ops import Op, OpKind, Pair, ops_of, parse_block, parse_op
from bubbleproof.schedules.placement import (
    Placement,
    bidirectional,
    explicit,
    linear,
    loop,
    parse_placement,
    placement_words,
    v,
    wave,
)
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.quantity import common_scale, exact, in_unit, shown
from bubbleproof.schedules.schedule import parse_rows

COST: dict[str, object] = {"F": 10, "I": 12, "W": 8}
NUMBERS = st.integers(0, 10**9 - 1)
OPS = st.builds(Op, NUMBERS, st.sampled_from(OpKind), NUMBERS)


def problem(**fields: object) -> Problem:
    """Return a problem of two devices, with other fields where they are given."""
    known: dict[str, object] = {"devices": 2, "microbatches": 4, "cost": COST} | fields
    return Problem(**known)  # pyright: ignore[reportArgumentType] - the refusals are the test


@given(op=OPS)
def test_an_op_reads_back_from_its_text(op: Op) -> None:
    """2F0 is stage 2, forward, microbatch 0."""
    assert parse_op(str(op)) == parse_block(str(op)) == op
    assert ops_of(op) == (op,)


@given(forward=OPS, backward=OPS)
def test_a_pair_reads_back_from_its_text(forward: Op, backward: Op) -> None:
    """A pair is a forward and a full backward."""
    pair = Pair(replace(forward, kind=OpKind.FORWARD), replace(backward, kind=OpKind.BACKWARD))
    assert parse_block(str(pair)) == pair
    assert ops_of(pair) == (pair.forward, pair.backward)


@given(text=st.text("0123456789FIWBX();OVERLAP_ ", max_size=12))
def test_a_text_is_one_block_exactly_or_refused(text: str) -> None:
    """Whatever is read prints as the same text: nothing is skipped or guessed."""
    try:
        block = parse_block(text)
    except ValueError:
        return
    assert str(block) == text


@pytest.mark.parametrize("text", ["", "0F", "F0", "0f0", "0F0 ", "00F0", "0F00", "0F0xyz", "0FOO1"])
def test_what_is_no_op_is_refused_with_an_accepted_form(text: str) -> None:
    """The whole text must be the op."""
    with pytest.raises(ValueError, match=r"is not an op; write stage, kind .* as 2F0"):
        parse_op(text)


def test_rows_name_the_device_and_position_of_a_bad_op() -> None:
    """In a row of texts or a text of ops."""
    with pytest.raises(ValueError, match=r"rows\[1\]\[2\]: '1G0' is not an op"):
        parse_rows(["0F0", "1F0 1B0 1G0"])
    with pytest.raises(ValueError, match=r"rows\[0\]\[0\]: .* a pair is an F and then a B"):
        parse_rows([["(0F0;0I0)OVERLAP_F_B"]])


def test_placements_put_stages_where_their_papers_do() -> None:
    """Stage by stage, for three devices."""
    assert linear(3).device_of_stage == (0, 1, 2)
    assert loop(3, 2).device_of_stage == (0, 1, 2, 0, 1, 2)
    assert v(3).device_of_stage == (0, 1, 2, 2, 1, 0)
    assert wave(3, 3).device_of_stage == (0, 1, 2, 2, 1, 0, 0, 1, 2)
    both = bidirectional(3)
    assert both.device_of_stage == (0, 1, 2, 2, 1, 0)
    assert both.chains == ((0, 1, 2), (3, 4, 5))
    assert both.replica_of == (0, 1, 2, 0, 1, 2)
    assert both.stages_of_device == ((0, 5), (1, 4), (2, 3))


@given(placement=placements())
def test_a_placement_reads_back_from_its_words(placement: Placement) -> None:
    """Named or explicit, with chains or without."""
    assert parse_placement(placement_words(placement), placement.devices) == placement


@given(placement=placements())
def test_chains_pass_every_stage_once_and_know_their_neighbours(placement: Placement) -> None:
    """Previous and following are each other's inverse, and every stage is on its device."""
    assert sorted(stage for chain in placement.chains for stage in chain) == list(
        range(placement.stages)
    )
    for index, chain in enumerate(placement.chains):
        for before, after in pairwise(chain):
            assert placement.following[before] == after
            assert placement.previous[after] == before
        assert placement.previous[chain[0]] is placement.following[chain[-1]] is None
        assert {placement.chain_of_stage[stage] for stage in chain} == {index}
    for device, stages in enumerate(placement.stages_of_device):
        assert [placement.device_of_stage[stage] for stage in stages] == [device] * len(stages)
    assert sum(map(len, placement.stages_of_device)) == placement.stages


PLACEMENTS: dict[str, object] = {
    r"placement: 'ring' is unknown; accepted are \"linear\"": "ring",
    r"placement: 'loop:0' is unknown; did you mean \"loop:2\"\?": "loop:0",
    r"placement: 'loop' is unknown; did you mean \"loop:2\"\?": "loop",
    r"placement: 'V' is unknown; did you mean \"v\"\?": "V",
    r"placement: 'Linear' is unknown; did you mean \"linear\"\?": "Linear",
    r"placement: 'loop:99999' on 2 devices is 199998 stages; at most 100000": "loop:99999",
    "placement: a name .* or an object with device_of_stage is expected, not 3": 3,
    "placement: device_of_stage is missing": {},
    "placement: 'stages' is unknown; accepted are device_of_stage and chains": {"stages": [0]},
    r"placement\.device_of_stage: at least one stage": {"device_of_stage": []},
    r"placement\.device_of_stage: a list of whole numbers is expected, not '01'": {
        "device_of_stage": "01"
    },
    r"placement\.device_of_stage\[1\]: True is not a whole number": {"device_of_stage": [0, True]},
    r"placement\.device_of_stage\[0\]: -1 is out of range": {"device_of_stage": [-1]},
    "placement: stage 1 is on device 2, but the devices are 0..1": {"device_of_stage": [0, 2]},
    r"placement\.chains: a list of lists": {"device_of_stage": [0, 1], "chains": 5},
    r"placement\.chains\[1\]: a chain needs at least one stage": {
        "device_of_stage": [0, 1],
        "chains": [[0, 1], []],
    },
    "placement: chain 0 names stage 2, but the stages are 0..1": {
        "device_of_stage": [0, 1],
        "chains": [[0, 2]],
    },
    "placement: stage 1 is passed twice": {"device_of_stage": [0, 1], "chains": [[0, 1, 1]]},
    "placement: stage 1 is in no chain": {"device_of_stage": [0, 1], "chains": [[0]]},
}


@pytest.mark.parametrize("message", sorted(PLACEMENTS))
def test_a_bad_placement_is_refused_by_what_is_wrong(message: str) -> None:
    """Each breaks one rule."""
    with pytest.raises(ValueError, match=message):
        problem(placement=PLACEMENTS[message])


REFUSED: dict[str, dict[str, object]] = {
    "devices: 0 is out of range; 1..100000": {"devices": 0},
    "devices: 20000000 is out of range": {"devices": 20_000_000},
    r"devices: 2\.0 is not a whole number; write one, as 2": {"devices": 2.0},
    r"devices: 2\.5 is not a whole number; write one, as 1": {"devices": 2.5},
    r"devices: -2\.0 is not a whole number; write one, as 1": {"devices": -2.0},
    "devices: nan is not a whole number; write one, as 1": {"devices": float("nan")},
    "devices: True is not a whole number": {"devices": True},
    "devices: 2, but the placement has 3": {"placement": linear(3)},
    "microbatches: 0 is out of range": {"microbatches": 0},
    "microbatches: '4' is not a whole number; write one, as 4": {"microbatches": "4"},
    "microbatches: 2 numbers for 1 chains; give one number, or 1": {"microbatches": [2, 2]},
    r"microbatches\[1\]: -1 is out of range": {
        "placement": "bidirectional",
        "microbatches": [2, -1],
    },
    "microbatches: 0; at least 1": {"placement": "bidirectional", "microbatches": [0, 0]},
    "microbatches: 20000000 on 2 stages is too large": {"microbatches": 20_000_000},
    r"backward: 'half' is unknown; accepted are \"split\", \"fused\", \"free\"": {
        "backward": "half"
    },
    r"objective: \[\] is unknown; accepted are \"makespan\", \"span\"": {"objective": []},
    "name: 3 is not a text": {"name": 3},
    r"time_unit: '\\ud800' has half a character": {"time_unit": "\ud800"},
    "cost: an object is expected, not 3": {"cost": 3},
    r"cost: 'FF' is unknown; did you mean F\?": {"cost": COST | {"FF": 1}},
    r"cost\.F is missing": {"cost": {"I": 1, "W": 1}},
    r"cost\.I is missing; give the time of a backward for the input, as 10": {"cost": {"F": 1}},
    r"cost\.W is missing": {"cost": {"F": 1, "I": 1, "B": 2}},
    r"cost\.I is missing.* \(or cost\.B, the whole backward\)": {
        "cost": {"F": 1},
        "backward": "fused",
    },
    r"cost\.F: 3 items, but .* 4 stages; give one number, or 4 of them, or 2 for the": {
        "placement": "bidirectional",
        "cost": COST | {"F": [1, 1, 1]},
    },
    r"cost\.F: 3 items, but the placement has 2 stages; give one number, or 2": {
        "cost": COST | {"F": [1, 2, 3]}
    },
    r"cost\.I\[1\]: -1 is negative; a time is 0 or more": {"cost": COST | {"I": [1, -1]}},
    r"cost\.F: nan is not a finite number": {"cost": COST | {"F": float("nan")}},
    r"cost\.F: 'x' is not a finite number": {"cost": COST | {"F": "x"}},
    r"cost\.F: 1e\+300 cannot be kept exactly": {"cost": COST | {"F": 1e300}},
    r"cost\.F: 1e-13 cannot be kept exactly": {"cost": COST | {"F": 1e-13}},
    r"cost: the numbers need more than 10\^12 ticks per unit": {
        "cost": {"F": Fraction(1, 999_983), "I": Fraction(1, 999_979), "W": Fraction(1, 999_961)}
    },
    r"cost: in whole ticks \(1 per unit\) the schedule could take 2\^53": {
        "cost": COST | {"F": 2**52}
    },
    r"cost: in whole ticks .* 2\^53": {"cost": COST | {"pair": 2**52}, "backward": "fused"},
    r"cost\.pair: 3 items for 2 devices": {"cost": COST | {"pair": [1, 2, 3]}},
    r"cost\.pair\[1\]: -2 is negative": {"cost": COST | {"pair": [None, -2]}},
    r"cost\.transfer: -1 is negative": {"cost": COST | {"transfer": -1}},
    r"cost\.transfer: give one number, or a matrix of 2 x 2": {"cost": COST | {"transfer": [1, 2]}},
    r"cost\.transfer\[1\]\[0\]: 'a' is not": {"cost": COST | {"transfer": [[0, 1], ["a", 0]]}},
    r"cost\.transfer\[1\]\[1\]: 'a' is not": {"cost": COST | {"transfer": [[0, 1], [1, "a"]]}},
    "memory: an object is expected": {"memory": [1]},
    r"memory: 'limits' is unknown; did you mean limit\?": {"memory": {"limits": 8}},
    "memory: on stage 0 F, I, W leave 1 allocated": {"memory": {"F": 2, "I": -1}},
    "memory: on stage 1 I frees 2 more than F and I allocated": {
        "memory": {"F": [2, 0], "I": [-2, -2], "W": 0}
    },
    "memory: on stage 0 W frees 1 more than F and I and W allocated": {
        "memory": {"F": 2, "I": -1, "W": -2}
    },
    "memory: on stage 0 F, B leave 1 allocated": {"memory": {"F": 2, "W": -2, "B": -1}},
    "memory: on stage 0 F, B leave 2 allocated": {"memory": {"F": 2}, "backward": "fused"},
    r"memory\.F\[0\]: a number or \[allocate, free\]": {"memory": {"F": [[1, 2, 3], 1]}},
    r"memory\.F\[0\]: \[allocate, free\] takes amounts of 0 or more": {
        "memory": {"F": [[1, -1], 1]}
    },
    r"memory\.limit: 1 items for 2 devices": {"memory": {"limit": [8]}},
    r"memory\.limit\[0\]: -8 is negative": {"memory": {"limit": -8}},
    r"memory\.static\[1\]: -1 is negative": {"memory": {"static": [0, -1]}},
    r"memory\.static: '' is not a finite number": {"memory": {"static": ""}},
    r"memory\.static: 0 items": {"memory": {"static": []}},
    r"memory\.unit: 5 is not a text": {"memory": {"unit": 5}},
}


@pytest.mark.parametrize("message", sorted(REFUSED))
def test_a_bad_field_is_refused_by_name_and_value(message: str) -> None:
    """The field, the value, the rule and an accepted value are in one line."""
    with pytest.raises(ValueError, match=message) as caught:
        problem(**REFUSED[message])
    assert str(caught.value).isprintable()


HUGE: dict[str, object] = {
    "number": 10**5000,
    "number in a list": [10**5000],
    "list": [[[]]] * 3000,
    "text": "x" * 10**6,
}


@pytest.mark.parametrize("name", sorted(HUGE))
def test_a_value_however_large_gives_a_short_message(name: str) -> None:
    """Python itself refuses to print integers of thousands of digits."""
    value = HUGE[name]
    for field in ("devices", "microbatches", "placement", "cost", "memory", "backward", "name"):
        if field == "name" and isinstance(value, str):
            continue
        with pytest.raises(ValueError, match=f"^{field}") as caught:
            problem(**{field: value})
        assert len(str(caught.value)) < 300


def test_a_deep_value_gives_a_short_message() -> None:
    """A list in a list a hundred thousand times cannot be printed either."""
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "a huge value"


def test_decimals_are_exact() -> None:
    """0.29 + 0.57 is 0.86, and int(0.29 * 100) is not 29."""
    exactly = problem(cost={"F": 0.29, "I": 0.57, "W": 0})
    cost = exactly.cost
    assert (cost.F[0], cost.I[0], cost.ticks_per_unit) == (29, 57, 100)
    assert exactly.time(cost.F[0] + cost.I[0]) == 0.86
    assert exactly.time(200) == 2
    assert isinstance(exactly.time(200), int)


@given(number=st.decimals(-(2**52), 2**52, allow_nan=False, places=6))
def test_the_same_number_is_read_from_every_type(number: Decimal) -> None:
    """Decimal, Fraction, and what numpy and float print as the same text."""
    assert exact(number, "x") == Fraction(number) == exact(Fraction(number), "x")
    assert exact(float(number), "x") == Fraction(repr(float(number)))
    assert exact(np.float64(float(number)), "x") == exact(float(number), "x")


@given(numbers=st.lists(st.fractions(0, 100, max_denominator=30), min_size=1))
def test_the_common_scale_is_the_least_that_makes_all_whole(numbers: list[Fraction]) -> None:
    """No smaller number of ticks per unit does."""
    try:
        scale = common_scale(numbers, "x")
    except ValueError:
        return
    assert all((number * scale).denominator == 1 for number in numbers)
    for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29):
        if scale % prime == 0:
            assert any((number * scale / prime).denominator != 1 for number in numbers)


def test_a_result_is_an_int_where_it_is_whole() -> None:
    """Else the nearest float."""
    assert (in_unit(86, 100), in_unit(-200, 100), in_unit(1, 3)) == (0.86, -2, 1 / 3)


def test_one_number_stands_for_every_stage_and_a_list_for_each() -> None:
    """Of a bidirectional placement a list for the first chain serves the replicas too."""
    assert problem(cost=COST | {"F": [1, 2]}).cost.F == (1, 2)
    both = problem(placement="bidirectional", cost=COST | {"F": [1, 2]})
    assert both.cost.F == (1, 2, 1, 2)
    assert problem(placement="bidirectional", cost=COST | {"F": [1, 2, 3, 4]}).cost.F == (
        1,
        2,
        3,
        4,
    )
    assert problem(placement="v", cost=COST | {"F": [1, 2, 3, 4]}).cost.F == (1, 2, 3, 4)


def test_b_defaults_to_i_and_w_and_alone_is_enough_where_it_is_fused() -> None:
    """And a fused backward needs no split."""
    assert problem().cost.B == (20, 20)
    assert problem(cost=COST | {"B": 19}).cost.B == (19, 19)
    fused = problem(cost={"F": 10, "B": 19}, backward="fused", memory={"F": 3, "B": [[1, 4]] * 2})
    assert (fused.cost.B, fused.cost.I, fused.cost.W) == ((19, 19), (19, 19), (0, 0))
    assert fused.memory.B == ((1, 4), (1, 4))
    assert [fused.backward.allows(kind) for kind in OpKind] == [True, False, False, True]
    assert [Backward.SPLIT.allows(kind) for kind in OpKind] == [True, True, True, False]
    assert all(Backward.FREE.allows(kind) for kind in OpKind)


def test_positive_is_allocated_at_the_start_and_negative_freed_at_the_end() -> None:
    """And [allocate, free] does both; B does what I and W do."""
    memory = problem(
        placement="v", memory={"F": 3, "I": [2, 0], "W": [1, 6], "static": [1, 2, 3, 4], "limit": 8}
    )
    kinds = memory.memory
    assert (kinds.F[0], kinds.I[0], kinds.W[0], kinds.B[0]) == ((3, 0), (2, 0), (1, 6), (3, 6))
    assert (memory.static(0), memory.static(1)) == (5, 5)
    assert kinds.limit == (8, 8)
    assert memory.change(Pair(Op(0, OpKind.FORWARD, 1), Op(3, OpKind.BACKWARD, 0))) == (6, 6)


def test_two_numbers_on_two_stages_are_one_for_each() -> None:
    """Elsewhere they are [allocate, free]; a list around it is never in doubt."""
    assert problem(memory={"F": [2, 3], "W": [-2, -3]}).memory.F == ((2, 0), (3, 0))
    three = problem(devices=3, memory={"F": [3, 1], "W": -2})
    assert three.memory.F == ((3, 1),) * 3
    listed = problem(memory={"F": [[3, 1], [3, 1]], "W": -2})
    assert listed.memory.F == ((3, 1), (3, 1))


def test_memory_is_exact_and_limits_are_for_each_device() -> None:
    """0.3 - 0.1 - 0.2 balances; null is no limit."""
    exactly = problem(memory={"F": 0.3, "I": -0.1, "W": -0.2, "limit": [1.5, None], "unit": "GiB"})
    assert exactly.memory.limit == (15, None)
    assert exactly.amount(15) == 1.5
    assert exactly.memory.unit == "GiB"


def test_without_memory_each_forward_holds_one_until_w_or_b() -> None:
    """The default counts activations."""
    for memory in (None, dict[str, object]()):
        counted = problem(memory=memory).memory
        assert (counted.F[0], counted.I[0], counted.W[0], counted.B[0]) == (
            (1, 0),
            (0, 0),
            (0, 1),
            (0, 1),
        )
        assert counted.limit == (None, None)


def test_a_transfer_is_one_number_or_a_matrix_and_0_on_one_device() -> None:
    """A matrix is from row to column; its diagonal does not matter."""
    one = problem(cost=COST | {"transfer": 1.5})
    assert (one.transfer(0, 1), one.transfer(1, 1), one.cost.ticks_per_unit) == (3, 0, 2)
    matrix = problem(placement="v", cost=COST | {"transfer": [[None, 3], [5, 7]]})
    assert (matrix.transfer(0, 1), matrix.transfer(1, 0), matrix.transfer(1, 1)) == (3, 5, 0)
    assert (matrix.lag(0, 1), matrix.lag(1, 2), matrix.lag(2, 3)) == (3, 0, 5)


def test_a_pair_takes_its_devices_time_or_is_refused() -> None:
    """cost.pair is for each device; null allows none."""
    pairs = problem(placement="v", cost=COST | {"pair": [25, None]}, backward="free")
    pair = Pair(Op(0, OpKind.FORWARD, 1), Op(3, OpKind.BACKWARD, 0))
    assert pairs.duration(pair) == 25
    assert pairs.duration(Op(0, OpKind.BACKWARD, 0)) == 20
    other = Pair(Op(1, OpKind.FORWARD, 1), Op(2, OpKind.BACKWARD, 0))
    with pytest.raises(ValueError, match=r"cost\.pair allows no pair on device 1"):
        pairs.duration(other)


def test_microbatches_are_dealt_out_over_the_chains() -> None:
    """The first chains take what is left over; numbers are global."""
    both = problem(placement="bidirectional", microbatches=5)
    assert both.microbatches == (3, 2)
    assert (both.microbatches_of(0), both.microbatches_of(1)) == (range(3), range(3, 5))
    assert both.microbatches_of_stage(3) == range(3, 5)
    assert both.total_microbatches == 5
    assert problem(placement="bidirectional", microbatches=[1, 4]).microbatches == (1, 4)


@pytest.mark.parametrize(
    ("stages", "chains", "replicas", "message"),
    [
        ((), (), (), "placement: at least one stage is needed"),
        ((0,), ((0,), ()), (0,), "placement: chain 1 has no stage; at least one is needed"),
        ((0, 1), ((0, 1),), (0,), "placement: replica_of has 1 numbers where 2 are needed"),
        ((0, 1), ((0, 1),), (0, 2), "placement: stage 1 copies the weights of stage 2, which has"),
        ((0, 1), ((0, 1),), (1, 0), "placement: stage 0 copies the weights of stage 1, which has"),
    ],
)
def test_a_ready_made_placement_has_stages_and_originals_for_its_copies(
    stages: tuple[int, ...],
    chains: tuple[tuple[int, ...], ...],
    replicas: tuple[int, ...],
    message: str,
) -> None:
    """Nothing that later code would stumble over gets in."""
    with pytest.raises(ValueError, match=message):
        Placement("explicit", 2, stages, chains, replicas)


def test_ready_made_costs_and_memories_must_fit_the_placement() -> None:
    """Their lengths are checked."""
    cost, memory = problem().cost, problem().memory
    assert problem(cost=cost, memory=memory) == problem()
    short = Cost((1,), (1,), (1,), (2,), (None, None))
    with pytest.raises(ValueError, match="cost: 1 numbers where 2 are needed"):
        problem(cost=short)
    with pytest.raises(ValueError, match=r"cost\.pair: 1 numbers where 2"):
        problem(cost=replace(cost, pair=(None,)))
    with pytest.raises(ValueError, match=r"memory\.limit: 1 numbers where 2"):
        problem(memory=Memory(memory.F, memory.I, memory.W, memory.B, (0, 0), (None,)))
    with pytest.raises(ValueError, match=r"cost\.transfer: 2 x 2 numbers are needed"):
        problem(cost=replace(cost, transfer=((0, 1, 2), (1, 0, 2))))
    with pytest.raises(ValueError, match=r"cost\.transfer: -3 ticks are negative"):
        problem(cost=replace(cost, transfer=-3))
    with pytest.raises(ValueError, match=r"cost\.F: -1 ticks are negative; a time is 0 or more"):
        problem(cost=replace(cost, F=(-1, 1)))
    with pytest.raises(ValueError, match=r"cost\.ticks_per_unit: 0; at least 1"):
        problem(cost=replace(cost, ticks_per_unit=0))


def test_a_balance_that_two_numbers_on_two_stages_spoil_says_how_they_are_read() -> None:
    """The same words balance on three stages, and with a list around them on two."""
    memory: dict[str, object] = {"F": [2, 1], "W": -1}
    assert problem(devices=3, memory=memory).memory.F == ((2, 1),) * 3
    meant = (
        r"on stage 0 F, I, W leave 1 allocated; .* balance to zero \(on two stages the two numbers "
        r"of memory\.F are one for each stage; \[allocate, free\] is written \[\[2, 3\], \[2, 3\]\]"
    )
    with pytest.raises(ValueError, match=meant):
        problem(memory=memory)
    memory = {"F": [[2, 1], [2, 1]], "W": -1}
    assert problem(memory=memory).memory.F == ((2, 1),) * 2
    with pytest.raises(ValueError, match=r"leave 1 allocated; .* balance to zero$"):
        problem(memory={"F": 2, "W": -1})


READY_MADE = problem().memory


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (replace(READY_MADE, F=((5, 0),) * 2), "memory: on stage 0 F, I, W leave 4 allocated"),
        (
            replace(READY_MADE, W=((0, 1), (0, 4))),
            "memory: on stage 1 W frees 3 more than F and I and W allocated",
        ),
        (
            replace(READY_MADE, B=((0, 1), (0, 3))),
            "memory: on stage 1 B frees 2 more than F and B allocated",
        ),
        (replace(READY_MADE, B=((0, 0), (0, 1))), "memory: on stage 0 F, B leave 1 allocated"),
        (replace(READY_MADE, I=((0, 0), (-1, -1))), r"memory\.I\[1\]: -1 is negative; 0 or more"),
        (replace(READY_MADE, static=(0, -3)), r"memory\.static\[1\]: -3 is negative; 0 or more"),
        (
            replace(READY_MADE, limit=(None, -3), grains_per_unit=2),
            r"memory\.limit\[1\]: -1\.5 is negative; 0 or more",
        ),
        (replace(READY_MADE, grains_per_unit=0), r"memory\.grains_per_unit: 0; at least 1"),
    ],
)
def test_a_ready_made_memory_is_held_to_the_rules_of_a_file(memory: Memory, message: str) -> None:
    """Amounts are 0 or more and balance on every stage, with B and with I and W."""
    with pytest.raises(ValueError, match=message):
        problem(memory=memory)


def test_what_is_probably_not_meant_is_a_warning() -> None:
    """Empty stages, idle devices and pairs that the backward excludes are allowed."""
    placement = explicit(2, [0, 0])
    odd = problem(placement=placement, cost={"F": [0, 1], "I": [0, 1], "W": [0, 1], "pair": 5})
    warnings = odd.warnings()
    assert len(warnings) == 3
    assert "stage 0 takes no time" in warnings[0]
    assert "device 1 holds no stage" in warnings[1]
    assert "cost.pair is not used" in warnings[2]
    assert problem().warnings() == ()


def test_a_whole_backward_that_a_split_problem_does_not_run_is_a_warning() -> None:
    """Its time and its memory change nothing there; where they are I's and W's nothing is lost."""
    given: dict[str, object] = {
        "cost": {"F": 1, "I": 1, "W": 1, "B": 1.5},
        "memory": {"F": 1, "W": -1, "B": [1, 2]},
    }
    cost, memory = problem(devices=3, **given).warnings()
    assert 'cost.B is not used: backward "split" runs I and W apart' in cost
    assert "memory.B is not used" in memory
    for backward in ("free", "fused"):
        assert problem(devices=3, backward=backward, **given).warnings() == ()
    assert problem(cost={"F": 1, "I": 1, "W": 1, "B": 2}).warnings() == ()


def test_problems_are_values() -> None:
    """Equal, hashable, and changed by replace."""
    assert problem() == problem()
    assert len({problem(), problem(), problem(objective="span")}) == 2
    assert replace(problem(), objective=Objective.SPAN).objective is Objective.SPAN
    assert str(explicit(2, [1, 0])) == "explicit [1, 0]"
    assert str(linear(2)) == "linear"
