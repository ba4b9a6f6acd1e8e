"""Random problems that are small enough for brute force, of every kind that the solver takes."""

import random

from bubbleproof.schedules.problem import Problem

SHAPES: tuple[tuple[int, object, int, str], ...] = (
    (2, "linear", 2, "split"),
    (3, "linear", 1, "split"),
    (3, "linear", 2, "split"),
    (3, "linear", 2, "fused"),
    (2, "linear", 3, "fused"),
    (2, "v", 1, "split"),
    (1, "v", 2, "split"),
    (2, "v", 2, "fused"),
    (1, "bidirectional", 2, "split"),
    (2, "bidirectional", 1, "split"),
    (2, "bidirectional", 2, "split"),
    (2, "bidirectional", 2, "fused"),
    (2, "loop:2", 1, "split"),
    (2, "loop:2", 2, "fused"),
    (2, {"device_of_stage": [0, 1, 1]}, 1, "split"),
    (2, {"device_of_stage": [1, 0, 1]}, 2, "fused"),
    (2, {"device_of_stage": [0, 0, 1], "chains": [[1, 0], [2]]}, 2, "split"),
    (2, "linear", 1, "free"),
    (2, "linear", 2, "free"),
)
"""Devices, placement, microbatches, backward."""

PAIRED_SHAPES: tuple[tuple[int, object, int, str], ...] = (
    (2, "linear", 2, "fused"),
    (1, "v", 2, "fused"),
    (2, "bidirectional", 2, "fused"),
    (2, "linear", 2, "free"),
    (1, "bidirectional", 2, "free"),
)

MEMORIES: tuple[dict[str, object] | None, ...] = (
    None,
    {"F": 2, "I": -1, "W": -1, "limit": 2},
    {"F": 2, "I": -1, "W": -1, "limit": 4},
    {"F": 2, "I": -1, "W": -1, "limit": 5},
    {"F": 3, "I": 2, "W": -5, "limit": 5},
    {"F": 3, "I": 2, "W": -5, "limit": 9},
    {"F": 1, "I": 0, "W": -1, "static": 1, "limit": 3},
    {"F": 1, "I": -1, "limit": 1},
    {"F": 1, "I": -1, "limit": 2},
)


def tiny_problem(seed: int, *, pairs: bool = False) -> Problem:
    """Return a random problem; the same one for the same seed."""
    rng = random.Random(seed)
    devices, placement, microbatches, backward = rng.choice(PAIRED_SHAPES if pairs else SHAPES)
    stages = _stages(devices, placement)
    longest, uniform = rng.choice((2, 5, 10)), rng.random() < 0.4

    def times() -> int | list[int]:
        if uniform:
            return rng.randrange(longest)
        return [rng.randrange(longest) if rng.random() > 0.15 else 0 for _ in range(stages)]

    cost: dict[str, object] = {"F": times(), "I": times(), "W": times()}
    if backward != "split" and rng.random() < 0.5:
        cost["B"] = times()
    if pairs:
        cost["pair"] = [rng.randrange(1, 2 * longest) for _ in range(devices)]
    cost["transfer"] = rng.choice((0, 0, 1, 2))
    if rng.random() < 0.2:
        cost["transfer"] = [[rng.randrange(3) for _ in range(devices)] for _ in range(devices)]
    return Problem(
        devices=devices,
        placement=placement,  # pyright: ignore[reportArgumentType]
        microbatches=microbatches,
        cost=cost,
        memory=rng.choice(MEMORIES),
        backward=backward,
        objective=rng.choice(("makespan", "span")),
    )


def _stages(devices: int, placement: object) -> int:
    if isinstance(placement, dict):
        return 3
    return devices if placement == "linear" else 2 * devices
