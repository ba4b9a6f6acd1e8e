"""Rule causal: whether an order can run, and the shortest cycle where it cannot."""

from collections.abc import Iterator

import networkx as nx
from hypothesis import given
from strategies import one_f_one_b, reordered_schedules
from verdicts import judge, only, rules

import bubbleproof as bp
from bubbleproof.schedules.graph import dependency_graph
from bubbleproof.schedules.ops import ops_of
from bubbleproof.schedules.schedule import Schedule

UNIT = {"F": 1, "I": 1, "W": 1}


def problem(devices: int = 2, microbatches: int = 2) -> bp.Problem:
    """Return a fused linear problem with unit times."""
    return bp.Problem(devices=devices, microbatches=microbatches, cost=UNIT, backward="fused")


def test_an_op_before_its_own_input_waits_for_its_own_row() -> None:
    """A backward before its forward is a cycle of one wait."""
    found = only(judge(problem(2, 1), ["0B0 0F0", "1F0 1B0"]), "causal")
    assert (found.device, found.position, found.ops) == (0, 0, ("0B0", "0F0"))
    assert found.message == (
        "the order cannot run, a cycle of 1 wait: device 0 stands at 0B0 (position 0) "
        "and waits for 0F0 later in its own row (position 1)"
    )


def test_two_devices_that_wait_for_each_other_are_named() -> None:
    """Device 0 wants its gradient before it sends the forward that device 1 wants first."""
    found = only(judge(problem(), ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"]), "causal")
    assert found.message == (
        "the order cannot run, a cycle of 2 waits: "
        "device 0 stands at 0B0 (position 1) and waits for 1B0 of device 1 (position 2); "
        "device 1 stands at 1F1 (position 1) and waits for 0F1 of device 0 (position 2)"
    )
    assert found.ops == ("0B0", "1B0", "1F1", "0F1")


def test_an_order_that_cannot_run_has_no_length() -> None:
    """Neither makespan nor span is made up, with starts given or not; the peaks stay."""
    rows = ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"]
    for starts in (None, [[0, 10, 11, 20], [1, 13, 15, 17]]):
        report = judge(problem(), rows, starts)
        assert "causal" in rules(report)
        assert (report.makespan, report.span) == (None, None)
        assert report.peak_memory == (1, 2)


def test_ops_without_length_do_not_hide_a_cycle() -> None:
    """Where nothing takes time all starts are 0 and keep every lag; the order still hangs."""
    on = bp.Problem(devices=2, microbatches=2, cost={"F": 0, "B": 0}, backward="fused")
    rows = ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"]
    only(judge(on, rows, [[0, 0, 0, 0], [0, 0, 0, 0]]), "causal")


def test_the_named_cycle_is_shorter_than_that_of_the_devices_at_their_heads() -> None:
    """Three devices stand still in a ring, but two of them have a shorter cycle further on.

    Devices 0, 1, 2 wait for each other's forwards of microbatches 0, 1, 2. Later in the row of
    device 2 microbatch 3 has its backward before its forward.
    """
    chains = [[0, 1], [2, 3], [4, 5], [6]]
    on = bp.Problem(
        devices=3,
        placement={"device_of_stage": [0, 1, 1, 2, 2, 0, 2], "chains": chains},
        microbatches=[1, 1, 1, 1],
        cost=UNIT,
        backward="fused",
    )
    rows = ["5F2 0F0 5B2 0B0", "1F0 2F1 1B0 2B1", "3F1 4F2 6B3 6F3 3B1 4B2"]
    found = only(judge(on, rows), "causal")
    assert found.ops == ("6B3", "6F3")
    ring = only(judge(on, [*rows[:2], "3F1 4F2 6F3 6B3 3B1 4B2"]), "causal")
    assert ring.ops == ("5F2", "4F2", "3F1", "2F1", "1F0", "0F0")


def test_a_long_cycle_is_told_in_part_and_named_in_full() -> None:
    """Twenty devices in a ring: the message shows twelve waits, the violation has all ops."""
    p = 20
    chains = [[2 * i, 2 * i + 1] for i in range(p)]
    on = bp.Problem(
        devices=p,
        placement={
            "device_of_stage": [device for i in range(p) for device in (i, (i + 1) % p)],
            "chains": chains,
        },
        microbatches=[1] * p,
        cost=UNIT,
        backward="fused",
    )
    rows = [f"{2 * (i - 1) % (2 * p) + 1}F{(i - 1) % p} {2 * i}F{i}" for i in range(p)]
    found = next(each for each in judge(on, rows).violations if each.rule == "causal")
    assert "a cycle of 20 waits" in found.message
    assert found.message.endswith("; 8 more")
    assert len(found.ops) == 2 * p


def test_an_input_that_is_missing_is_not_waited_for() -> None:
    """Without 0F1 the rest of the order runs; rule complete alone tells the lack."""
    report = judge(problem(), ["0F0 0B0 0B1", "1F0 1B0 1F1 1B1"])
    assert only(report, "complete").ops == ("0F1",)
    assert report.makespan is None


def test_a_second_copy_neither_gives_nor_waits() -> None:
    """A copy of 0B0 ahead of 1F0, which 0B0 needs, would hang; it only takes its two ticks."""
    report = judge(problem(2, 1), ["0F0 0B0", "0B0 1F0 1B0"])
    assert rules(report) == ["complete"]
    assert report.makespan == 7


def test_a_deadlock_in_a_large_schedule_is_found_where_it_is() -> None:
    """One exchange in the middle of 12,800 ops: the cycle has the exchanged ops in it."""
    on = problem(16, 400)
    rows = [list(row) for row in one_f_one_b(on).rows]
    row = rows[7]
    at = [str(op) for op in row].index("7F200")
    later = [str(op) for op in row].index("7B200")
    row[at], row[later] = row[later], row[at]
    found = only(bp.verify(Schedule(on, tuple(map(tuple, rows)))), "causal")
    assert found.ops == ("7B200", "7F200")


def waits(schedule: Schedule) -> "nx.DiGraph[tuple[int, int]]":
    """Return the blocks, with an edge to each block of an input (1) or before it in its row (0)."""
    place = {
        op: (device, position)
        for device, row in enumerate(schedule.rows)
        for position, block in enumerate(row)
        for op in ops_of(block)
    }
    graph: nx.DiGraph[tuple[int, int]] = nx.DiGraph()
    graph.add_nodes_from(place.values())
    for device, row in enumerate(schedule.rows):
        for position in range(1, len(row)):
            graph.add_edge((device, position), (device, position - 1), wait=0)
    for source, target in dependency_graph(schedule.problem, place).edges:
        if place[source] != place[target] and not graph.has_edge(place[target], place[source]):
            graph.add_edge(place[target], place[source], wait=1)
    return graph


def fewest_waits(graph: "nx.DiGraph[tuple[int, int]]") -> Iterator[int]:
    """Yield for each edge the fewest waits for an input of a cycle with it."""
    for block, source in graph.edges:
        wait: int = graph.edges[block, source]["wait"]
        distance = nx.single_source_dijkstra_path_length(graph, source, weight="wait")
        if block in distance:
            yield int(distance[block]) + wait


@given(schedule=reordered_schedules())
def test_verdict_and_cycle_agree_with_the_graph_of_all_waits(schedule: Schedule) -> None:
    """An order is causal if and only if networkx finds no cycle; the named one is a shortest."""
    report = bp.verify(schedule)
    graph = waits(schedule)
    assert set(rules(report)) <= {"causal"}
    assert report.valid == nx.is_directed_acyclic_graph(graph)
    if not report.valid:
        message = only(report, "causal").message
        fewest = min(fewest_waits(graph))
        assert f"a cycle of {fewest} wait" in message
        assert message.count("stands at") == min(fewest, 12)


@given(schedule=reordered_schedules())
def test_each_step_of_the_named_cycle_is_a_wait(schedule: Schedule) -> None:
    """Each named block waits for the next, which is its input or stands before it in its row."""
    report = bp.verify(schedule)
    if report.valid:
        return
    graph = waits(schedule)
    named = only(report, "causal").ops
    text = {
        str(block): (d, i) for d, row in enumerate(schedule.rows) for i, block in enumerate(row)
    }
    blocks = [text[op] for op in named]
    for one, other in zip(blocks, [*blocks[1:], blocks[0]], strict=True):
        behind = one[0] == other[0] and one[1] > other[1]
        assert behind or graph.has_edge(one, other)


def test_the_same_order_gives_the_same_report() -> None:
    """Nothing in a report depends on chance."""
    rows = ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"]
    assert judge(problem(), rows) == judge(problem(), rows)
