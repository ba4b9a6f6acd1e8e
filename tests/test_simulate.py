"""Times: earliest starts, bubbles by cause, memory over time, and the DAG behind them."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import networkx as nx
import pytest
from file_strategies import problems
from hypothesis import given, settings
from hypothesis import strategies as st

from bubbleproof.schedules import families
from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.graph import dependency_graph, ops_of_problem
from bubbleproof.schedules.ops import Block, Op, OpKind, Pair
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Schedule, parse_rows
from bubbleproof.schedules.simulate import Bubble, DeadlockError, Timeline, simulate

UNIT = {"F": 1, "I": 1, "W": 1}


def any_order(problem: Problem, seed: int) -> Schedule:
    """Return a schedule in some topological order of the DAG: valid but for memory."""
    graph = dependency_graph(problem)
    random = Random(seed)
    drawn = {op: random.random() for op in graph}

    def rank(op: Op) -> float:
        return drawn[op]

    rows: list[list[Block]] = [[] for _ in range(problem.devices)]
    for op in nx.lexicographical_topological_sort(graph, key=rank):
        rows[problem.placement.device_of_stage[op.stage]].append(op)
    return Schedule(problem=problem, rows=tuple(map(tuple, rows)))


def longest_path(schedule: Schedule) -> dict[Op, int]:
    """Return the earliest end of every op from the DAG with the orders of the devices added."""
    problem = schedule.problem
    graph = dependency_graph(problem)
    for row in schedule.rows:
        ops = [op for op in row if isinstance(op, Op)]
        for before, after in itertools.pairwise(ops):
            if not graph.has_edge(before, after):
                graph.add_edge(before, after, lag=0, transfer=False)
    ends: dict[Op, int] = {}
    for op in nx.topological_sort(graph):
        arrivals = [ends[source] + graph.edges[source, op]["lag"] for source in graph.pred[op]]
        ends[op] = max(arrivals, default=0) + problem.duration(op)
    return ends


def bubbles(timeline: Timeline) -> list[tuple[int, int, int]]:
    """Return each device's waiting, transfer and tail."""
    return [(bubble.waiting, bubble.transfer, bubble.tail) for bubble in timeline.bubbles]


@settings(max_examples=50)
@given(problem=problems(), seed=st.integers(0, 2**16))
def test_every_topological_order_runs_at_the_longest_paths_times(
    problem: Problem, seed: int
) -> None:
    """The simulator and the DAG agree on every start."""
    schedule = any_order(problem, seed)
    timeline = simulate(schedule)
    ends = longest_path(schedule)
    for row, each in zip(schedule.rows, timeline.ends, strict=True):
        assert [ends[op] for op in row if isinstance(op, Op)] == list(each)


@settings(max_examples=50)
@given(problem=problems(), seed=st.integers(0, 2**16))
def test_idle_time_is_waiting_transfer_and_tail_together(problem: Problem, seed: int) -> None:
    """They add up to makespan x p - work, on every device and over all."""
    timeline = simulate(any_order(problem, seed))
    idle = sum(bubble.total for bubble in timeline.bubbles)
    assert idle == problem.devices * timeline.makespan_ticks - timeline.work_ticks
    for bubble, starts, ends in zip(timeline.bubbles, timeline.starts, timeline.ends, strict=True):
        work = sum(end - start for start, end in zip(starts, ends, strict=True))
        assert bubble.total == timeline.makespan_ticks - work
        assert min(bubble.waiting, bubble.transfer, bubble.tail) >= 0
    assert timeline.span_ticks <= timeline.makespan_ticks
    if problem.cost.transfer == 0:
        assert all(bubble.transfer == 0 for bubble in timeline.bubbles)


@settings(max_examples=50)
@given(problem=problems(), seed=st.integers(0, 2**16))
def test_memory_starts_and_ends_at_the_static_part(problem: Problem, seed: int) -> None:
    """What ops allocate they free, and the curve never runs back in time or below."""
    timeline = simulate(any_order(problem, seed))
    for device, curve in enumerate(timeline.memory):
        static = problem.static(device)
        assert curve[0] == (0, static)
        assert curve[-1][1] == static
        assert [tick for tick, _ in curve] == sorted(tick for tick, _ in curve)
        assert min(held for _, held in curve) == static
        peak = problem.amount(max(held for _, held in curve))
        assert timeline.peak_memory[device] == peak


def test_one_f_one_b_by_hand() -> None:
    """Two devices, two microbatches, every start worked out on paper."""
    problem = Problem(devices=2, microbatches=2, cost=UNIT, backward="fused")
    schedule = Schedule(problem, parse_rows(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]))
    timeline = simulate(schedule)
    assert timeline.starts == ((0, 1, 4, 7), (1, 2, 4, 5))
    assert timeline.ends == ((1, 2, 6, 9), (2, 4, 5, 7))
    assert (timeline.makespan, timeline.span, timeline.work_ticks) == (9, 9, 12)
    assert bubbles(timeline) == [(3, 0, 0), (1, 0, 2)]
    assert timeline.memory[0] == ((0, 0), (0, 1), (1, 2), (6, 1), (9, 0))
    assert timeline.peak_memory == (2, 1)
    assert timeline.bubble_ratio == 1 - 12 / 18
    assert timeline.zb_bubble_ratio == 3 / 9


