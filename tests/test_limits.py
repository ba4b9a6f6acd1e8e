"""The least memory of a device against every order of one microbatch's ops."""

from bruteforce import least_objective
from hypothesis import example, given, settings
from hypothesis import strategies as st

import bubbleproof as bp
from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.memory import Memory
from bubbleproof.schedules.ops import OpKind
from bubbleproof.solver.limits import Remainder, alone, least_limit, least_peak, shortages

Changes = tuple[tuple[int, int], tuple[int, int]]


def least_of_every_order(memory: Memory, backward: Backward, stages: tuple[int, ...]) -> int:
    """Return the least peak by trying every order and every form of backward."""
    best = [10**9]

    def go(forwards: int, backwards: int, pending: frozenset[int], level: int, peak: int) -> None:
        if peak >= best[0]:
            return
        if backwards == len(stages) and not pending:
            best[0] = peak
            return
        choices: list[tuple[int, OpKind, tuple[int, int, frozenset[int]]]] = [
            (stage, OpKind.BACKWARD_WEIGHT, (forwards, backwards, pending - {stage}))
            for stage in sorted(pending)
        ]
        if forwards < len(stages):
            choices.append((stages[forwards], OpKind.FORWARD, (forwards + 1, backwards, pending)))
        elif backwards < len(stages):
            stage = stages[-1 - backwards]
            for kind in (OpKind.BACKWARD, OpKind.BACKWARD_INPUT):
                if backward.allows(kind):
                    left = pending if kind is OpKind.BACKWARD else pending | {stage}
                    choices.append((stage, kind, (forwards, backwards + 1, left)))
        for stage, kind, after in choices:
            allocate, free = memory.of(kind)[stage]
            go(*after, level + allocate - free, max(peak, level + allocate))

    go(0, 0, frozenset(), 0, 0)
    return best[0]


def balanced(amounts: list[int], more: int) -> list[list[int]]:
    """Return [allocate, free] of F, I and W: what the first two leave is freed by W."""
    forward, forward_free, both, input_free, weight = amounts
    kept = forward - min(forward, forward_free)
    pending = kept + both - min(kept + both, input_free)
    return [
        [forward, forward - kept],
        [both, kept + both - pending],
        [weight, weight + pending],
        [both + more, kept + both + more],
    ]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=1, max_size=3),
    st.sampled_from(list(Backward)),
    st.integers(0, 3),
)
@example([[1, 0, 0, 0, 0], [1, 0, 0, 0, 1]], Backward.FREE, 0)
def test_the_least_peak_is_that_of_the_best_order(
    stages: list[list[int]], backward: Backward, more: int
) -> None:
    """Exact for split, fused and free, with amounts that ops take only while they run."""
    changes = [balanced(amounts, more) for amounts in stages]
    words: dict[str, object] = {
        kind: [change[index] for change in changes]
        for index, kind in enumerate(("F", "I", "W", "B"))
    }
    problem = bp.Problem(
        devices=1,
        placement={"device_of_stage": [0] * len(stages)},
        microbatches=1,
        cost={"F": 1, "I": 1, "W": 1},
        memory=words,
        backward=backward,
    )
    held = tuple(range(len(stages)))
    exact = least_of_every_order(problem.memory, backward, held)
    assert least_peak(problem.memory, backward, Remainder.of(held)) == exact
    assert least_limit(problem, 0) == exact
    level = peak = 0
    for stage, kind in alone(problem, 0, 0):
        allocate, free = problem.memory.of(kind)[stage]
        peak = max(peak, level + allocate)
        level += allocate - free
    assert (peak, level) == (exact, 0)


def test_a_weight_op_may_run_behind_a_full_backward() -> None:
    """It waits for memory that the B of another stage frees; 2 units are enough for all."""
    problem = bp.Problem(
        devices=1,
        placement="loop:2",
        microbatches=1,
        cost={"F": 1, "I": 1, "W": 1},
        memory={"F": 1, "I": 0, "W": [[0, 1], [1, 2]], "limit": 2},
        backward="free",
    )
    result = bp.solve(problem, time_limit_s=5, workers=1)
    assert (result.objective, result.status) == (6, "optimal")


def test_static_memory_above_the_limit_of_an_idle_device_leaves_no_schedule() -> None:
    """A device whose chain has no microbatches holds its weights all the same."""
    problem = bp.Problem(
        devices=2,
        placement={"device_of_stage": [1, 0], "chains": [[1], [0]]},
        microbatches=[1, 0],
        cost={"F": 1, "I": 1, "W": 1},
        memory={"F": 1, "I": 0, "W": -1, "static": 1, "limit": [6, 0]},
    )
    assert [(each.device, each.least) for each in shortages(problem)] == [(1, 1)]
    assert least_objective(problem) is None
