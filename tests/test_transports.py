"""Programs under the four transports: who hangs where, and the independent executor's opinion."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import msgspec
import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_executor import TRANSPORTS, ProgramExecution
from programs import hanging, judged, problem_of, written
from random_programs import drifted, lowered, random_program
from strategies import any_order, problems
from verdicts import only, rules

import bubbleproof as bp
from bubbleproof.schedules.lower import lower
from bubbleproof.schedules.ops import Block, Op, OpKind, Pair
from bubbleproof.schedules.placement import explicit
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Action, ActionKind, Group, Program, Step
from bubbleproof.schedules.schedule import Schedule, parse_rows
from bubbleproof.verify.program_rules import verify_program
from bubbleproof.verify.transports import Transport

TWO = problem_of(2, 2)
ALL = list(TRANSPORTS)


def disagreement(seed: int) -> str:
    """Judge a random program and run it under each transport; say where the two differ."""
    program, names = random_program(Random(seed))
    report = verify_program(program)
    runs = {name: ProgramExecution(program, name, seed) for name in TRANSPORTS}
    hung = [name for name, run in runs.items() if run.hung]
    if report.valid != (not any(run.faults for run in runs.values())):
        return f"{names}: {report.violations} but {runs}"
    if hanging(program) != hung or (report.deadlock is None) != (not hung):
        return f"{names}: hangs under {hanging(program)}, but the executor under {hung}"
    peaks = {run.peaks for run in runs.values()}
    if report.valid and peaks != {report.peak_memory}:
        return f"{names}: peaks {report.peak_memory}, but {peaks}"
    return ""


# Public hangs and mix-ups, each with its repaired form.


def test_neighbouring_send_and_receive_must_be_one_group() -> None:
    """1F1B with a send on both sides first hangs where a send waits (PiPPy 1088, torch 126419)."""
    rows = (
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1",
    )
    report = judged(TWO, *rows)
    violation = only(report, "deadlock")
    assert (violation.device, violation.position) == (0, 3)
    assert violation.ops == ("0SEND_F1", "1SEND_B0")
    assert violation.message == (
        "the program hangs under rendezvous, pair-fifo, rank-fifo, a cycle of 2 waits: "
        "device 0 stands at 0SEND_F1 (position 3) and waits for 1RECV_F1 of device 1 (position 4); "
        "device 1 stands at 1SEND_B0 (position 3) and waits for 0RECV_B0 of device 0 (position 4). "
        "bubbleproof repair finds an order of the messages that ends"
    )
    assert report.deadlock == {
        "transport": "rendezvous",
        "blocked": {"0": "0SEND_F1", "1": "1SEND_B0"},
    }
    assert hanging(written(TWO, *rows)) == ["rendezvous", "pair-fifo", "rank-fifo"]
    grouped = (
        rows[0].replace("0SEND_F1 0RECV_B0", "{0SEND_F1 0RECV_B0}"),
        rows[1].replace("1SEND_B0 1RECV_F1", "{1SEND_B0 1RECV_F1}"),
    )
    assert judged(TWO, *grouped).valid


def test_two_devices_tell_messages_apart_by_order_alone() -> None:
    """With p = 2 the one before is the one behind (Megatron-LM 1451, 1484, 1485, 1495, 5100)."""
    loop = problem_of(2, 2, "loop:2")
    rows = (
        "0F0 0SEND_F0 2RECV_F0 2F0 2SEND_F0 0F1 0SEND_F1 2RECV_B0 2B0 2RECV_F1 "
        "2SEND_B0 2F1 2SEND_F1 0RECV_B0 0B0 2RECV_B1 2B1 2SEND_B1 0RECV_B1 0B1",
        "1RECV_F0 1F0 1SEND_F0 3RECV_F0 3F0 1RECV_F1 3B0 3SEND_B0 1F1 1SEND_F1 "
        "1RECV_B0 3RECV_F1 1B0 1SEND_B0 3F1 3B1 3SEND_B1 1RECV_B1 1B1 1SEND_B1",
    )
    assert judged(loop, *rows).valid
    # Device 0 sends 2SEND_B0 and then 2SEND_F1, of one shape; nothing fails if they are exchanged.
    swapped = rows[1].replace("1RECV_B0 3RECV_F1", "3RECV_F1 1RECV_B0")
    violation = only(judged(loop, rows[0], swapped), "order")
    assert violation.ops == ("2SEND_B0", "3RECV_F1")
    assert "send 3 is 2SEND_B0 (position 10) and receive 3 is 3RECV_F1 (position 10)" in (
        violation.message
    )
    # With the sends exchanged as well the two orders are one again.
    sends = rows[0].replace("2SEND_B0 2F1 2SEND_F1", "2F1 2SEND_F1 2SEND_B0")
    assert judged(loop, sends, swapped).valid


def test_the_first_message_of_a_mix_up_is_named() -> None:
    """An activation and a gradient to one device, posted 1RECV_B0 first there."""
    loop = problem_of(2, 1, "loop:2")
    rows = (
        "0F0 0SEND_F0 2RECV_F0 2F0 2SEND_F0 2RECV_B0 2B0 2SEND_B0 0RECV_B0 0B0",
        "1RECV_F0 1F0 1SEND_F0 1RECV_B0 3RECV_F0 3F0 3B0 3SEND_B0 1B0 1SEND_B0",
    )
    report = judged(loop, *rows)
    assert rules(report) == ["order", "deadlock"]
    assert report.violations[0].ops == ("2SEND_F0", "1RECV_B0")
    assert report.violations[0].message.startswith(
        "from device 0 to device 1, send 1 is 2SEND_F0 (position 4) and receive 1 is 1RECV_B0 "
        "(position 3)"
    )


def test_a_v_schedule_on_a_loop_of_stages_is_refused() -> None:
    """Device 0 of a V holds stages 0 and 7; on a loop 7 is on device 3 (torchtitan 774)."""
    asked = problem_of(4, 8, "v", "split")
    program = lower(bp.families.zb_v(asked))
    assert verify_program(program).valid
    report = verify_program(program, problem_of(4, 8, "loop:2", "split"))
    placed = [each for each in report.violations if each.rule == "placement"]
    assert "of stage 7, which is on device 3" in placed[0].message
    assert placed[0].device == 0
    assert {"placement", "peer"} <= set(rules(report))


def test_neighbouring_stages_on_one_device_need_no_message() -> None:
    """Stages 1 and 2 both on device 1 (torch 128976)."""
    asked = Problem(
        devices=2,
        placement=explicit(2, [0, 1, 1, 0]),
        microbatches=1,
        cost={"F": 1, "I": 1, "W": 1},
        backward="fused",
    )
    schedule = Schedule(asked, parse_rows(["0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"]))
    program = lower(schedule)
    report = verify_program(program)
    assert report.valid
    assert report.makespan == 12
    messages = [
        message
        for row in program.rows
        for step in row
        for message in (step.messages if isinstance(step, Group) else (step,))
        if isinstance(message, Action) and message.kind.is_message
    ]
    ends = "0SEND_F0 1RECV_F0 2SEND_F0 3RECV_F0 3SEND_B0 2RECV_B0 1SEND_B0 0RECV_B0"
    assert sorted(map(str, messages)) == sorted(ends.split())


@pytest.mark.parametrize("name", bp.families.names())
def test_as_many_microbatches_as_devices_end_under_every_transport(name: str) -> None:
    """N = p is no special case (ColossalAI 2156): all families, lowered, p = 2 to 6."""
    built = 0
    for p in range(2, 7):
        for placement in ("linear", "loop:2", "v", "wave:2", "bidirectional"):
            asked = problem_of(p, p, placement, "free")
            try:
                schedule = bp.families.build(name, asked)
            except ValueError:
                continue
            built += 1
            assert verify_program(lower(schedule)).valid
    assert built or name in ("dualpipe", "dualpipe_v")


def test_swapped_receives_corrupt_without_an_error() -> None:
    """Torch runs this and gives wrong gradients; every transport ends."""
    rows = (
        "0F0 0F1 {0SEND_F0 0SEND_F1} 0RECV_B0 0B0 0RECV_B1 0B1",
        "{1RECV_F1 1RECV_F0} 1F0 1F1 1B0 1SEND_B0 1B1 1SEND_B1",
    )
    program = written(TWO, *rows)
    assert rules(judged(TWO, *rows)) == ["order"]
    assert hanging(program) == []
    assert any("of another" in fault for fault in ProgramExecution(program, "buffered").faults)


# What tells the transports apart.


def test_a_receive_too_early_stops_all_but_pair_fifo() -> None:
    """Device 1 receives first what device 0 sends only after an answer by way of device 2."""
    rows = (
        "0F0 0SEND_F0 3RECV_F0 3F0 0F1 0SEND_F1 3SEND_F0",
        "1RECV_F0 1F0 1RECV_F1 1SEND_F0 4RECV_F0 4F0",
        "2RECV_F0 2F0 2SEND_F0",
    )
    loop = problem_of(3, 2, "loop:2")
    assert hanging(written(loop, *rows)) == ["buffered", "rendezvous", "rank-fifo"]
    in_time = rows[1].replace("1RECV_F1 1SEND_F0", "1SEND_F0 1RECV_F1")
    assert hanging(written(loop, rows[0], in_time, rows[2])) == []


def test_a_ring_of_sends_stops_what_waits_for_all() -> None:
    """Three devices each send to the next first: with a queue for each pair they pass."""
    rows = (
        "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 3RECV_F0",
        "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 1RECV_F2",
        "2RECV_F0 2F0 2SEND_F0 2RECV_F1",
    )
    ring = written(problem_of(3, 3, "loop:2"), *rows)
    assert hanging(ring) == ["rendezvous", "rank-fifo"]
    report = verify_program(ring, transports=(Transport.RANK_FIFO,))
    assert report.deadlock == {
        "transport": "rank-fifo",
        "blocked": {"0": "0SEND_F2", "1": "1SEND_F1", "2": "2SEND_F0"},
    }
    deadlock = next(each for each in report.violations if each.rule == "deadlock")
    assert (
        "device 0 has open 0SEND_F2 (position 5) and waits for 1RECV_F2 of device 1 (position 6), "
        "queued behind 1SEND_F1 (position 5)"
    ) in deadlock.message


def test_an_op_that_waits_keeps_the_message_behind_it() -> None:
    """In a queue a receive waits for a send that is posted only after an op that waits in turn."""
    rows = (
        "0F0 0SEND_F0 0F1 0RECV_B0 0B0 0SEND_F1 0RECV_B1 0B1",
        "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1",
    )
    report = judged(TWO, *rows)
    assert hanging(written(TWO, *rows)) == ALL
    assert report.deadlock == {
        "transport": "buffered",
        "blocked": {"0": "0RECV_B0", "1": "1RECV_F1"},
    }
    fifo = verify_program(written(TWO, *rows), transports=(Transport.PAIR_FIFO,))
    (violation,) = fifo.violations
    assert (
        "device 1 has open 1RECV_F1 (position 2) and waits for 0SEND_F1 of device 0 (position 5), "
        "which is posted only after 0RECV_B0 (position 3) is done"
    ) in violation.message


def test_an_order_of_ops_that_hangs_is_told_once() -> None:
    """Rule causal has the cycle; deadlock only says where the devices stand."""
    rows = (
        "0F0 0SEND_F0 0RECV_B1 0B1 0F1 0SEND_F1 0RECV_B0 0B0",
        "1RECV_F0 1F0 1RECV_F1 1F1 1B1 1SEND_B1 1B0 1SEND_B0",
    )
    report = judged(TWO, *rows)
    assert "causal" in rules(report)
    assert "deadlock" not in rules(report)
    assert report.deadlock is not None
    assert report.deadlock["blocked"] == {"0": "0RECV_B1", "1": "1RECV_F1"}


def test_only_the_transports_that_are_asked_for_count() -> None:
    """Gloo's buffers hide what NCCL would not."""
    rows = (
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1",
    )
    program = written(TWO, *rows)
    assert verify_program(program, transports=(Transport.BUFFERED,)).valid
    assert verify_program(program, transports=()).valid
    assert not verify_program(program, transports=(Transport.PAIR_FIFO,)).valid


