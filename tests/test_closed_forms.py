"""Closed forms from the papers, each in the range in which it holds, against the simulator.

F, I, W and B are the times of a stage, p devices, n microbatches, no transfer unless a test says
so. A bubble is the makespan, or where a test says so the span, less a device's work.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bubbleproof as bp

TIME = st.integers(0, 12)
DEVICES = st.integers(1, 8)


class Flat(msgspec.Struct):
    """Measured times of a model with one stage per device, and bubble rates on them."""

    model: str
    devices: int
    microbatches: int
    F: int
    I: int  # noqa: E741
    W: int
    transfer: int
    bubble: dict[str, float]


class Folded(msgspec.Struct):
    """Measured times of a model with two chunks per device, and ZB-V's bubble rate on them."""

    model: str
    devices: int
    microbatches: int
    F: int
    I: int  # noqa: E741
    W: int
    transfer: int
    bubble_zbv: float
    bound_zbv: float


class Paper(msgspec.Struct):
    """The Zero Bubble paper's measurements."""

    flat: list[Flat]
    v: list[Folded]


PAPER = msgspec.json.decode(
    (Path(__file__).parent / "data" / "zb_paper.json").read_bytes(), type=Paper
)


def timeline(
    name: str,
    devices: int,
    microbatches: int,
    *,
    F: float | Sequence[float] = 1,
    I: float = 1,  # noqa: E741
    W: float = 1,
    B: float | Sequence[float] | None = None,
    pair: int | None = None,
    transfer: float = 0,
    chunks: int = 2,
) -> bp.Timeline:
    """Return the earliest times of a family's own form."""
    return bp.simulate(
        bp.families.build(
            name,
            bp.Problem(
                devices=devices,
                placement=bp.families.describe(name).placement.replace(":V", f":{chunks}"),
                microbatches=microbatches,
                cost={"F": F, "I": I, "W": W, "B": B, "pair": pair, "transfer": transfer},
                backward="free",
            ),
        )
    )


def bubble(timeline: bp.Timeline, *, of: str = "makespan") -> int:
    """Return the ticks of a makespan or span in which the busiest device does not work."""
    work = max(
        sum(end - start for start, end in zip(starts, ends, strict=True))
        for starts, ends in zip(timeline.starts, timeline.ends, strict=True)
    )
    return (timeline.makespan_ticks if of == "makespan" else timeline.span_ticks) - work


def peaks(timeline: bp.Timeline) -> list[float]:
    """Return the most activations that each device holds."""
    return list(timeline.peak_memory)


@given(p=DEVICES, n=st.integers(1, 24), f=TIME, b=TIME)
@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b"])
def test_gpipe_and_1f1b_leave_a_bubble_of_p_1_times_f_and_b(
    name: str, p: int, n: int, f: int, b: int
) -> None:
    """(p-1)(F+B) for every n, so that the makespan is (n+p-1)(F+B) also where n < p."""
    assert timeline(name, p, n, F=f, B=b).makespan == (n + p - 1) * (f + b)


@given(p=DEVICES, n=st.integers(1, 24))
def test_activations_in_flight_are_n_in_gpipe_and_min_n_p_s_in_1f1b(p: int, n: int) -> None:
    """1F1B's memory does not grow with n (DeepSpeed issue 2800: 4, 3, 2, 1, not one more)."""
    assert peaks(timeline("gpipe", p, n)) == [n] * p
    assert peaks(timeline("one_f_one_b", p, n)) == [min(n, p - s) for s in range(p)]


@given(p=DEVICES, groups=st.integers(1, 4), v=st.integers(1, 4), f=TIME, b=TIME)
def test_interleaving_divides_the_bubble_by_the_chunks(
    p: int, groups: int, v: int, f: int, b: int
) -> None:
    """(p-1)(F+B)/v where n is a multiple of p; here F and B are a chunk's, v times less."""
    assert bubble(timeline("interleaved_1f1b", p, groups * p, F=f, B=b, chunks=v)) == (p - 1) * (
        f + b
    )


