"""The best order of one block's components, against enumeration and the published order."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubbleproof.schedules.components import Components, Part, Stream, read_components
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.placement import v
from bubbleproof.schedules.problem import Problem
from bubbleproof.solver.block_order import BlockOrder, best_order, published_order, with_block_costs

DATA = Path(__file__).parent / "data"

# The parts of a pair and what each waits for, written down from DeepSeek-V3's report, sec. 3.2.1.
WAITS = {
    "attn_F": None,
    "dispatch_F": "attn_F",
    "mlp_F": "dispatch_F",
    "combine_F": "mlp_F",
    "send_F": "combine_F",
    "combine_B": None,
    "mlp_B": "combine_B",
    "dispatch_B": "mlp_B",
    "attn_B": "dispatch_B",
    "send_B": "attn_B",
    "mlp_W": "mlp_B",
    "attn_W": "attn_B",
}
ON_COMM = {"dispatch_F", "combine_F", "send_F", "combine_B", "dispatch_B", "send_B"}
PUBLISHED_PARTS = [part for part in WAITS if not part.startswith("send")]


def _components(times: dict[str, object]) -> Components:
    """Four stages on two devices: on each of them stages d and 3 - d."""
    return read_components(times, v(2)).ticks(1)


def _measured() -> dict[str, int]:
    """DeepSeek-V3's measured layer, in microseconds (deepseek-ai/profile-data, train.json)."""
    profile = json.loads((DATA / "deepseek_v3_profile.json").read_text())
    return {name: component["t"] for name, component in profile["components"].items()}


def _brute_force(times: dict[str, int]) -> int:
    """Return the least time over all orders in which the parts may start one after another."""
    best = 10**9

    def extend(ends: dict[str, int], free: tuple[int, int]) -> None:
        nonlocal best
        left = [part for part in times if part not in ends]
        if not left:
            best = min(best, max(ends.values()))
        for part in left:
            before = WAITS[part]
            if before is not None and before not in ends:
                continue
            stream = int(part in ON_COMM)
            end = max(ends.get(before or "", 0), free[stream]) + times[part]
            if end < best:
                now = (end, free[1]) if stream == 0 else (free[0], end)
                extend(ends | {part: end}, now)

    extend({}, (0, 0))
    return best


def _broken(order: BlockOrder, components: Components) -> Iterator[str]:
    """Yield what is wrong with the times of a block of one layer per chunk."""
    end = {part.value: e for (part, _), e in zip(order.places, order.ends, strict=True)}
    start = {part.value: s for (part, _), s in zip(order.places, order.starts, strict=True)}
    for part in end:
        before = WAITS[part]
        if before is not None and start[part] < end[before]:
            yield f"{part} starts before {before} ends"
    for names in (ON_COMM, set(WAITS) - ON_COMM):
        row = sorted((start[part], end[part]) for part in end if part in names)
        if any(later < earlier for (_, earlier), (later, _) in pairwise(row)):
            yield f"two of {names} run at once"
    for part, stage in [(p, order.forward) for p in end if p.endswith("F")]:
        if stage is not None and end[part] - start[part] != components.of(Part(part))[stage]:
            yield f"{part} takes another time"


@given(st.fixed_dictionaries({part: st.integers(1, 9) for part in WAITS}))
def test_no_order_of_a_pair_is_shorter_than_the_best(times: dict[str, int]) -> None:
    """With both sends; every order in which parts may start is tried, by another program."""
    components = _components(dict(times))
    best = best_order(components, forward=1, backward=2)
    # Stages 1 and 2 are on one device and hand over without a send.
    without = {part: t for part, t in times.items() if not part.startswith("send")}
    assert best.ticks == best.bound == _brute_force(without)
    assert list(_broken(best, components)) == []
    sending = best_order(components, forward=0, backward=2)
    assert sending.ticks == _brute_force(without | {"send_F": times["send_F"]})


@given(st.fixed_dictionaries({part: st.integers(1, 9) for part in WAITS}))
def test_no_order_of_a_backward_alone_is_shorter(times: dict[str, int]) -> None:
    """A whole backward overlaps its own weight parts with its communication."""
    components = _components(dict(times))
    parts = {part: t for part, t in times.items() if part[-1] in "BW" and part != "send_B"}
    assert best_order(components, backward=0).ticks == _brute_force(parts)


@settings(max_examples=40, deadline=None)
@given(
    st.fixed_dictionaries({part: st.integers(0, 20) for part in WAITS}).filter(
        lambda times: all(times[part] for part in ("attn_F", "attn_B", "attn_W"))
    ),
    st.integers(1, 2),
)
def test_the_published_order_is_never_better(times: dict[str, int], layers: int) -> None:
    """Nor is it below the bound; parts that take no time are left out."""
    components = _components({"layers": layers, **times})
    best = best_order(components, forward=0, backward=3)
    published = published_order(components, forward=0, backward=3)
    assert best.bound <= best.ticks <= published.ticks
    assert sorted(best.places) == sorted(published.places)
    assert len(best.places) == layers * sum(bool(times[part]) for part in PUBLISHED_PARTS) + sum(
        bool(times[part]) for part in ("send_F", "send_B")
    )