@settings(max_examples=60)
@given(problems(max_devices=4), st.integers(0, 2**32))
def test_what_ends_under_rendezvous_ends_under_all(problem: Problem, seed: int) -> None:
    """And rank-fifo hangs where rendezvous does, whatever the groups."""
    random = Random(seed)
    program = drifted(lowered(any_order(problem, random)), random, 30)
    hung = hanging(program)
    assert ("rendezvous" in hung) == ("rank-fifo" in hung) == bool(hung)


@settings(max_examples=60)
@given(problems(max_devices=4), st.integers(0, 2**32))
def test_the_cycle_of_a_deadlock_is_the_smallest(problem: Problem, seed: int) -> None:
    """The devices of the executor stand in a graph of waits without a shorter cycle."""
    random = Random(seed)
    program = drifted(lowered(any_order(problem, random)), random, 30)
    report = verify_program(program, transports=(Transport.RENDEZVOUS,))
    run = ProgramExecution(program, "rendezvous")
    assert (report.deadlock is None) == (not run.hung)
    if report.deadlock is None:
        return
    waits: nx.DiGraph[int] = nx.DiGraph(
        [(device, peer) for device, peers in run.waits.items() for peer in peers]
    )
    blocked = report.deadlock["blocked"]
    assert len(blocked) == min(map(len, nx.simple_cycles(waits)))
    assert set(blocked.values()) == set(report.violations[0].ops)
    for device, action in blocked.items():
        assert action in run.standing[int(device)]


