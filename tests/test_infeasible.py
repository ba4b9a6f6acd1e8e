"""A memory limit that no schedule keeps: proven from the problem alone."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bubbleproof as bp
from bubbleproof.solver import limits
from bubbleproof.verify.certificate import Standing
from bubbleproof.verify.infeasible import certify_infeasible, shortages


def problem_of(limit: int | None, placement: str = "v", **changes: object) -> bp.Problem:
    """Return several stages on one device; on a V a microbatch holds 6 at most."""
    memory: dict[str, object] = {"F": 3, "I": -1, "W": -2, "static": 0, "unit": "GiB"}
    return bp.Problem(
        devices=1,
        placement=placement,
        microbatches=2,
        cost={"F": 1, "I": 1, "W": 1},
        memory=memory | changes | {"limit": limit},
    )


@st.composite
def problems(draw: st.DrawFn) -> bp.Problem:
    """Draw a problem with several stages on a device and a limit near what it needs."""
    random = Random(draw(st.integers(0, 10**6)))
    placement = random.choice(["linear", "v", "loop:3", "wave:4", "bidirectional"])
    stages = {"linear": 2, "v": 4, "loop:3": 6, "wave:4": 8, "bidirectional": 4}[placement]
    backward = random.choice(["split", "fused", "free"])

    def balanced() -> tuple[list[int], list[int], list[int]]:
        forwards = [random.randint(0, 4) for _ in range(stages)]
        inputs = [random.randint(-held, 3) for held in forwards]
        weights = [-(f + i) for f, i in zip(forwards, inputs, strict=True)]
        return forwards, inputs, weights

    forwards, inputs, weights = balanced()
    return bp.Problem(
        devices=2,
        placement=placement,
        microbatches=random.choice([[1, 0], [2, 2]]) if placement == "bidirectional" else 2,
        cost={"F": 1, "I": 1, "W": 1},
        memory={
            "F": forwards,
            "I": inputs,
            "W": weights,
            "static": random.randint(0, 2),
            "limit": [random.randint(0, 16), random.choice([None, random.randint(0, 16)])],
        },
        backward=backward,
    )


@given(problem=problems())
@settings(max_examples=150, deadline=None)
def test_the_verifier_and_the_solver_find_the_same_devices_short(problem: bp.Problem) -> None:
    """One searches all orders of a microbatch, the other takes the best one by a rule."""
    assert [(each.device, each.limit, each.least) for each in shortages(problem)] == [
        (each.device, each.limit, each.least) for each in limits.shortages(problem)
    ]


@given(problem=problems())
@settings(max_examples=8, deadline=None)
def test_what_the_solver_calls_infeasible_is_confirmed(problem: bp.Problem) -> None:
    """With the device and the least limit that it names; else there is a schedule."""
    try:
        result = bp.solve(problem, time_limit_s=0.2, workers=1)
    except bp.NoScheduleError as error:
        claim = certify_infeasible(problem, error.device, error.least)
        assert claim.standing is Standing.CONFIRMED
    else:
        assert bp.verify(result.schedule).valid
        assert not shortages(problem)


@pytest.mark.parametrize(
    ("problem", "device", "least", "standing", "reason"),
    [
        (problem_of(5), 0, 6, Standing.CONFIRMED, "one microbatch alone needs 6 GiB on device 0"),
        (problem_of(6), 0, 6, Standing.REFUSED, "passes device 0 with 6 GiB, which is within"),
        (problem_of(5), 0, 7, Standing.REFUSED, "is given as 7 GiB, but recomputed it is 6 GiB"),
        (problem_of(None), 0, 6, Standing.REFUSED, "device 0 has no limit"),
        (problem_of(5), 1, 6, Standing.REFUSED, "there is no device 1; the devices are 0..0"),
        (
            problem_of(5, "loop:16", I=[60, *[0] * 15], W=[-63, *[-3] * 15]),
            0,
            63,
            Standing.WORD,
            "too many orders on device 0",
        ),
    ],
)
def test_a_claim_is_confirmed_refused_or_left_to_the_solver(
    problem: bp.Problem, device: int, least: int, standing: Standing, reason: str
) -> None:
    """From the problem alone, with the numbers."""
    claim = certify_infeasible(problem, device, least)
    assert claim.standing is standing
    assert reason in claim.reason
    assert bool(claim.violations) == (standing is Standing.REFUSED)