def test_the_published_order_of_the_measured_layer_is_proven_best() -> None:
    """Its compute stream never waits: 31,224 us of work, and 32,253 us were measured with waits."""
    components = _components(dict(_measured()))
    published = published_order(components, forward=1, backward=2)
    best = best_order(components, forward=1, backward=2)
    compute = [t for part, t in _measured().items() if part not in ON_COMM]
    assert published.ticks == best.ticks == best.bound == sum(compute) == 31_224
    assert best.load.machine == 0


def test_the_published_order_is_the_one_of_the_measured_issue() -> None:
    """As the profile lists it."""
    profile = json.loads((DATA / "deepseek_v3_profile.json").read_text())
    components = _components(dict.fromkeys(_measured(), 1))
    published = published_order(components, forward=1, backward=2)
    start = {part.value: s for (part, _), s in zip(published.places, published.starts, strict=True)}
    for names in (ON_COMM, set(WAITS) - ON_COMM):
        issued = [part for part in profile["issue_order"] if part in names]
        assert sorted(issued, key=start.__getitem__) == issued


def test_a_slow_combine_makes_another_order_better() -> None:
    """Three times as slow, the published order takes 9 % more than the proven best one."""
    times: dict[str, object] = dict(_measured())
    times["combine_F"] = 3 * _measured()["combine_F"]
    components = _components(times)
    published = published_order(components, forward=1, backward=2)
    best = best_order(components, forward=1, backward=2)
    assert (best.ticks, best.bound, published.ticks) == (34381, 34381, 37508)


def test_block_costs_are_those_of_the_best_orders() -> None:
    """F, I and W are sums; B and each device's pair are optimal orders."""
    words: dict[str, object] = {"components": _measured()}
    problem = Problem(
        devices=4, placement="bidirectional", microbatches=8, backward="free", cost=words
    )
    cost = with_block_costs(problem).cost
    assert set(cost.F) == {19305}
    assert set(cost.I) == {25124}
    assert set(cost.W) == {7537}
    assert set(cost.B) == {27511}
    assert set(cost.pair) == {31224}


def test_given_block_costs_stay() -> None:
    """What was measured of whole blocks is not replaced by what components add up to."""
    words = {"components": _measured(), "B": 32661, "pair": 32253, "F": 20000}
    problem = Problem(devices=2, placement="v", microbatches=4, backward="free", cost=words)
    cost = with_block_costs(problem).cost
    assert (cost.F[0], set(cost.pair)) == (20000, {32253})


def test_a_split_problem_has_no_block_to_derive() -> None:
    """Its backwards are I's and W's alone."""
    problem = Problem(devices=2, placement="v", microbatches=4, cost={"components": _measured()})
    assert with_block_costs(problem) is problem


def test_the_parts_of_a_stage_are_on_two_streams() -> None:
    """All-to-alls and sends communicate, all else computes; loads add up to the op."""
    components = _components({part: index for index, part in enumerate(WAITS, 1)})
    for kind in OpKind:
        loads = [components.load(0, kind, stream) for stream in Stream]
        assert sum(loads) == components.ticks(0, kind)
    assert {part.value for part in Part if part.stream is Stream.COMM} == ON_COMM


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"attn_F": 1, "atn_B": 1}, r"cost.components: 'atn_B' is unknown; did you mean attn_B\?"),
        ({"attn_F": -1, "attn_B": 1, "attn_W": 1}, r"attn_F\[0\]: -1 is negative"),
        ({"attn_F": 1, "attn_B": 1}, r"stage 0 has none of mlp_W, attn_W; give at least one"),
        ({"send_F": 1, "attn_B": 1, "attn_W": 1}, r"stage 0 has none of attn_F, dispatch_F"),
        ({"attn_F": [1, 2], "attn_B": 1, "attn_W": 1}, r"attn_F: 2 items, but the placement has 4"),
        ({"layers": 0, "attn_F": 1, "attn_B": 1, "attn_W": 1}, r"layers: 0 is out of range; 1..64"),
        ({"attn_F": "4", "attn_B": 1, "attn_W": 1}, r"attn_F: '4' is not a finite number"),
    ],
)
def test_components_that_do_not_fit_are_refused(words: dict[str, object], message: str) -> None:
    """In one line with the place and what would be right."""
    with pytest.raises(ValueError, match=message):
        Problem(devices=2, placement="v", microbatches=2, cost={"components": words})


def test_components_that_are_no_object_are_refused() -> None:
    """As a list."""
    with pytest.raises(ValueError, match=r"cost.components: an object is expected, not \[1\]"):
        Problem(devices=2, microbatches=2, cost={"components": [1]})
