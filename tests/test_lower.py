"""Lowering: messages that no transport blocks, each where it should be, and steps on weights."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import any_order, problems, schedules
from transport_model import SENDS, TRANSPORTS, Model, faults

from bubbleproof.schedules import families
from bubbleproof.schedules.lower import lower
from bubbleproof.schedules.ops import Op, OpKind, Pair, ops_of
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Action, ActionKind, Group, Program, Step, parse_step
from bubbleproof.schedules.schedule import Schedule, parse_rows
from bubbleproof.schedules.simulate import DeadlockError
from bubbleproof.schedules.torch_comms import ungrouped
from bubbleproof.schedules.weights import Reduction
from bubbleproof.verify.program_rules import verify_program

COST = {"F": 1, "I": 1, "W": 1, "B": 2}
PLACEMENTS = ("linear", "loop:2", "v", "wave:4", "bidirectional")


def program(problem: Problem, *rows: str) -> Program:
    """Read a program from a text for each device; messages in braces are a group."""
    read: list[tuple[Step, ...]] = []
    for row in rows:
        joined = row.replace("{", " {").split(" ")
        steps: list[str] = []
        for text in filter(None, joined):
            if steps and steps[-1].startswith("{") and not steps[-1].endswith("}"):
                steps[-1] += f" {text}"
            else:
                steps.append(text)
        read.append(tuple(map(parse_step, steps)))
    return Program(problem, tuple(read))


def flat(row: Sequence[Step]) -> Iterator[Op | Pair | Action]:
    """Yield steps with the messages of groups one after the other."""
    for step in row:
        if isinstance(step, Group):
            yield from step.messages
        else:
            yield step


def of_kind(row: Sequence[Step], *kinds: ActionKind) -> list[Action]:
    """Return the actions of some kinds in order."""
    return [step for step in flat(row) if isinstance(step, Action) and step.kind in kinds]


def family_schedules() -> Iterator[tuple[str, Schedule]]:
    """Yield every family on every placement that it takes, for some sizes."""
    for name in families.names():
        for placement in PLACEMENTS:
            for devices, n in ((2, 2), (2, 8), (3, 6), (4, 4), (4, 10)):
                problem = Problem(
                    devices=devices,
                    placement=placement,
                    microbatches=n,
                    cost={"F": 10, "I": 12, "W": 8, "B": 20, "pair": 25, "transfer": 1},
                    backward="free",
                )
                try:
                    yield name, families.build(name, problem)
                except ValueError:
                    continue


FAMILY_SCHEDULES = tuple(family_schedules())


@pytest.mark.parametrize("grouped", [True, False])
@given(schedule=schedules(max_devices=4))
@settings(max_examples=60)
def test_every_program_ends_under_every_transport(schedule: Schedule, grouped: bool) -> None:
    """The theorem: any valid order on any placement, with times or without, is lowered safely."""
    assert faults(lower(schedule, grouped=grouped)) == {}


@given(problem=problems(max_devices=4), seed=st.integers(0, 999))
@settings(max_examples=40)
def test_senseless_starts_cost_no_safety(problem: Problem, seed: int) -> None:
    """The times choose among safe lines; no times lead out of them."""
    random = Random(seed)
    schedule = any_order(problem, random)
    starts = tuple(tuple(random.randint(-9, 9) for _ in row) for row in schedule.rows)
    assert faults(lower(replace(schedule, starts=starts))) == {}


def test_every_family_ends_under_every_transport() -> None:
    """All families, on unequal times with transfers."""
    assert {name for name, _ in FAMILY_SCHEDULES} == set(families.names())
    for name, schedule in FAMILY_SCHEDULES:
        assert faults(lower(schedule)) == {}, name


@given(schedule=schedules(max_devices=4), reduction=st.sampled_from(Reduction))
@settings(max_examples=60)
def test_the_verifier_finds_nothing_in_a_lowered_program(
    schedule: Schedule, reduction: Reduction
) -> None:
    """Neither in its messages under any transport nor in its steps on weights."""
    report = verify_program(lower(schedule, reduction=reduction))
    assert (report.violations, report.warnings, report.deadlock) == ((), (), None)


@given(schedule=schedules(max_devices=4))
@settings(max_examples=60)
def test_rows_keep_their_order_and_each_input_from_elsewhere_has_one_message(
    schedule: Schedule,
) -> None:
    """Messages are for the dependencies between devices, each once at each end, and no others."""
    lowered = lower(schedule, most_unsharded=None, reduction=None)
    placement = schedule.problem.placement
    device_of = placement.device_of_stage
    expected: list[list[str]] = [[] for _ in lowered.rows]
    for row in schedule.rows:
        for op in (op for block in row for op in ops_of(block)):
            if op.kind is OpKind.BACKWARD_WEIGHT:
                continue
            forward = op.kind is OpKind.FORWARD
            source = (placement.previous if forward else placement.following)[op.stage]
            if source is None or device_of[source] == device_of[op.stage]:
                continue
            letter = "F" if forward else "B"
            expected[device_of[source]].append(f"{source}SEND_{letter}{op.microbatch}")
            expected[device_of[op.stage]].append(f"{op.stage}RECV_{letter}{op.microbatch}")
    for device, row in enumerate(lowered.rows):
        blocks = tuple(step for step in row if isinstance(step, Op | Pair))
        assert blocks == schedule.rows[device]
        messages = [str(step) for step in flat(row) if isinstance(step, Action)]
        assert sorted(messages) == sorted(expected[device])


@given(schedule=schedules(timed=True, max_devices=4))
@settings(max_examples=60)
def test_no_ready_message_waits_for_another_or_for_the_device(schedule: Schedule) -> None:
    """When the times hold: messages in the order in which they are ready, receives in time.

    A SEND is directly behind the block that makes its data. A RECV is behind all that its device
    has done by the time when the data is made, and before what the device then does.
    """
    starts, problem = schedule.starts, schedule.problem
    assert starts is not None
    end_of: dict[tuple[int, str, int], int] = {}
    for row, each in zip(schedule.rows, starts, strict=True):
        for block, start in zip(row, each, strict=True):
            for op in ops_of(block):
                letter = "F" if op.kind is OpKind.FORWARD else "B"
                if op.kind is not OpKind.BACKWARD_WEIGHT:
                    end_of[op.stage, letter, op.microbatch] = start + problem.duration(block)

    def ready(message: Action) -> int:
        letter = message.kind.value[-1]
        stage: int | None = message.stage
        if message.kind is ActionKind.RECV_F:
            stage = problem.placement.previous[message.stage]
        elif message.kind is ActionKind.RECV_B:
            stage = problem.placement.following[message.stage]
        assert stage is not None
        assert message.microbatch is not None
        return end_of[stage, letter, message.microbatch]

    for device, row in enumerate(lower(schedule, most_unsharded=None, reduction=None).rows):
        latest = before = None
        receiving: list[Action] = []
        position = 0
        for step in flat(row):
            if isinstance(step, Action):
                assert latest is None or latest <= ready(step)
                latest = ready(step)
                assert before is None or before <= ready(step)
                if step.kind in SENDS:
                    assert before == ready(step)
                else:
                    receiving.append(step)
                continue
            ticks = problem.duration(step)
            end = starts[device][position] + ticks
            assert not ticks or all(ready(message) < end for message in receiving)
            before, position = end, position + 1
            receiving = []


def test_a_message_is_received_before_the_block_that_runs_when_it_is_ready() -> None:
    """Not earlier, in front of sends that are ready; not later, behind what takes the device."""
    problem = Problem(
        devices=2, microbatches=2, cost={"F": [10, 12], "B": [20, 24]}, backward="fused"
    )
    schedule = Schedule(problem, parse_rows(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]))
    assert str(lower(schedule, most_unsharded=None, reduction=None)) == (
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1\n"
        "1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1"
    )


def test_stages_on_one_device_send_nothing() -> None:
    """A V turns on the last device: no message between stages 1 and 2 (pytorch#128976)."""
    problem = Problem(devices=2, placement="v", microbatches=1, cost=COST, backward="fused")
    rows = parse_rows(["0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"])
    lowered = lower(Schedule(problem, rows), most_unsharded=None, reduction=None)
    assert str(lowered) == (
        "0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 0RECV_B0 0B0\n"
        "1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2B0 1B0 1SEND_B0"
    )


def test_1f1b_hangs_as_written_by_hand_and_not_as_lowered() -> None:
    """Two sends that face each other need a group or another order (PiPPy#1088)."""
    problem = Problem(devices=2, microbatches=2, cost=COST, backward="fused")
    facing = program(
        problem,
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1",
    )
    assert Model(facing, "rendezvous").faults == [
        "device 0 hangs at 0SEND_F1",
        "device 1 hangs at 1SEND_B0",
    ]
    grouped = program(
        problem,
        "0F0 0SEND_F0 0F1 {0SEND_F1 0RECV_B0} 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1B0 {1SEND_B0 1RECV_F1} 1F1 1B1 1SEND_B1",
    )
    assert Model(grouped, "rendezvous").faults == []
    assert faults(lower(families.one_f_one_b(problem))) == {}


def test_swapped_receives_are_noticed_by_the_model() -> None:
    """Under each transport data goes where the order says, whatever it is (Megatron-LM#1451)."""
    problem = Problem(devices=2, microbatches=2, cost=COST, backward="fused")
    swapped = program(
        problem,
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F1 1RECV_F0 1F0 1F1 1B0 1SEND_B0 1B1 1SEND_B1",
    )
    found = faults(swapped)
    assert set(found) == set(TRANSPORTS)
    assert all("takes ('F', 1, 0) for ('F', 1, 1)" in each[0] for each in found.values())


@given(schedule=schedules(max_devices=4))
@settings(max_examples=40)
def test_groups_are_exchanges_and_change_no_order(schedule: Schedule) -> None:
    """Written out they are the program without groups; each is of two devices, both ways."""
    lowered = lower(schedule)
    assert ungrouped(lowered) == lower(schedule, grouped=False)
    for row in lowered.rows:
        for group in (step for step in row if isinstance(step, Group)):
            ways = {message.kind in SENDS for message in group.messages}
            assert ways == {True, False}


def test_both_directions_of_one_instant_travel_together() -> None:
    """DualPipe's two chains meet: what devices exchange at once is a group on both."""
    problem = Problem(
        devices=2,
        placement="bidirectional",
        microbatches=4,
        cost={**COST, "pair": 3},
        backward="free",
    )
    rows = lower(families.dualpipe(problem)).rows
    assert str(rows[0][3]) == "{0SEND_F0 3RECV_F2}"
    assert str(rows[1][3]) == "{1RECV_F0 2SEND_F2}"


def test_at_most_three_stages_are_unsharded_at_a_time() -> None:
    """Each before its first use, and never more than asked for (pytorch#164756)."""
    problem = Problem(devices=2, placement="loop:8", microbatches=4, cost=COST, backward="fused")
    schedule = families.interleaved_1f1b(problem)
    for most in (1, 2, 3, 5):
        for row in lower(schedule, most_unsharded=most).rows:
            held: set[int] = set()
            peak = 0
            for step in flat(row):
                if isinstance(step, Op | Pair):
                    assert {op.stage for op in ops_of(step)} <= held
                elif step.kind is ActionKind.UNSHARD:
                    assert step.stage not in held
                    held.add(step.stage)
                elif step.kind is ActionKind.RESHARD:
                    held.remove(step.stage)
                peak = max(peak, len(held))
            assert (peak, held) == (most, set())


def test_what_is_used_next_stays_and_what_is_not_goes_first() -> None:
    """The lookahead: the block's own stage and the next ones to be used."""
    problem = Problem(devices=1, placement="loop:4", microbatches=1, cost=COST, backward="fused")
    schedule = Schedule(problem, parse_rows(["0F0 1F0 2F0 3F0 3B0 2B0 1B0 0B0"]))
    lowered = lower(schedule, most_unsharded=2, reduction=None)
    assert str(lowered) == (
        "0UNSHARD 1UNSHARD 0F0 0RESHARD 2UNSHARD 1F0 1RESHARD 3UNSHARD 2F0 3F0 3B0 "
        "3RESHARD 1UNSHARD 2B0 2RESHARD 0UNSHARD 1B0 1RESHARD 0B0 0RESHARD"
    )


def test_gradients_are_reduced_once_behind_the_last_backward() -> None:
    """For every family and stage (torchrec#4758); the sends of that backward do not wait."""
    for _, schedule in FAMILY_SCHEDULES:
        for device, row in enumerate(lower(schedule).rows):
            steps = list(flat(row))
            stages = schedule.problem.placement.stages_of_device[device]
            reduced = of_kind(row, ActionKind.REDUCE_GRAD)
            assert sorted(action.stage for action in reduced) == list(stages)
            for action in reduced:
                at = steps.index(action)
                assert not any(
                    op.stage == action.stage
                    for step in steps[at:]
                    if isinstance(step, Op | Pair)
                    for op in ops_of(step)
                    if op.kind is not OpKind.FORWARD
                )
                following = steps[at + 1] if at + 1 < len(steps) else None
                assert not (isinstance(following, Action) and following.kind in SENDS)


def test_the_place_of_reductions_is_a_choice() -> None:
    """In mid-step one stalls other chunks; at the end none does (pytorch#165106)."""
    problem = Problem(devices=1, placement="loop:2", microbatches=1, cost=COST, backward="fused")
    schedule = Schedule(problem, parse_rows(["0F0 1F0 1B0 0B0"]))
    assert [
        str(lower(schedule, most_unsharded=None, reduction=reduction))
        for reduction in (Reduction.STAGE, Reduction.END, None)
    ] == [
        "0F0 1F0 1B0 1REDUCE_GRAD 0B0 0REDUCE_GRAD",
        "0F0 1F0 1B0 0B0 1REDUCE_GRAD 0REDUCE_GRAD",
        "0F0 1F0 1B0 0B0",
    ]


@pytest.mark.parametrize("devices", [2, 4, 6])
def test_replicas_are_reduced_at_the_end_in_one_order_on_both_devices(devices: int) -> None:
    """Device r and p-1-r hold the same layers: with two orders each would wait for the other."""
    problem = Problem(
        devices=devices, placement="bidirectional", microbatches=4 * devices, cost=COST
    )
    rows = lower(families.chimera(problem)).rows
    layers = [
        [problem.placement.replica_of[a.stage] for a in of_kind(row, ActionKind.REDUCE_GRAD)]
        for row in rows
    ]
    for device, row in enumerate(rows):
        assert layers[device] == layers[devices - 1 - device] == sorted(layers[device])
        steps = list(flat(row))
        first = steps.index(of_kind(row, ActionKind.REDUCE_GRAD)[0])
        assert all(isinstance(s, Action) and not s.kind.is_message for s in steps[first:])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["0F0 0B0"], "1 rows for 2 devices; one for each can be lowered"),
        (["0F0 1B0", "1F0"], "device 0 runs 1B0, but stage 1 is on device 1"),
        (["0F0 2F0", "1F0"], r"device 0 runs 2F0, but the stages are 0\.\.1"),
        (["0F0 0F1", "1F0"], r"device 0 runs 0F1, but the microbatches of stage 0 are 0\.\.0"),
        (["0F0 0F0", "1F0"], "device 0 runs 0F0, a second forward of this microbatch"),
        (["0F0 0I0 0B0", "1F0 1B0"], "device 0 runs 0B0, a second backward of this microbatch"),
    ],
)
def test_rows_that_are_not_the_problems_are_refused(rows: list[str], message: str) -> None:
    """The device and the op are named, and what is right."""
    problem = Problem(devices=2, microbatches=1, cost=COST, backward="free")
    with pytest.raises(ValueError, match=message):
        lower(Schedule(problem, parse_rows(rows)))