def test_transfers_delay_and_are_told_apart_from_waiting() -> None:
    """Device 1 waits 1 for the forward and 2 for its way; device 0 for the way back too."""
    problem = Problem(
        devices=2, microbatches=1, cost=UNIT | {"transfer": 0.5}, time_unit="ms", backward="fused"
    )
    timeline = simulate(Schedule(problem, parse_rows(["0F0 0B0", "1F0 1B0"])))
    assert timeline.starts == ((0, 10), (3, 5))
    assert (timeline.makespan, timeline.span) == (7, 7)
    assert bubbles(timeline) == [(7, 1, 0), (2, 1, 5)]


def test_a_start_later_than_it_could_be_is_waiting() -> None:
    """A schedule's own starts are kept, and its first start is time zero of the makespan."""
    problem = Problem(devices=1, microbatches=1, cost=UNIT, backward="fused")
    timeline = simulate(Schedule(problem, parse_rows(["0F0 0B0"]), ((5, 8),)))
    assert (timeline.makespan, timeline.span) == (5, 5)
    assert bubbles(timeline) == [(2, 0, 0)]
    assert timeline.bubbles[0] == Bubble(waiting=2, transfer=0, tail=0)


def test_what_ends_frees_before_what_starts_at_the_same_instant_allocates() -> None:
    """As a profiler saw it: F +3, I +2 at its start, W -5 at its end; the order halves it."""
    problem = Problem(devices=1, microbatches=2, cost=UNIT, memory={"F": 3, "I": 2, "W": -5})
    late = simulate(Schedule(problem, parse_rows(["0F0 0F1 0I0 0I1 0W0 0W1"])))
    soon = simulate(Schedule(problem, parse_rows(["0F0 0I0 0W0 0F1 0I1 0W1"])))
    assert (late.peak_memory, soon.peak_memory) == ((10,), (5,))
    assert soon.makespan == 6


def test_ops_without_time_run_and_are_counted_in_memory() -> None:
    """An empty stage passes on at once; what it holds for no time it still holds."""
    problem = Problem(
        devices=2, microbatches=1, cost=UNIT | {"F": [1, 0], "I": [1, 0], "W": [1, 0]}
    )
    timeline = simulate(Schedule(problem, parse_rows(["0F0 0I0 0W0", "1F0 1I0 1W0"])))
    assert timeline.starts == ((0, 1, 2), (1, 1, 1))
    assert (timeline.makespan, timeline.peak_memory) == (3, (1, 1))


def test_nothing_to_run_takes_no_time() -> None:
    """No division by zero."""
    problem = Problem(devices=2, microbatches=1, cost={"F": 0, "I": 0, "W": 0})
    timeline = simulate(Schedule(problem, ((), ())))
    assert (timeline.makespan, timeline.span, timeline.bubble_ratio) == (0, 0, 0.0)
    assert timeline.zb_bubble_ratio == 0.0


def test_a_pair_is_one_block_of_both() -> None:
    """It waits for the inputs of both halves, and both hand on at its end."""
    problem = Problem(devices=2, microbatches=2, cost=UNIT | {"pair": 2.5}, backward="fused")
    schedule = Schedule(problem, parse_rows(["0F0 0F1 0B0 0B1", "1F0 (1F1;1B0)OVERLAP_F_B 1B1"]))
    timeline = simulate(schedule)
    assert [problem.time(start) for start in timeline.starts[1]] == [1, 2, 4.5]
    assert problem.time(timeline.starts[0][2]) == 4.5
    assert timeline.peak_memory == (2, 2)


def test_moving_earlier_ops_first_never_reads_a_pairs_own_half() -> None:
    """A backward paired with the forward that it needs can never start."""
    problem = Problem(devices=1, microbatches=1, cost=UNIT | {"pair": 2}, backward="fused")
    schedule = Schedule(problem, ((Pair(Op(0, OpKind.FORWARD, 0), Op(0, OpKind.BACKWARD, 0)),),))
    with pytest.raises(DeadlockError, match=r"device 0 stands at .* and waits for 0F0"):
        simulate(schedule)


def test_a_deadlock_names_what_each_device_waits_for() -> None:
    """As the rows write it: a fused backward is a B."""
    problem = Problem(devices=2, microbatches=2, cost=UNIT, backward="fused")
    schedule = Schedule(problem, parse_rows(["0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"]))
    message = (
        "^the order cannot run: device 0 stands at 0B0 and waits for 1B0; "
        "device 1 stands at 1F1 and waits for 0F1$"
    )
    with pytest.raises(DeadlockError, match=message):
        simulate(schedule)


