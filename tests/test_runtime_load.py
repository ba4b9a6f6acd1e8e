# pyright: reportUnknownMemberType=false
# Torch leaves tolist untyped.
"""What load takes and refuses, and what a step takes and returns."""

from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from loading import (
    copies_after_load,
    gradient_error,
    listed,
    missing,
    other_shape,
    recorded,
    refusal,
    refusal_of_a_function,
    refusal_of_copies,
    train_beside,
    train_from,
    train_one_module_for_both,
    train_overlapped,
    train_tuples,
    without_gradients,
)
from processes import World, worlds
from strategies import any_order
from training import EXACT, Outcome, loss_of, stage_module

import bubbleproof as bp
from bubbleproof.runtime import load
from bubbleproof.runtime.microbatches import Inputs, arguments_of, keywords_of, targets_of
from bubbleproof.schedules.lower import lower
from bubbleproof.schedules.ops import Pair, ops_of
from bubbleproof.schedules.placement import explicit
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Program
from bubbleproof.schedules.schedule import Schedule, parse_rows
from bubbleproof.verify.program_rules import verify_program


@pytest.fixture(scope="module")
def world() -> Generator[Callable[[int], World]]:
    """Start the processes of each size once."""
    with worlds() as started:
        yield started


def problem(devices: int = 2, placement: str = "linear", microbatches: int = 4) -> Problem:
    """Return a problem for any family."""
    return Problem(
        devices=devices,
        placement=placement,
        microbatches=microbatches,
        cost={"F": 1, "I": 1, "W": 1, "pair": 3},
        backward="free",
    )


ONE_WAY = bp.families.zb_h1(problem())
BOTH_WAYS = bp.families.chimera(problem(placement="bidirectional"))


def exact(outcome: Outcome) -> bool:
    """Whether training came to what one process comes to."""
    return max(outcome.loss_error, outcome.gradient_error) <= EXACT


def test_a_schedule_that_breaks_a_rule_is_refused_on_all_with_the_verifiers_message(
    world: Callable[[int], World],
) -> None:
    """Nothing is built, no message is sent."""
    rows = (ONE_WAY.rows[0][::-1], ONE_WAY.rows[1])
    broken = replace(ONE_WAY, rows=rows)
    first = bp.verify(broken).violations[0]
    answers = world(2).results(refusal, {0: broken})
    assert answers[0] == answers[1]
    assert answers[0].startswith(f"rule {first.rule} is broken: {first.message}")


def test_a_program_whose_messages_deadlock_is_refused(world: Callable[[int], World]) -> None:
    """Device 1 posts what device 0 waits for behind all else: gloo would run it, NCCL might not."""
    program = lower(ONE_WAY, grouped=False)
    late = sorted(program.rows[1], key=lambda step: "SEND" in str(step))
    broken = replace(program, rows=(program.rows[0], tuple(late)))
    first = verify_program(broken).violations[0]
    answers = world(2).results(refusal, {0: broken})
    assert answers[0] == answers[1]
    assert answers[0].startswith(f"rule {first.rule} is broken: {first.message}")


IDLE = Schedule(
    Problem(
        devices=2,
        placement=explicit(2, [0]),
        microbatches=1,
        cost={"F": 1, "B": 1},
        backward="fused",
    ),
    parse_rows(["0F0 0B0", ""]),
)


@pytest.mark.parametrize(
    ("plans", "modules", "with_loss", "said"),
    [
        ({0: ONE_WAY}, {1: [0]}, True, "rank 1: stage_modules: rank 1 has stages 1, but was given"),
        ({0: bp.families.zb_h1(problem(4))}, None, True, "2 processes for a schedule of 4 devices"),
        ({0: ONE_WAY}, None, False, "rank 1: loss_fn: missing on rank 1, where a chain ends"),
        (
            {0: ONE_WAY, 1: bp.families.one_f_one_b(problem())},
            None,
            True,
            "rank 1 was given another schedule than rank 0; give all one",
        ),
        ({0: ONE_WAY, 1: "nowhere.json"}, None, True, "rank 1: nowhere.json: "),
        ({0: IDLE}, None, True, "device 1 has no stage, and a process without one has nothing"),
    ],
)
def test_what_cannot_run_is_refused_on_all_processes_alike(
    world: Callable[[int], World],
    plans: dict[int, Schedule | Program | str],
    modules: dict[int, list[int]] | None,
    with_loss: bool,
    said: str,
) -> None:
    """A process with the right arguments hears of the one with the wrong ones."""
    answers = world(2).results(refusal, plans, modules, with_loss)
    assert answers[0] == answers[1]
    assert answers[0].startswith(said)