def test_an_order_that_cannot_run_is_refused_with_who_waits_for_what() -> None:
    """No order of messages helps where the rows themselves have a cycle."""
    problem = Problem(devices=2, microbatches=1, cost=COST, backward="fused")
    schedule = Schedule(problem, parse_rows(["0B0 0F0", "1F0 1B0"]))
    with pytest.raises(
        DeadlockError,
        match="device 0 stands at 0B0 and waits for the forward of stage 0, microbatch 0; "
        "device 1 stands at 1F0 and waits for the forward of stage 0",
    ):
        lower(schedule)


def test_starts_that_do_not_fit_the_rows_are_refused() -> None:
    """One for each block."""
    problem = Problem(devices=1, microbatches=1, cost=COST, backward="fused")
    schedule = Schedule(problem, parse_rows(["0F0 0B0"]), starts=((0,),))
    with pytest.raises(ValueError, match="the starts do not fit the rows"):
        lower(schedule)


def test_too_few_unsharded_stages_are_refused() -> None:
    """None at all, or one where a pair uses two."""
    problem = Problem(
        devices=1, placement="loop:2", microbatches=2, cost={**COST, "pair": 3}, backward="fused"
    )
    pair = "0F0 1F0 (0F1;1B0)OVERLAP_F_B 1F1 1B1 0B0 0B1"
    schedule = Schedule(problem, parse_rows([pair]))
    with pytest.raises(ValueError, match="most_unsharded: 0 stages cannot run; give 1 or more"):
        lower(schedule, most_unsharded=0)
    with pytest.raises(ValueError, match=r"uses 2 stages at once, but at most 1 is unsharded"):
        lower(schedule, most_unsharded=1)
    assert faults(lower(schedule, most_unsharded=2)) == {}
