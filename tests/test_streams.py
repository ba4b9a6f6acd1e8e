"""Whole steps on two streams per device: solved, bounded, timed, kept in files, and judged."""

import json
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubbleproof.schedules import families
from bubbleproof.schedules.components import Part
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Status
from bubbleproof.schedules.simulate import DeadlockError
from bubbleproof.schedules.stream_graph import instances
from bubbleproof.schedules.stream_run import simulate_streams
from bubbleproof.schedules.stream_words import (
    load_streams,
    save_streams,
    streams_of_words,
    words_of_streams,
)
from bubbleproof.schedules.streams import Component, StreamSchedule, parse_component
from bubbleproof.solver.block_order import with_component_costs
from bubbleproof.solver.result import NoScheduleError
from bubbleproof.solver.shop import makespan_of
from bubbleproof.solver.stream_search import anneal
from bubbleproof.solver.stream_shop import StreamShop, held_by, may_mirror
from bubbleproof.solver.stream_start import starts_of_blocks
from bubbleproof.solver.streams import solve_streams
from bubbleproof.verify.streams import verify_streams

# One layer of DeepSeek-V3 in ms, rounded (deepseek-ai/profile-data, train.json).
ROUNDED = {
    "attn_F": 4,
    "dispatch_F": 4,
    "mlp_F": 5,
    "combine_F": 6,
    "combine_B": 3,
    "mlp_B": 5,
    "mlp_W": 5,
    "dispatch_B": 7,
    "attn_B": 9,
    "attn_W": 2,
}
BACKWARD = ("combine_B", "mlp_B", "dispatch_B", "attn_B", "send_B")
FORWARD = ("attn_F", "dispatch_F", "mlp_F", "combine_F", "send_F")


def _problem(
    devices: int,
    microbatches: int,
    components: dict[str, object] | None = None,
    placement: str = "bidirectional",
    limit: int | None = None,
    **others: object,
) -> Problem:
    words: dict[str, object] = {"F": 1, "W": -1}
    if limit is not None:
        words["limit"] = limit
    cost: dict[str, object] = {"components": ROUNDED if components is None else components}
    cost |= others
    return Problem(
        devices=devices,
        placement=placement,
        microbatches=microbatches,
        backward="free",
        cost=cost,
        memory=words,
    )


@cache
def _solved() -> StreamSchedule:
    """Return a small schedule with waits on both streams."""
    problem = _problem(2, 4, {"layers": 2, "send_F": 1, "send_B": 2, **ROUNDED}, limit=3)
    return solve_streams(problem, time_limit_s=1, workers=1).schedule


def _shorter(problem: Problem, times: dict[str, int], makespan: int) -> bool:
    """Whether some order of one microbatch per chain on two devices takes less; without a limit.

    Components are put behind each other in every order that the precedences allow, each as early
    as it can run; what cannot end in time any more is left.
    """
    device_of = problem.placement.device_of_stage
    waits: dict[Component, Component | None] = {}
    for number, (first, second) in enumerate(problem.placement.chains):
        way = [(first, part) for part in FORWARD] + [(second, part) for part in FORWARD]
        way += [(second, part) for part in BACKWARD] + [(first, part) for part in BACKWARD]
        earlier: Component | None = None
        for stage, part in way:
            border = (stage, part) in ((second, "send_F"), (first, "send_B"))
            if times.get(part) and not border:
                component = Component(stage, Part(part), number)
                waits[component] = earlier
                earlier = component
            weight = {"mlp_B": "mlp_W", "attn_B": "attn_W"}.get(part, "")
            if times.get(weight):
                waits[Component(stage, Part(weight), number)] = earlier
    tails = dict.fromkeys(waits, 0)
    for component, needed in reversed(waits.items()):
        if needed is not None:
            rest = tails[component] + times[component.part.value]
            tails[needed] = max(tails[needed], rest)

    def search(ends: dict[Component, int], free: dict[tuple[int, str], int]) -> bool:
        if len(ends) == len(waits):
            return True
        for c, needed in waits.items():
            if c in ends or (needed is not None and needed not in ends):
                continue
            stream = (device_of[c.stage], c.part.stream.value)
            begin = max(free.get(stream, 0), 0 if needed is None else ends[needed])
            end = begin + times[c.part.value]
            if end + tails[c] < makespan and search(ends | {c: end}, free | {stream: end}):
                return True
        return False

    return search({}, {})