def test_what_is_no_module_is_refused_on_all(world: Callable[[int], World]) -> None:
    """Rank 0 does not wait for rank 1, which has a function for its stage."""
    said = "rank 1: stage 1: a function is no torch.nn.Module; give one"
    assert world(2).results(refusal_of_a_function, ONE_WAY) == [said, said]


def test_copies_that_are_not_alike_are_refused_with_the_parameter(
    world: Callable[[int], World],
) -> None:
    """Stage 3 is a copy of stage 1."""
    answers = world(2).results(refusal_of_copies, BOTH_WAYS)
    assert (
        answers
        == [
            "stage 3 must hold a copy of stage 1's weights, but has 0.weight [5, 4] float64 where "
            "stage 1 has 0.weight [4, 4] float64; build both stages from the same layers"
        ]
        * 2
    )


def test_copies_start_equal_to_their_originals(world: Callable[[int], World]) -> None:
    """Whatever weights the copies had."""
    on_0, on_1 = world(2).results(copies_after_load, BOTH_WAYS)
    assert on_0[0] == on_1[2]
    assert on_1[1] == on_0[3]
    assert on_0[0] == [p.detach().flatten().tolist() for p in stage_module(0).parameters()]


def test_without_a_process_group_load_says_what_starts_one() -> None:
    """In a process of its own."""
    with pytest.raises(ValueError, match="no process group; start with torchrun"):
        load(ONE_WAY, [stage_module(0)], loss_fn=loss_of)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("name", ["schedule.json", "schedule.csv", "program.json", "program.csv"])
def test_a_file_is_loaded_by_all(
    world: Callable[[int], World], tmp_path: Path, name: str, in_order: bool
) -> None:
    """A schedule or a program, ours or torch's; modules by stage or in the order of stages."""
    schedule = bp.families.zb_v(problem(placement="v"))
    path = tmp_path / name
    bp.save(lower(schedule, grouped=False) if "program" in name else schedule, path)
    assert all(map(exact, world(2).results(train_from, str(path), in_order)))


def test_pipelines_run_beside_each_other(world: Callable[[int], World]) -> None:
    """Two of two processes each, with copies in both."""
    assert all(map(exact, world(4).results(train_beside, BOTH_WAYS)))


@pytest.mark.parametrize("devices", [1, 3])
def test_one_module_may_be_all_copies_of_a_device(
    world: Callable[[int], World], devices: int
) -> None:
    """The middle device of an odd number holds its layers twice, or once."""
    schedule = any_order(problem(devices, "bidirectional"), Random(0))
    assert all(map(exact, world(devices).results(train_one_module_for_both, schedule)))


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("schedule", [ONE_WAY, BOTH_WAYS])
def test_gradients_add_up_over_steps(
    world: Callable[[int], World], schedule: Schedule, mean: bool
) -> None:
    """Three steps, each scaled once; those of the mean over microbatches, or of their sum."""
    errors = world(2).results(gradient_error, schedule, 3, mean)
    assert max(errors) <= EXACT


def test_stages_exchange_tuples_of_any_tensors(world: Callable[[int], World]) -> None:
    """Of several shapes, whole numbers too; two inputs, a keyword, targets that are no tensors."""
    assert max(world(2).results(train_tuples, ONE_WAY)) <= EXACT


def test_a_recorder_is_told_of_each_op_in_the_order_of_the_row(
    world: Callable[[int], World],
) -> None:
    """A pair's halves run one after the other; no op begins before the one before it ends."""
    schedule = bp.families.dualpipe(problem(2, "bidirectional", 6))
    for row, told in zip(schedule.rows, world(2).results(recorded, schedule), strict=True):
        assert [each.op for each in told] == [op for block in row for op in ops_of(block)]
        instants = [at for each in told for at in (each.start_ns, each.end_ns)]
        assert instants == sorted(instants)