@pytest.mark.parametrize(("p", "v", "n"), [(4, 2, 8), (4, 3, 16), (8, 4, 16), (6, 2, 6)])
def test_interleaving_holds_the_chunks_of_its_warm_up_and_one(p: int, v: int, n: int) -> None:
    """2(p-1-d) + (v-1)p + 1 chunks: 11, 9, 7, 5 for p=4, v=2 (Megatron-LM issue 169)."""
    expected = [min(2 * (p - 1 - d) + (v - 1) * p + 1, n * v) for d in range(p)]
    assert peaks(timeline("interleaved_1f1b", p, n, chunks=v)) == expected
    assert (p, v) != (4, 2) or expected == [11, 9, 7, 5]


def test_interleaving_of_four_devices_and_eight_microbatches_takes_57() -> None:
    """F=1, B=2 per chunk (Megatron-LM issue 1829)."""
    assert timeline("interleaved_1f1b", 4, 8, B=2).makespan == 57


@given(p=DEVICES, more=st.integers(0, 16), v=st.integers(1, 4), f=TIME, b=TIME)
def test_breadth_first_divides_the_bubble_by_the_chunks_from_n_equal_to_p_on(
    p: int, more: int, v: int, f: int, b: int
) -> None:
    """(p-1)(F+B)/v for n >= p, holding all nv chunks."""
    result = timeline("looped_bfs", p, p + more, F=f, B=b, chunks=v)
    assert bubble(result) == (p - 1) * (f + b)
    assert peaks(result) == [(p + more) * v] * p


def test_breadth_first_waits_for_its_own_loop_below_n_equal_to_p() -> None:
    """With p-n microbatches too few each of the v-1 turns waits p-n longer, both ways."""
    for p in range(2, 7):
        for n in range(1, p):
            for v in (2, 3):
                waits = (v - 1) * (p - n)
                assert bubble(timeline("looped_bfs", p, n, F=2, B=5, chunks=v)) == 7 * (
                    p - 1 + waits
                )


@given(p=DEVICES, more=st.integers(0, 16), w=TIME, longer_f=TIME, longer_i=TIME)
def test_zb_h1_leaves_a_bubble_of_p_1_times_f_plus_i_minus_w(
    p: int, more: int, w: int, longer_f: int, longer_i: int
) -> None:
    """(p-1)(F+I-W) of makespan and span, for W <= F, W <= I and n >= p; memory p everywhere."""
    f, i = w + longer_f, w + longer_i
    result = timeline("zb_h1", p, p + more, F=f, I=i, W=w)
    assert bubble(result) == bubble(result, of="span") == (p - 1) * (f + i - w)
    assert peaks(result) == [p] * p


@given(p=DEVICES, more=st.integers(0, 16), w=TIME, longer_f=TIME, i=TIME)
def test_the_span_of_zb_h1_allows_a_w_longer_than_i(
    p: int, more: int, w: int, longer_f: int, i: int
) -> None:
    """In the span, which the papers call cost, the form holds for all W <= F."""
    f = w + longer_f
    result = timeline("zb_h1", p, p + more, F=f, I=i, W=w)
    assert bubble(result, of="span") == (p - 1) * (f + i - w)


@given(p=DEVICES, more=st.integers(0, 16), w=TIME, longer_f=TIME, longer_i=TIME)
def test_zb_h2_leaves_a_span_bubble_of_p_1_times_f_plus_i_minus_2w(
    p: int, more: int, w: int, longer_f: int, longer_i: int
) -> None:
    """(p-1)(F+I-2W) for W <= F, W <= I and n >= 2p-1; 0 at F=I=W; memory 2p-1 everywhere."""
    f, i = w + longer_f, w + longer_i
    result = timeline("zb_h2", p, 2 * p - 1 + more, F=f, I=i, W=w)
    assert bubble(result, of="span") == (p - 1) * (f + i - 2 * w)
    assert peaks(result) == [2 * p - 1] * p