@settings(max_examples=6, deadline=None)
@given(st.tuples(*[st.integers(1, 6)] * 4), st.booleans())
def test_no_order_of_a_tiny_step_is_shorter(numbers: tuple[int, ...], communicates: bool) -> None:
    """All orders of a step with one microbatch in each direction are tried."""
    names: tuple[str, ...] = ("attn_F", "send_F" if communicates else "mlp_F", "attn_B", "attn_W")
    times: dict[str, int] = dict(zip(names, numbers, strict=True))
    problem = _problem(2, 2, dict(times))
    result = solve_streams(problem, time_limit_s=1, workers=1)
    assert not _shorter(problem, times, result.objective_ticks)
    assert _shorter(problem, times, result.objective_ticks + 1)
    assert result.schedule.status is Status.OPTIMAL
    assert verify_streams(result.schedule).valid


@settings(max_examples=4, deadline=None)
@given(
    st.fixed_dictionaries({part.value: st.integers(1, 9) for part in Part}),
    st.sampled_from(["linear", "v", "bidirectional", "loop:2"]),
    st.integers(1, 2),
    st.integers(0, 3),
)
def test_what_is_solved_is_valid_and_no_worse_than_blocks(
    times: dict[str, int], placement: str, layers: int, transfer: int
) -> None:
    """On any placement; the verifier agrees with the simulation."""
    components: dict[str, object] = {"layers": layers, **times}
    problem = _problem(2, 3, components, placement, limit=3, transfer=transfer)
    result = solve_streams(problem, time_limit_s=0.2, workers=1)
    verdict = verify_streams(result.schedule)
    assert verdict.violations == ()
    assert result.bound_ticks <= result.objective_ticks <= result.blocks.objective_ticks
    timeline = simulate_streams(result.schedule)
    assert (timeline.makespan, timeline.peak_memory) == (verdict.makespan, verdict.peak_memory)
    assert timeline.makespan_ticks == result.objective_ticks
    earliest = replace(result.schedule, starts=None, objective=None, bound=None, status=None)
    assert simulate_streams(earliest).makespan == verify_streams(earliest).makespan
    assert streams_of_words(words_of_streams(result.schedule)) == result.schedule


@pytest.mark.slow
def test_the_measured_layer_beats_dualpipe_by_eight_percent() -> None:
    """With p = 4, n = 8: DualPipe's order takes 349, the best mirrored one 322, proven."""
    told: list[tuple[int, str]] = []
    result = solve_streams(
        _problem(4, 8, limit=5),
        time_limit_s=60,
        on_progress=lambda schedule, _: told.append((schedule.objective or 0, schedule.source)),
    )
    assert (349, "streams of dualpipe") in told
    assert result.objective == 322
    assert result.mirrored_optimal
    assert verify_streams(result.schedule).valid


def test_annealing_keeps_every_constraint_and_is_told_as_it_goes() -> None:
    """From DualPipe's order: precedences, streams and memory hold in all that it finds."""
    problem = with_component_costs(_problem(4, 8, limit=5))
    shop = StreamShop.of(problem)
    starts = shop.starts_of(starts_of_blocks(families.build("dualpipe", problem)))
    told: list[tuple[int, ...]] = []
    best = anneal(
        shop.shop, starts, until=monotonic() + 0.5, seed=1, workers=2, on_starts=told.append
    )
    assert makespan_of(shop.shop, best) == min(makespan_of(shop.shop, each) for each in told)
    assert makespan_of(shop.shop, best) < makespan_of(shop.shop, starts)
    for found in told:
        rows, begun = shop.rows(found)
        assert verify_streams(StreamSchedule(problem, rows, begun)).violations == ()


def test_an_interrupted_search_keeps_its_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the first annealing leaves what is known of blocks."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bubbleproof.solver.streams.anneal", interrupted)
    result = solve_streams(_problem(2, 4), time_limit_s=1, workers=1)
    assert result.interrupted
    assert result.objective_ticks <= result.blocks.objective_ticks
    assert verify_streams(result.schedule).valid


def test_mirroring_needs_alike_directions() -> None:
    """Other times in one direction, an odd number of devices or of microbatches forbid it."""
    assert may_mirror(_problem(4, 8))
    assert not may_mirror(_problem(3, 4))
    assert not may_mirror(_problem(4, 7))
    assert not may_mirror(_problem(4, 8, placement="v"))
    skewed: dict[str, object] = {**ROUNDED, "attn_F": [4, 4, 4, 4, 4, 4, 4, 5]}
    assert not may_mirror(_problem(4, 8, skewed))