def test_pairs_are_run_by_the_function_that_is_given(world: Callable[[int], World]) -> None:
    """Each pair of the row by one call, with the same gradients."""
    for schedule in (
        bp.families.dualpipe(problem(2, "bidirectional", 6)),
        bp.families.dualpipe_v(problem(2, "v", 6)),
    ):
        pairs = [sum(isinstance(block, Pair) for block in row) for row in schedule.rows]
        answers = world(2).results(train_overlapped, schedule)
        assert all(exact(outcome) for outcome, _ in answers)
        assert [ran for _, ran in answers] == pairs
        assert min(pairs) > 0


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("inputs", "inputs: missing on rank 0, where a chain begins"),
        ("targets", "targets: missing on rank 1, where a chain ends"),
    ],
)
def test_a_step_says_what_it_needs_on_which_rank(what: str, said: str) -> None:
    """Other ranks do not look at it."""
    with worlds() as started:
        assert said in started(2).results(missing, ONE_WAY, what)


def test_a_step_of_another_shape_is_refused() -> None:
    """Torch would fill its buffers in part, without an error."""
    with worlds() as started:
        assert started(2).results(other_shape, ONE_WAY)[0] == (
            "inputs: microbatches of [1, 4] float64 after a first step with [2, 4] float64; "
            "keep one shape, or load another runtime for this one"
        )


def test_a_step_needs_gradients_enabled() -> None:
    """One process is refused as such, another may have heard of it first."""
    with worlds() as started:
        answers = started(2).run(without_gradients, ONE_WAY)
    said = "step under torch.no_grad(); its backwards need gradients enabled"
    assert said in answers
    assert all(said in str(answer) for answer in answers)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_that_returns_a_list_is_refused(stage: int) -> None:
    """As profile refuses it, before the user's loss fails on a list."""
    alone = bp.families.zb_v(problem(1, "v"))
    with worlds() as started:
        assert started(1).results(listed, alone, stage) == [
            f"stage {stage} returned a list; a tensor or a tuple of tensors can be handed on"
        ]


def test_a_batch_is_split_evenly_or_given_in_parts() -> None:
    """A tensor, several of them, or a list; keywords that are no tensors go to all."""
    whole = torch.arange(6).reshape(6, 1)
    assert [part.tolist() for (part,) in arguments_of(whole, 3)] == [
        [[0], [1]],
        [[2], [3]],
        [[4], [5]],
    ]
    both = arguments_of((whole, whole * 2), 2)
    assert [other.sum().item() for _, other in both] == [6, 24]
    assert arguments_of([whole, (whole,)], 2) == [(whole,), (whole,)]
    assert targets_of(["a", "b"], 2) == ["a", "b"]
    first, second = keywords_of({"mask": whole, "flag": True}, 2)
    assert (first["flag"], second["flag"]) == (True, True)
    assert isinstance(second["mask"], torch.Tensor)
    assert second["mask"].tolist() == [[3], [4], [5]]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (torch.zeros(5, 1), "inputs: 5 rows cannot be split into 2 equal microbatches; give a mul"),
        (torch.tensor(1.0), "inputs: 0 rows cannot be split into 2"),
        ((torch.zeros(4), torch.zeros(3)), r"inputs\[1\]: 3 rows cannot be split into 2"),
        ([torch.zeros(1)], "inputs: 1 microbatches for a schedule of 2"),
        (
            [torch.zeros(1), (torch.zeros(1), None)],
            r"inputs\[1\]: a tuple; a microbatch is a tensor",
        ),
        ([torch.zeros(1), torch.zeros(2)], r"inputs\[1\]: shapes \[\[2\]\] differ from those of"),
    ],
)
def test_a_batch_that_cannot_be_split_is_refused(inputs: Inputs, said: str) -> None:
    """With its size and what would be right."""
    with pytest.raises(ValueError, match=said):
        arguments_of(inputs, 2)