def test_a_long_ring_is_one_cycle() -> None:
    """500 devices that all wait for the next stand in one cycle of 500 waits."""
    p = 500
    asked = Problem(
        devices=p,
        placement=explicit(p, [*range(p), 0]),
        microbatches=p,
        cost={"F": 1, "I": 1, "W": 1},
        backward="fused",
    )
    rows: list[tuple[Step, ...]] = [
        (Action(stage, ActionKind.SEND_F, p - 1 - stage), receive)
        for stage, receive in enumerate(
            [Action(p, ActionKind.RECV_F, 0)]
            + [Action(stage, ActionKind.RECV_F, p - stage) for stage in range(1, p)]
        )
    ]
    report = verify_program(Program(asked, tuple(rows)), transports=(Transport.RENDEZVOUS,))
    assert report.deadlock is not None
    assert len(report.deadlock["blocked"]) == p


# DualPipe, with the messages that its reference implementation exchanges.


class Orders(msgspec.Struct):
    """The file of orders."""

    orders: list["OrderOf"]


class OrderOf(msgspec.Struct):
    """What each device runs."""

    schedule: str
    p: int
    n: int
    ops: list[list[list[str | int | list[int]]]]


class Exchanges(msgspec.Struct):
    """The file of messages."""

    runs: list["Exchange"]