@given(st.tuples(*[st.tuples(st.integers(0, 5), st.integers(0, 5))] * 2))
def test_holds_add_up_to_what_ops_change(changes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """Every amount is allocated before it is freed, and all of it."""
    (f, freed), (i, also) = changes
    freed = min(freed, f)
    also = min(also, f - freed + i)
    every = [(f, freed), (i, also), (1, f - freed + i - also + 1)]
    holds = list(held_by(every))
    assert all(allocates <= frees for _, allocates, frees in holds)
    for op, (allocate, free) in enumerate(every):
        assert sum(amount for amount, allocates, _ in holds if allocates == op) == allocate
        assert sum(amount for amount, _, frees in holds if frees == op) == free


def test_a_file_keeps_a_schedule(tmp_path: Path) -> None:
    """Written and read again it is the same, claims included."""
    file = tmp_path / "streams.json"
    save_streams(_solved(), file)
    assert load_streams(file) == _solved()


def test_a_component_reads_as_it_prints() -> None:
    """With its layer behind the first one."""
    for text in ("2attn_F0", "12combine_B7@3"):
        assert str(parse_component(text)) == text


@pytest.mark.parametrize(
    "text", ["2attn_F", "2attn_X0", "02attn_F0", "2attn_F0@0", "2F0", " 2attn_F0"]
)
def test_what_is_no_component_is_refused(text: str) -> None:
    """With an accepted form in the message."""
    with pytest.raises(ValueError, match=r"is no component; write stage, part .* as 2attn_F0"):
        parse_component(text)


def _words() -> dict[str, object]:
    return json.loads(json.dumps(words_of_streams(_solved()), default=float))


NOTHING: dict[str, list[object]] = {"compute": [], "comm": []}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 1}, r"rows: a list with one object for each device is expected"),
        ({"rows": [{"compute": ""}] * 2}, r"rows\[0\]: comm is missing; \[\] stands for"),
        ({"rows": [{**NOTHING, "com": 1}] * 2}, r"rows\[0\]: 'com' is unknown; did you mean"),
        ({"rows": [{**NOTHING, "compute": ["0F0"]}] * 2}, r"rows\[0\].compute\[0\]: '0F0' is no"),
        ({"rows": [NOTHING]}, r"rows: 1 devices where the problem has 2"),
        ({"starts": [NOTHING] * 2}, r"starts: one for each component"),
        ({"starts": [{**NOTHING, "compute": [-1]}] * 2}, r"starts\[0\].compute\[0\]"),
        ({"status": "best"}, r"status: 'best' is unknown; accepted are"),
        ({"problem": None}, r"problem is missing"),
        ({"format": "bubbleproof.schedule/1"}, r"this is a schedule, not a schedule of streams"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    """In one line with the place."""
    with pytest.raises(ValueError, match=message):
        streams_of_words(_words() | change)


def test_a_problem_without_components_has_no_streams() -> None:
    """Its rows cannot be judged, nor can it be solved."""
    plain = Problem(devices=2, microbatches=2, cost={"F": 1, "I": 1, "W": 1})
    with pytest.raises(ValueError, match=r"cost.components is missing; streams need"):
        solve_streams(plain)
    with pytest.raises(ValueError, match=r"cost.components is missing; streams need"):
        verify_streams(StreamSchedule(plain, ((), ())))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": "span"}, 'streams are solved for "makespan"'),
        ({"backward": "fused"}, 'streams need "free" or "split"'),
        ({"microbatches": 2000}, r"40000 components; streams are solved up to 20000"),
    ],
)
def test_what_streams_cannot_be_solved_for_is_refused(
    change: dict[str, object], message: str
) -> None:
    """Before any search."""
    words: dict[str, object] = {"devices": 2, "microbatches": 2, "cost": {"components": ROUNDED}}
    problem = Problem(**{**words, **change})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=message):
        solve_streams(problem)


def test_a_limit_below_one_microbatch_is_infeasible() -> None:
    """As for blocks."""
    with pytest.raises(NoScheduleError, match=r"device 0 cannot hold even one microbatch"):
        solve_streams(_problem(2, 4, limit=0))


# What the rules catch. Each change makes a valid schedule break the named rule.


def test_the_solved_schedule_breaks_no_rule() -> None:
    """So that what follows is due to each change."""
    assert verify_streams(_solved()).violations == ()


