"""Two pipelines beside each other have the gradients of one process on the data of both.

Each of three steps is on fresh data, in float64, and two of them add up.
"""

from collections.abc import Iterator

import pytest
import training_data_parallel as pipelines
from processes import World, world

import bubbleproof as bp
from bubbleproof.runtime.rollback import Rollback
from bubbleproof.schedules import families
from bubbleproof.schedules.lower import lower
from bubbleproof.schedules.program import Action, ActionKind, Program
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.weights import Reduction

pytestmark = pytest.mark.slow

SCHEDULES = [
    ("one_f_one_b", "linear"),
    ("zb_h1", "linear"),
    ("zb_v", "v"),
    ("interleaved_1f1b", "loop:2"),
    ("dualpipe_v", "v"),
    ("dualpipe", "bidirectional"),
]


@pytest.fixture(scope="module")
def four() -> Iterator[World]:
    """Yield four processes, started once for all tests."""
    with world(pipelines.DEVICES * pipelines.PIPELINES) as processes:
        yield processes


def schedule_of(family: str, placement: str) -> Schedule:
    """Return a published schedule for two devices, in its own form."""
    problem = bp.Problem(
        devices=pipelines.DEVICES,
        placement=placement,
        microbatches=4,
        cost={"F": 1, "I": 1, "W": 1, "pair": 3},
        backward="free",
    )
    return families.build(family, problem)


@pytest.mark.parametrize("nested", [False, True], ids=["stages", "layers"])
@pytest.mark.parametrize(("family", "placement"), SCHEDULES)
def test_sharded_gradients_are_those_of_one_process(
    four: World, family: str, placement: str, nested: bool
) -> None:
    """Fused and split, with one, two or copied stages on a device, to 1e-12."""
    assert (
        max(four.results(pipelines.train_sharded, schedule_of(family, placement), nested, False))
        <= 1e-12
    )


def test_the_program_says_when_weights_are_let_go(four: World) -> None:
    """Not fully_shard, which lets them go behind each F: then an I would find them gone."""
    schedule = schedule_of("zb_h1", "linear")
    assert max(four.results(pipelines.train_sharded, schedule, True, True)) <= 1e-12


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("reduction", Reduction)
def test_sharded_gradients_do_not_depend_on_when_weights_are_handled(
    four: World, most: int, reduction: Reduction
) -> None:
    """However few stages are whole at a time, and wherever gradients are reduced."""
    program = lower(schedule_of("zb_v", "v"), most_unsharded=most, reduction=reduction)
    assert max(four.results(pipelines.train_sharded, program, False, False)) <= 1e-12


@pytest.mark.parametrize(("family", "placement"), SCHEDULES)
def test_averaged_gradients_are_those_of_one_process(
    four: World, family: str, placement: str
) -> None:
    """Also where the weights of the pipelines differ until they are loaded, to 1e-12."""
    assert max(four.results(pipelines.train_averaged, schedule_of(family, placement))) <= 1e-12


def test_a_reduction_goes_on_beside_the_tail(four: World) -> None:
    """A pipeline ends its ops and waits for the late one's gradients only then.

    On a V, the first of a device's two stages is reduced while the other has backwards to do.
    """
    schedule = schedule_of("zb_v", "v")
    outcomes = four.results(pipelines.train_beside_a_late_pipeline, schedule, 2.0)
    for rank, (op, last_op_ns, step_ns) in enumerate(outcomes):
        device, pipeline = divmod(rank, pipelines.PIPELINES)
        row = lower(schedule).rows[device]
        early = [step for step in row[: row.index(op)] if _is_reduction(step)]
        assert early
        if pipeline == 0:
            assert last_op_ns < 0 < step_ns


@pytest.mark.parametrize("sharded", [False, True], ids=["averaged", "sharded"])
def test_a_sum_of_losses_is_averaged_over_pipelines_only(four: World, sharded: bool) -> None:
    """Where losses are not scaled, gradients are so many times those of their mean."""
    schedule = schedule_of("dualpipe", "bidirectional")
    assert max(four.results(pipelines.train_on_sums, schedule, sharded)) <= 1e-12


@pytest.mark.parametrize("rollback", Rollback)
@pytest.mark.parametrize("sharded", [False, True], ids=["averaged", "sharded"])
def test_steps_are_post_validated_with_the_norm_of_all_pipelines(
    four: World, sharded: bool, rollback: Rollback
) -> None:
    """AdamW with steps kept and redone, to 1e-12 of one process."""
    schedule = schedule_of("zb_h2", "linear")
    assert max(four.results(pipelines.train_with_steps, schedule, sharded, rollback)) <= 1e-12


def test_a_program_without_reductions_is_refused(four: World) -> None:
    """With none at all, and with none for one stage: gradients would not be reduced, silently."""
    none = lower(schedule_of("zb_v", "v"), reduction=None)
    for told in four.results(pipelines.refused, none, "sharded"):
        assert "no stage has a REDUCE_GRAD" in told
    whole = lower(schedule_of("zb_v", "v"))
    rows = tuple(
        tuple(step for step in row if step != Action(3, ActionKind.REDUCE_GRAD))
        for row in whole.rows
    )
    for told in four.results(pipelines.refused, Program(whole.problem, rows), "sharded"):
        assert "never reduces the gradients of stage 3" in told


def test_what_would_reduce_twice_or_not_at_all_is_refused(four: World) -> None:
    """Sharded stages without UNSHARD or averaged as well, sharded layers alone, and torch's DDP."""
    schedule = schedule_of("zb_h1", "linear")
    assert four.results(pipelines.refused, schedule, "whole") == [""] * 4
    for told in four.results(pipelines.refused, lower(schedule, most_unsharded=None), "sharded"):
        assert "UNSHARD; lower it with most_unsharded" in told
    for told in four.results(pipelines.refused, schedule, "sharded"):
        assert "leave out average_gradients, or fully_shard" in told
    for told in four.results(pipelines.refused, schedule, "layers only"):
        assert "call fully_shard on the stage's module, too" in told
    for told in four.results(pipelines.refused, schedule, "ddp"):
        assert "call bubbleproof.runtime.average_gradients" in told


def _is_reduction(step: object) -> bool:
    return isinstance(step, Action) and step.kind is ActionKind.REDUCE_GRAD