class Exchange(msgspec.Struct):
    """Where each device posts which messages."""

    schedule: str
    p: int
    n: int
    messages: list[list[list[str | int | list[list[str | int]]]]]


DATA = Path(__file__).parent / "data"


@cache
def exchanges() -> list[tuple[OrderOf, Exchange]]:
    """Return the runs of which the messages are known, with their orders."""
    orders = msgspec.json.decode((DATA / "dualpipe_orders.json").read_bytes(), type=Orders)
    runs = msgspec.json.decode((DATA / "dualpipe_messages.json").read_bytes(), type=Exchanges)
    by_size = {(each.schedule, each.p, each.n): each for each in orders.orders}
    return [(by_size[run.schedule, run.p, run.n], run) for run in runs.runs]


def reference_program(order: OrderOf, run: Exchange) -> Program:
    """Return the program that the reference runs, its groups as it posts them."""
    two_way = run.schedule == "dualpipe"
    problem = problem_of(run.p, run.n, "bidirectional" if two_way else "v", "free")

    def named(chain: object, microbatch: object, device: int) -> tuple[int, int]:
        assert isinstance(chain, int)
        assert isinstance(microbatch, int)
        stage = 2 * run.p - 1 - device if chain else device
        return stage, microbatch + (run.n // 2 if two_way and chain else 0)

    def block(op: list[str | int | list[int]], device: int) -> Block:
        if op[0] == "FB":
            forward, backward = op[1], op[2]
            assert isinstance(forward, list)
            assert isinstance(backward, list)
            s, m = named(forward[0], forward[1], device)
            t, k = named(backward[0], backward[1], device)
            return Pair(Op(s, OpKind.FORWARD, m), Op(t, OpKind.BACKWARD, k))
        stage, microbatch = named(op[1], op[2], device)
        return Op(stage, OpKind(str(op[0])), microbatch)

    rows: list[tuple[Step, ...]] = []
    for device, steps in enumerate(run.messages):
        row: list[Step] = []
        for what, value in steps:
            if isinstance(value, int):
                assert what == "op"
                row.append(block(order.ops[device][value], device))
                continue
            assert isinstance(value, list)
            messages: list[Action] = []
            for way, kind, chain, microbatch, _ in value:
                stage, m = named(chain, microbatch, device)
                messages.append(Action(stage, ActionKind(f"{way}_{kind}".upper()), m))
            row.append(Group(tuple(messages)))
        rows.append(tuple(row))
    return Program(problem, tuple(rows))


def sends_first(program: Program) -> Program:
    """Return the program with the sends of each group posted before its receives."""
    rows: list[tuple[Step, ...]] = []
    for row in program.rows:
        split: list[Step] = []
        for step in row:
            if not isinstance(step, Group):
                split.append(step)
                continue
            kinds = ActionKind.SEND_F, ActionKind.SEND_B
            for wanted in (True, False):
                part = tuple(m for m in step.messages if (m.kind in kinds) == wanted)
                if part:
                    split.append(Group(part))
        rows.append(tuple(split))
    return replace(program, rows=tuple(rows))


@pytest.mark.parametrize("index", range(41))
def test_dualpipe_needs_its_groups(index: int) -> None:
    """As grouped by the reference every transport ends; sends before receives hang."""
    order, run = exchanges()[index]
    program = reference_program(order, run)
    report = verify_program(program)
    assert report.violations == ()
    split = sends_first(program)
    if run.p > 1:
        assert "rendezvous" in hanging(split)
        assert rules(verify_program(split)) == ["deadlock"]
        assert "buffered" not in hanging(split)
    else:
        assert split == program


def test_the_peers_of_the_reference_are_the_neighbours() -> None:
    """Which device a message goes to follows from its stage alone, as the reference has it."""
    for order, run in exchanges():
        placement = reference_program(order, run).problem.placement
        for device, steps in enumerate(run.messages):
            for _, value in steps:
                if isinstance(value, list):
                    for way, kind, chain, _, peer in value:
                        stage = 2 * run.p - 1 - device if chain else device
                        forth = (way == "send") == (kind == "F")
                        table = placement.following if forth else placement.previous
                        other = table[stage]
                        assert other is not None
                        assert placement.device_of_stage[other] == peer


# The executor's opinion.


@pytest.mark.parametrize("first", range(0, 200, 25))
def test_the_executor_agrees(first: int) -> None:
    """Verdict, hangs under each transport and memory of random programs are those of a real run."""
    assert [disagreement(seed) for seed in range(first, first + 25)] == [""] * 25


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 21000, 1000))
def test_the_executor_agrees_on_thousands(first: int) -> None:
    """The same for 20,000 programs."""
    assert [disagreement(seed) for seed in range(first, first + 1000)] == [""] * 1000


def test_random_programs_are_of_all_sorts() -> None:
    """The slice above has valid programs, hangs under some transports, and every rule's faults."""
    broken: set[str] = set()
    valid, hung = 0, set[tuple[str, ...]]()
    for seed in range(200):
        program, _ = random_program(Random(seed))
        report = verify_program(program)
        broken |= set(rules(report))
        valid += report.valid
        hung.add(tuple(hanging(program)))
    assert 40 < valid < 160
    assert {(), ("rendezvous", "pair-fifo", "rank-fifo"), tuple(ALL)} <= hung
    assert broken >= {
        *("complete", "placement", "causal", "memory", "peer", "direction", "group", "matched"),
        *("order", "produced", "received", "weights", "deadlock"),
    }