def test_any_component_left_out_twice_or_elsewhere_is_caught() -> None:
    """Each component of the schedule in turn."""
    schedule = _solved()
    for device, stream in product(range(2), range(2)):
        for at, component in enumerate(schedule.rows[device][stream]):
            row = schedule.rows[device][stream]
            for changed, rule in (
                (row[:at] + row[at + 1 :], "complete"),
                (row[: at + 1] + row[at:], "complete"),
                ((*row[:at], replace(component, microbatch=9), *row[at + 1 :]), "complete"),
            ):
                rows = [list(each) for each in schedule.rows]
                rows[device][stream] = changed
                broken = replace(schedule, rows=tuple(map(tuple, rows)), starts=None)
                assert {v.rule for v in verify_streams(broken).violations} == {rule}


def test_a_component_on_another_stream_or_device_is_caught() -> None:
    """Rows exchanged as a whole."""
    schedule = _solved()
    streams = tuple(each[::-1] for each in schedule.rows)
    for rows in (schedule.rows[::-1], streams):
        broken = replace(schedule, rows=rows, starts=None)
        assert {v.rule for v in verify_streams(broken).violations} == {"placement"}


def test_any_start_made_earlier_than_inputs_and_stream_allow_is_caught() -> None:
    """Starts are earliest here, so that one less breaks the order of a stream or of inputs."""
    plain = replace(_solved(), starts=None, objective=None, bound=None, status=None)
    starts = simulate_streams(plain).starts
    for device, stream in product(range(2), range(2)):
        for at, start in enumerate(starts[device][stream]):
            if start == 0:
                continue
            changed = [[list(row) for row in each] for each in starts]
            changed[device][stream][at] -= 1
            verdict = verify_streams(
                replace(plain, starts=tuple(tuple(map(tuple, each)) for each in changed))
            )
            assert {v.rule for v in verdict.violations} & {"exclusive", "timing"}


def test_a_lower_limit_than_the_peak_is_caught() -> None:
    """On the device that holds most."""
    schedule = _solved()
    lower = _problem(2, 4, {"layers": 2, "send_F": 1, "send_B": 2, **ROUNDED}, limit=2)
    verdict = verify_streams(schedule, lower)
    assert {v.rule for v in verdict.violations} == {"memory"}
    assert max(verdict.peak_memory) == 3


def test_both_copies_of_the_weights_count() -> None:
    """A bidirectional device holds two stages."""
    schedule = _solved()
    memory = replace(schedule.problem.memory, static=(10,) * 4, limit=(23,) * 2)
    heavy = Problem(
        devices=2,
        placement="bidirectional",
        microbatches=4,
        backward="free",
        cost=schedule.problem.cost,
        memory=memory,
    )
    verdict = verify_streams(schedule, heavy)
    assert verdict.valid
    assert max(verdict.peak_memory) == 23


def test_an_order_that_waits_for_itself_is_caught() -> None:
    """A backward before its forward on both streams' rows."""
    schedule = replace(_solved(), starts=None)
    rows = tuple(tuple(row[::-1] for row in each) for each in schedule.rows)
    broken = replace(schedule, rows=rows)
    assert {v.rule for v in verify_streams(broken).violations} == {"order"}
    with pytest.raises(DeadlockError, match=r"the compute stream of device 0 stands at .* waits"):
        simulate_streams(broken)


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"objective": 1}, r"the objective is said to be 1; it is"),
        ({"bound": 10**6}, r"is above what this schedule reaches"),
        ({"status": Status.OPTIMAL, "bound": 1}, r"optimal is said"),
        ({"status": Status.INFEASIBLE}, r"infeasible is said"),
    ],
)
def test_wrong_claims_are_caught(claims: dict[str, object], message: str) -> None:
    """Each by rule certificate."""
    broken = replace(_solved(), **claims)  # pyright: ignore[reportArgumentType]
    (violation,) = verify_streams(broken).violations
    assert violation.rule == "certificate"
    with pytest.raises(ValueError, match=message):
        raise ValueError(violation.message)


def test_components_that_take_no_time_are_not_run() -> None:
    """A dense layer has no all-to-all."""
    problem = _problem(2, 2, {"attn_F": 2, "mlp_F": 1, "attn_B": 3, "mlp_B": 2, "mlp_W": 1})
    assert {c.part for c in instances(problem)} == {
        Part.ATTN_F,
        Part.MLP_F,
        Part.ATTN_B,
        Part.MLP_B,
        Part.MLP_W,
    }
    assert solve_streams(problem, time_limit_s=0.5, workers=1).schedule.rows[0][1] == ()
