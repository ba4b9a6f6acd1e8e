"""Any valid order trains as one process does, and what the verifier refuses trains otherwise."""

from collections.abc import Callable, Generator
from dataclasses import replace
from random import Random

import pytest
from family_plans import plans
from mutations import ON_PROGRAMS, ON_SCHEDULES
from processes import World, worlds
from strategies import any_order
from training import EXACT, assert_trains_alike, train

import bubbleproof as bp
from bubbleproof.runtime.load import runnable
from bubbleproof.schedules.lower import lower
from bubbleproof.schedules.ops import OpKind, ops_of
from bubbleproof.schedules.placement import Placement, explicit
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Program, parse_step
from bubbleproof.schedules.schedule import Schedule, parse_rows
from bubbleproof.verify.program_rules import verify_program

NAMED = ("linear", "loop:2", "v", "wave:2", "wave:3", "bidirectional")
BACKWARDS = ("split", "fused", "free")


@pytest.fixture(scope="module")
def world() -> Generator[Callable[[int], World]]:
    """Start the processes of each size once."""
    with worlds() as started:
        yield started


def uneven(devices: int, random: Random, *, chains: bool) -> Placement:
    """Return stages on devices as they fall, each device with one or more, in one or two chains."""
    extra = [random.randrange(devices) for _ in range(random.randint(1, 4))]
    device_of_stage = [*range(devices), *extra]
    random.shuffle(device_of_stage)
    if not chains:
        return explicit(devices, device_of_stage)
    order = list(range(len(device_of_stage)))
    random.shuffle(order)
    cut = random.randint(1, len(order) - 1)
    return explicit(devices, device_of_stage, [order[:cut], order[cut:]])


def random_problem(random: Random, devices: int, index: int) -> Problem:
    """Return a problem; placements and kinds of backwards take turns."""
    placements = (
        *NAMED,
        uneven(devices, random, chains=False),
        uneven(devices, random, chains=True),
    )
    backward = BACKWARDS[index % len(BACKWARDS)]
    cost: dict[str, object] = {"F": random.randint(1, 3), "transfer": random.randint(0, 1)}
    cost |= {"I": random.randint(1, 3), "W": random.randint(1, 3)}
    if backward != "split" and random.random() < 0.5:
        cost["pair"] = 5
    return Problem(
        devices=devices,
        placement=placements[index % len(placements)],
        microbatches=random.randint(1, 6),
        cost=cost,
        backward=backward,
    )


def is_fifo(schedule: Schedule) -> bool:
    """Whether each stage runs each kind of op in the order of microbatches."""
    last: dict[tuple[int, OpKind], int] = {}
    for row in schedule.rows:
        for op in (op for block in row for op in ops_of(block)):
            if op.microbatch < last.get((op.stage, op.kind), -1):
                return False
            last[op.stage, op.kind] = op.microbatch
    return True


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_any_valid_order_trains_as_one_process_does(
    world: Callable[[int], World], devices: int
) -> None:
    """Split, fused and mixed, on every placement; most of the orders are not first in first out."""
    random = Random(devices)
    turned = 0
    for index in range(16):
        schedule = any_order(random_problem(random, devices, index), random)
        turned += not is_fifo(schedule)
        assert_trains_alike(world(devices), schedule)
    assert turned >= 8


def solved(count: int, devices: int) -> list[Schedule]:
    """Return schedules that the solver finds for random problems."""
    random = Random(100 + devices)
    return [
        bp.solve(random_problem(random, devices, index), time_limit_s=0.5, seed=index).schedule
        for index in range(count)
    ]


def test_solved_schedules_train_as_one_process_does(world: Callable[[int], World]) -> None:
    """One problem of each placement."""
    for schedule in solved(8, 2):
        assert_trains_alike(world(2), schedule)


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "count"), [(2, 16), (3, 16), (4, 24)])
def test_many_solved_schedules_train_as_one_process_does(
    world: Callable[[int], World], devices: int, count: int
) -> None:
    """56 in all, split, fused and mixed, on every placement."""
    for schedule in solved(count, devices):
        assert_trains_alike(world(devices), schedule)


def test_a_program_with_its_own_messages_runs_as_it_is(world: Callable[[int], World]) -> None:
    """Groups are posted one message after the other."""
    problem = Problem(devices=4, microbatches=6, cost={"F": 1, "I": 1, "W": 1})
    program = lower(bp.families.zb_h1(problem), grouped=True)
    assert "{" in str(program)
    assert_trains_alike(world(4), program)


def exchanged(program: Program, device: int, one: str, other: str) -> Program:
    """Return a program with two steps of a device in each other's place."""
    words = list(map(str, program.rows[device]))
    at, to = words.index(one), words.index(other)
    words[at], words[to] = words[to], words[at]
    return with_row(program, device, words)


def without(program: Program, *steps: str) -> Program:
    """Return a program without some of its steps."""
    for device, row in enumerate(program.rows):
        program = with_row(program, device, [str(s) for s in row if str(s) not in steps])
    return program