@given(p=DEVICES, more=st.integers(0, 16), t=TIME)
def test_zb_v_has_no_bubble_where_f_i_and_w_are_equal(p: int, more: int, t: int) -> None:
    """Span bubble 0 from n = 2p-1 on; the fill (p-1)F is all that the makespan adds."""
    result = timeline("zb_v", p, 2 * p - 1 + more, F=t, I=t, W=t)
    assert bubble(result, of="span") == 0
    assert bubble(result) == (p - 1) * t
    assert peaks(result) == [2 * p] * p


@pytest.mark.parametrize("p", range(1, 17))
def test_v_half_and_v_min_hold_about_a_half_and_a_third(p: int) -> None:
    """At most (p+2) div 2 and (p+4) div 3 device shares of two chunks, for every n."""
    for n in (1, 2, p - 1, p, p + 1, p + 3, 2 * p, 40):
        if n:
            assert max(peaks(timeline("v_half", p, n))) <= 2 * ((p + 2) // 2)
            assert max(peaks(timeline("v_min", p, n))) <= 2 * ((p + 4) // 3)
    assert max(peaks(timeline("v_half", p, 40))) == 2 * ((p + 2) // 2)
    assert max(peaks(timeline("v_min", p, 40))) == 2 * ((p + 4) // 3)


@pytest.mark.parametrize("p", range(2, 13))
def test_v_half_and_v_min_leave_a_bubble_that_does_not_grow_with_n(p: int) -> None:
    """At F=I=W=1: V-Half 3p-7 (p even, > 2) or 3p-4 (p odd), V-Min 4p-5, or 4p-6 with 3 | p.

    About p/2 and 2p/3 of a device's F+I+W, which is 6 here.
    """
    for n in (p + 2, 2 * p, 3 * p + 1):
        half, least = timeline("v_half", p, n), timeline("v_min", p, n)
        assert bubble(half) == bubble(half, of="span") == max(3 * p - (4 if p % 2 else 7), 1)
        assert bubble(least) == bubble(least, of="span") == 4 * p - (5 if p % 3 else 6)


@pytest.mark.parametrize(
    ("name", "equal", "unequal"), [("v_half", 0.1056, 0.1599), ("v_min", 0.1579, 0.3309)]
)
def test_v_half_and_v_min_are_made_for_equal_times(name: str, equal: float, unequal: float) -> None:
    """p=8, n=24: bubble rates at F=I=W, and with 10, 12, 8 and a transfer of 1."""
    rates = [
        timeline(name, 8, 24, F=f, I=i, W=w, transfer=c).zb_bubble_ratio
        for f, i, w, c in ((1, 1, 1, 0), (10, 12, 8, 1))
    ]
    assert [round(rate, 4) for rate in rates] == [equal, unequal]


@given(
    half=st.integers(1, 4),
    more=st.integers(0, 6),
    f=TIME,
    i=TIME,
    w=TIME,
    saved=st.integers(-12, 12),
)
def test_dualpipe_takes_its_closed_form_wherever_a_pair_is_no_shorter_than_its_parts(
    half: int, more: int, f: int, i: int, w: int, saved: int
) -> None:
    """FB >= max(F, B), also where a pair takes longer than both in turn: makespan and all idle."""
    p, n, b = 2 * half, 4 * half + 2 * more, i + w
    fb = max(f, b, f + b - saved)
    gain, short = f + b - fb, min(i, w)
    middle = (
        max((half - 1) * (fb + f - w - short), (half - 1) * (fb + i - w - short) - f)
        if p > 2
        else 0
    )
    result = timeline("dualpipe", p, n, F=f, I=i, W=w, pair=fb)
    assert result.makespan == n * fb + (p + 1) * gain + middle
    for d in range(half):
        idle = middle - max(half - 2 - d, 0) * gain
        assert result.bubbles[d].total == result.bubbles[p - 1 - d].total == idle
    folded = timeline("dualpipe_v", half, n // 2, F=f, I=i, W=w, pair=fb)
    assert folded.makespan == result.makespan


@pytest.mark.parametrize(
    ("pair", "makespan", "least", "most"), [(2, 52, 1, 3), (3, 66, 6, 6), (4, 80, 9, 11)]
)
def test_dualpipe_on_eight_devices_and_twenty_microbatches(
    pair: int, makespan: int, least: int, most: int
) -> None:
    """F=I=W=1: a pair of 3 leaves 6 idle everywhere, (p/2-1)(FB+B-3W), the published form."""
    result = timeline("dualpipe", 8, 20, pair=pair)
    idle = [each.total for each in result.bubbles]
    assert (result.makespan, min(idle), max(idle)) == (makespan, least, most)


@pytest.mark.parametrize(
    ("p", "n", "f", "i", "w", "pair", "makespan"),
    [
        (4, 8, 1, 1, 1, 3, 26),
        (4, 8, 1, 1, 1, 2, 22),
        (4, 8, 4, 4, 4, 10, 96),
        (4, 8, 5, 6, 2, 8, 98),
        (8, 16, 1, 1, 1, 2, 44),
        (8, 16, 5, 6, 2, 8, 200),
        (8, 20, 5, 6, 2, 8, 232),
    ],
)
def test_dualpipe_makespans_of_the_reference_order(
    p: int, n: int, f: int, i: int, w: int, pair: int, makespan: int
) -> None:
    """Golden makespans of the reference order, a pair being one block."""
    assert timeline("dualpipe", p, n, F=f, I=i, W=w, pair=pair).makespan == makespan


@given(half=st.integers(1, 4), more=st.integers(0, 8))
def test_dualpipe_holds_p_plus_1_activations_on_every_device(half: int, more: int) -> None:
    """p+1 stages' worth, and 2p+1 chunks in the V form."""
    p = 2 * half
    assert peaks(timeline("dualpipe", p, 2 * p + 2 * more, pair=2)) == [p + 1] * p
    assert peaks(timeline("dualpipe_v", half, p + more, pair=2)) == [p + 1] * half


@given(half=st.integers(1, 4), units=st.integers(1, 4), f=TIME, b=TIME)
def test_chimera_closes_its_bubble_only_where_f_equals_b(
    half: int, units: int, f: int, b: int
) -> None:
    """(p-2)(max(F,B) + (n/p-1)|B-F|) for n a multiple of p: at F=B the ratio (p-2)/(2n+p-2)."""
    p = 2 * half
    n = units * p
    result = timeline("chimera", p, n, F=f, B=b)
    assert bubble(result) == (p - 2) * (max(f, b) + (units - 1) * abs(b - f))
    assert peaks(result) == [half + 1 + min(d, p - 1 - d) for d in range(p)]
    if f == b > 0:
        assert result.bubble_ratio == pytest.approx((p - 2) / (2 * n + p - 2))


@given(p=DEVICES, units=st.integers(1, 3), v=st.integers(2, 5), f=TIME, b=TIME)
def test_hanayo_has_the_bubble_of_its_waves(p: int, units: int, v: int, f: int, b: int) -> None:
    """2(p-1)(max(F,B) + (n/p-1)|B-F|) of a chunk, n a multiple of p, however many chunks v > 1."""
    result = timeline("hanayo", p, units * p, F=f, B=b, chunks=v)
    assert bubble(result) == 2 * (p - 1) * (max(f, b) + (units - 1) * abs(b - f))
    last = result.schedule.problem.placement.device_of_stage[-1]
    assert peaks(result) == [(v - 1) * p + abs(d - last) + 1 for d in range(p)]


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("waves", [1, 2, 4])
def test_the_bubble_ratio_of_one_round_of_hanayo(p: int, waves: int) -> None:
    """(2p-2)/(3pw+2p-2) at B=2F, n=p, w waves of two chunks."""
    result = timeline("hanayo", p, p, B=2, chunks=2 * waves)
    assert result.bubble_ratio == pytest.approx((2 * p - 2) / (3 * p * waves + 2 * p - 2))


def measured(name: str, row: Flat | Folded) -> bp.Timeline:
    """Return the times of a family on measured times, transfers included."""
    return timeline(
        name,
        row.devices,
        row.microbatches,
        F=row.F,
        I=row.I,
        W=row.W,
        transfer=row.transfer,
    )


@pytest.mark.parametrize("row", PAPER.flat, ids=[f"{r.model}-{r.microbatches}" for r in PAPER.flat])
@pytest.mark.parametrize(
    ("name", "published"), [("one_f_one_b", "1f1b"), ("zb_h1", "zb-h1"), ("zb_h2", "zb-h2")]
)
def test_the_zero_bubble_papers_rates_are_reproduced(row: Flat, name: str, published: str) -> None:
    """The bubble rates of arXiv 2401.10241v1 (tables 5, 8 and 9), to all 4 digits."""
    assert round(measured(name, row).zb_bubble_ratio, 4) == row.bubble[published]


@pytest.mark.parametrize("row", PAPER.v, ids=[f"{r.model}-{r.microbatches}" for r in PAPER.v])
def test_zb_v_is_near_the_zero_bubble_papers_rates(row: Folded) -> None:
    """The paper searches its ZB-V orders for these times; this one is fixed, and within 0.0016."""
    ratio = measured("zb_v", row).zb_bubble_ratio
    assert row.bound_zbv <= ratio
    assert ratio == pytest.approx(row.bubble_zbv, abs=0.0016)


def test_1f1b_pays_a_transfer_in_every_steady_cycle() -> None:
    """A textbook form with the transfers of the ramp alone is too low by about c per microbatch."""
    p, n, c = 4, 32, 1
    ramp_only = (n + p - 1) * 30 + 2 * (p - 1) * c
    makespan = timeline("one_f_one_b", p, n, F=10, B=20, transfer=c).makespan
    assert makespan > ramp_only
    longer = timeline("one_f_one_b", p, 2 * n, F=10, B=20, transfer=c).makespan
    assert longer - makespan > n * 30


@pytest.mark.parametrize(("layers", "makespan"), [([4] * 7 + [10], 564), ([5] * 6 + [4] * 2, 333)])
def test_a_heavy_last_stage_paces_1f1b(layers: list[int], makespan: int) -> None:
    """38 layers on 8 stages, F=layers, B=2F, n=16 (DeepSpeed issue 4053)."""
    assert timeline("one_f_one_b", 8, 16, F=layers, B=[2 * x for x in layers]).makespan == makespan


@pytest.mark.parametrize(
    ("name", "p", "n", "idle"), [("one_f_one_b", 8, 512, 7), ("interleaved_1f1b", 8, 512, 7)]
)
def test_with_many_microbatches_all_families_are_near(name: str, p: int, n: int, idle: int) -> None:
    """7/519 and, of chunks half as long, 7/(2*512+7) (zero-bubble issue 21)."""
    result = timeline(name, p, n, B=2)
    chunks = result.schedule.problem.stages // p
    assert result.bubble_ratio == pytest.approx(idle / (chunks * n + idle))


def test_a_whole_backward_that_is_faster_than_its_parts_wins() -> None:
    """B=1.6, I=W=1, n=32, p=4: 1F1B takes 91, I and W apart 99 (torchtitan issue 773)."""
    assert timeline("one_f_one_b", 4, 32, B=1.6).makespan == 91
    assert timeline("zb_h2", 4, 32).makespan == 99


@pytest.mark.parametrize(("n", "f", "makespan"), [(32, 1, 105), (16, 2, 114)])
def test_larger_microbatches_do_not_lower_the_bubble(n: int, f: int, makespan: int) -> None:
    """A fixed batch in fewer pieces, p=4 (verl_megatron_practice issue 9)."""
    assert timeline("one_f_one_b", 4, n, F=f, B=2 * f).makespan == makespan