def test_an_input_that_is_nowhere_is_a_deadlock_that_says_so() -> None:
    """Nothing can ever hand it on."""
    problem = Problem(devices=2, microbatches=1, cost=UNIT)
    schedule = Schedule(problem, parse_rows(["0F0 0I0 0W0", "1F0"]))
    with pytest.raises(DeadlockError, match="waits for 1I0, which is in no row"):
        simulate(schedule)


def test_many_blocked_devices_are_cut_short() -> None:
    """Eight are named."""
    problem = Problem(devices=12, microbatches=1, cost=UNIT)
    rows = [f"{stage}W0" for stage in range(12)]
    with pytest.raises(DeadlockError, match=r"device 7 stands at 7W0 .*; \.\.\.$"):
        simulate(Schedule(problem, parse_rows(rows)))


SHAPES: dict[str, tuple[Sequence[str], tuple[tuple[int, ...], ...] | None]] = {
    "1 rows for 2 devices": (["0F0"], None),
    "device 1 runs 7F0, but the stages are 0..1": (["0F0", "7F0"], None),
    r"device 0 runs 0F9, but the microbatches are 0\.\.": (["0F9", "1F0"], None),
    "the starts do not fit the rows": (["0F0", "1F0"], ((0,), (1, 2))),
    r"cost\.pair allows no pair": (["0F0 (0F1;0B0)OVERLAP_F_B", ""], ((0, 1), ())),
}


@pytest.mark.parametrize("message", sorted(SHAPES))
def test_rows_that_do_not_fit_the_problem_cannot_be_simulated(message: str) -> None:
    """The message says which and what would fit."""
    rows, starts = SHAPES[message]
    problem = Problem(devices=2, microbatches=2, cost=UNIT, backward="fused")
    with pytest.raises(ValueError, match=message):
        simulate(Schedule(problem, parse_rows(rows), starts))


@pytest.mark.parametrize(("n", "idle"), [(8, 21), (32, 21)])
def test_the_ramp_of_1f1b_does_not_grow_with_n(n: int, idle: int) -> None:
    """(p-1)(F+B) per device, and p-s activations on stage s."""
    problem = Problem(devices=8, microbatches=n, cost=UNIT, backward="fused")
    timeline = simulate(families.one_f_one_b(problem))
    assert {bubble.total for bubble in timeline.bubbles} == {idle}
    assert timeline.peak_memory == (8, 7, 6, 5, 4, 3, 2, 1)


@settings(max_examples=50)
@given(problem=problems())
def test_the_graph_has_each_op_once_and_exactly_its_dependencies(problem: Problem) -> None:
    """Restated from the definition, edge by edge, with lags and transfers."""
    graph = dependency_graph(problem)
    assert nx.is_directed_acyclic_graph(graph)
    assert set(graph) == set(ops_of_problem(problem))
    fused = problem.backward is Backward.FUSED
    back = OpKind.BACKWARD if fused else OpKind.BACKWARD_INPUT
    device_of = problem.placement.device_of_stage
    expected: dict[tuple[Op, Op], tuple[int, bool]] = {}
    for chain, stages in enumerate(problem.placement.chains):
        for m in problem.microbatches_of(chain):
            for stage in stages:
                forward, backward = Op(stage, OpKind.FORWARD, m), Op(stage, back, m)
                expected[forward, backward] = (0, False)
                if not fused:
                    expected[backward, Op(stage, OpKind.BACKWARD_WEIGHT, m)] = (0, False)
            for before, after in itertools.pairwise(stages):
                for u, v in ((before, after), (after, before)):
                    kind = OpKind.FORWARD if u == before else back
                    lag = problem.transfer(device_of[u], device_of[v])
                    moves = device_of[u] != device_of[v]
                    expected[Op(u, kind, m), Op(v, kind, m)] = (lag, moves)
    found = {(u, v): (data["lag"], data["transfer"]) for u, v, data in graph.edges(data=True)}
    assert found == expected
    for op, data in graph.nodes(data=True):
        assert data == {"device": device_of[op.stage], "duration": problem.duration(op)}


def test_the_graph_of_given_ops_takes_a_b_for_an_i() -> None:
    """A B hands on the same gradient, and what is not among the ops has no edge."""
    problem = Problem(devices=2, microbatches=1, cost=UNIT, backward="free")
    ops = [Op(0, OpKind.BACKWARD_INPUT, 0), Op(1, OpKind.BACKWARD, 0), Op(0, OpKind.FORWARD, 0)]
    graph = dependency_graph(problem, ops)
    assert set(graph.edges) == {(ops[1], ops[0]), (ops[2], ops[0])}


def test_clearing_the_starts_gives_the_earliest_ones() -> None:
    """Given starts win; replace clears them."""
    problem = Problem(devices=1, microbatches=1, cost=UNIT)
    late = Schedule(problem, parse_rows(["0F0 0I0 0W0"]), ((5, 7, 9),))
    assert simulate(late).starts == ((5, 7, 9),)
    assert simulate(replace(late, starts=None)).starts == ((0, 1, 2),)