def moved_ahead(program: Program, device: int, step: str, of: str) -> Program:
    """Return a program in which one step of a device stands ahead of another."""
    words = [str(each) for each in program.rows[device] if str(each) != step]
    words.insert(words.index(of), step)
    return with_row(program, device, words)


def with_row(program: Program, device: int, words: list[str]) -> Program:
    """Return a program with another row for a device."""
    rows = list(program.rows)
    rows[device] = tuple(map(parse_step, words))
    return replace(program, rows=tuple(rows))


def two_devices(placement: str, *rows: str, microbatches: int = 2) -> Program:
    """Return the program of a schedule that is written here."""
    problem = Problem(
        devices=2,
        placement=placement,
        microbatches=microbatches,
        cost={"F": 1, "B": 2},
        backward="fused",
    )
    return lower(Schedule(problem, parse_rows(rows)), grouped=False)


GPIPE = two_devices("linear", "0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1")
ON_A_V = two_devices("v", "0F0 0F1 3F0 3F1 3B0 3B1 0B0 0B1", "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1")
BOTH_WAYS = two_devices("bidirectional", "0F0 3F1 3B1 0B0", "2F1 1F0 1B0 2B1")
BOTH_WAYS_LATE = two_devices(
    "bidirectional",
    "0F0 0F1 3F2 3B2 3F3 3B3 0B0 0B1",
    "2F2 2F3 1F0 1B0 1F1 1B1 2B2 2B3",
    microbatches=4,
)

SILENT = {
    "receives of activations exchanged": moved_ahead(GPIPE, 1, "1RECV_F1", "1RECV_F0"),
    "sends of activations exchanged": moved_ahead(
        moved_ahead(GPIPE, 0, "0F1", "0F0"), 0, "0SEND_F1", "0SEND_F0"
    ),
    "receives of gradients exchanged": moved_ahead(GPIPE, 0, "0RECV_B1", "0RECV_B0"),
    "a backward that is missing on one device": without(GPIPE, "0B1", "1SEND_B1", "0RECV_B1"),
    "a microbatch that is missing on all": without(
        GPIPE, "0F1", "0SEND_F1", "1RECV_F1", "1F1", "1B1", "1SEND_B1", "0RECV_B1", "0B1"
    ),
    "a forward ahead of its input on the same device": moved_ahead(ON_A_V, 1, "2F1", "1F1"),
    "a backward ahead of its gradient on the same device": moved_ahead(ON_A_V, 1, "1B1", "2B1"),
    "an activation and a gradient for one neighbour exchanged": exchanged(
        BOTH_WAYS_LATE, 1, "1RECV_F1", "2RECV_B2"
    ),
    "copies reduced in two orders": exchanged(BOTH_WAYS, 1, "1REDUCE_GRAD", "2REDUCE_GRAD"),
    "copies that are never reduced": without(
        BOTH_WAYS, "0REDUCE_GRAD", "3REDUCE_GRAD", "1REDUCE_GRAD", "2REDUCE_GRAD"
    ),
}
"""Ten programs that run to their end without an error, and train something else."""


@pytest.mark.parametrize("fault", SILENT)
def test_what_is_refused_would_have_trained_wrongly_without_an_error(
    world: Callable[[int], World], fault: str
) -> None:
    """Run all the same: no error, but losses or gradients that are not those of one process."""
    program = SILENT[fault]
    with pytest.raises(ValueError, match=r"rule \w+ is broken|no stage has a REDUCE_GRAD"):
        runnable(program)
    outcomes = world(2).results(train, program, checked=False)
    assert not all(each.loss_error <= EXACT and each.gradient_error <= EXACT for each in outcomes)


@pytest.mark.parametrize("program", [GPIPE, ON_A_V, BOTH_WAYS, BOTH_WAYS_LATE])
def test_the_programs_that_faults_are_put_into_train_rightly(
    world: Callable[[int], World], program: Program
) -> None:
    """The fault alone makes the difference."""
    assert_trains_alike(world(2), program)


OPERATORS = {**ON_SCHEDULES, **ON_PROGRAMS}


@pytest.mark.parametrize("name", OPERATORS)
def test_what_the_verifier_refuses_is_not_run(name: str) -> None:
    """Each change of the mutation tests, in schedules and programs one way and both ways."""
    random = Random(name)
    for plan in (*plans("zb_v", ((2, 4),)), *plans("dualpipe", ((2, 6),))):
        for _ in range(4):
            mutant = OPERATORS[name].mutant(name, plan, random)
            if mutant is None or is_valid(mutant):
                continue
            with pytest.raises(ValueError, match=r"rule \w+ is broken: "):
                runnable(mutant)


def is_valid(plan: Schedule | Program) -> bool:
    """Whether the verifier passes a schedule or program."""
    return (verify_program(plan) if isinstance(plan, Program) else bp.verify(plan)).valid
