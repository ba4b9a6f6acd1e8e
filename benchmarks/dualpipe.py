"""DualPipe against the solver, at DualPipe's own placement and memory.

    python benchmarks/dualpipe.py [--time-limit S] [--random N]

prints, in Markdown, for the published cases the makespan of DualPipe, of the solver and its bound,
which holds for all orders, symmetric or not; then DualPipe and the solver on random times: how
often the solver is above (never), equal and below.

Memory is p + 1 activations on every device, what DualPipe takes; a pair is one block.
"""

import argparse
import random
from datetime import date

import bubbleproof as bp

CASES = (
    (4, 8, (1, 2, 1, 3)),
    (4, 8, (1, 2, 1, 2)),
    (4, 8, (4, 8, 4, 10)),
    (4, 8, (5, 8, 2, 8)),
    (8, 16, (1, 2, 1, 2)),
    (8, 16, (4, 8, 4, 10)),
    (8, 16, (5, 8, 2, 8)),
    (8, 20, (1, 2, 1, 2)),
    (8, 20, (5, 8, 2, 8)),
    (16, 64, (100, 169, 39, 167)),
)
"""Devices, microbatches, and F, B, W and FB; the last is DeepSeek-V3's profile."""


def problem(devices: int, microbatches: int, times: tuple[int, int, int, int]) -> bp.Problem:
    """Return DualPipe's problem."""
    forward, backward, weight, pair = times
    return bp.Problem(
        devices=devices,
        placement="bidirectional",
        microbatches=microbatches,
        cost={"F": forward, "I": backward - weight, "W": weight, "pair": pair},
        memory={"F": 1, "W": -1, "limit": devices + 1},
        backward="free",
    )


def published(time_limit_s: float) -> None:
    """Print a row for each published case."""
    print("| p | n | F, B, W, FB | DualPipe | solve | bound | gap % | s |")
    print("|---|---|---|---|---|---|---|---|")
    for devices, microbatches, times in CASES:
        asked = problem(devices, microbatches, times)
        theirs = bp.simulate(bp.families.dualpipe(asked)).makespan
        result = bp.solve(asked, time_limit_s=time_limit_s)
        if not bp.verify(result.schedule).valid:
            raise AssertionError(f"{times} on {devices} devices: the answer does not verify")
        print(
            f"| {devices} | {microbatches} | {', '.join(map(str, times))} | {theirs} "
            f"| {result.objective} | {result.bound} | {100 * result.gap:.1f} "
            f"| {result.seconds:.0f} |",
            flush=True,
        )


def at_random(sets: int) -> None:
    """Print how the solver's first second compares on random times."""
    numbers = random.Random(0)
    print("| p | n | sets | above DualPipe | equal | below | mean gain % | most % |")
    print("|---|---|---|---|---|---|---|---|")
    for devices in (4, 8, 16):
        gains: list[float] = []
        for _ in range(sets):
            forward, inputs, weights = (numbers.randint(1, 20) for _ in range(3))
            least = max(forward, inputs + weights)
            pair = numbers.randint(least, forward + inputs + weights)
            asked = problem(devices, 2 * devices, (forward, inputs + weights, weights, pair))
            theirs = bp.simulate(bp.families.dualpipe(asked)).makespan
            result = bp.solve(asked, time_limit_s=0.2)
            gains.append(100 * (1 - result.objective / theirs))
        above, below = sum(gain < 0 for gain in gains), sum(gain > 0 for gain in gains)
        print(
            f"| {devices} | {2 * devices} | {sets} | {above} | {sets - above - below} | {below} "
            f"| {sum(gains) / sets:.1f} | {max(gains):.1f} |",
            flush=True,
        )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time-limit", type=float, default=120.0)
    parser.add_argument("--random", type=int, default=200)
    options = parser.parse_args()
    print(f"{date.today():%d %B %Y}\n")
    if options.time_limit:
        published(options.time_limit)
    if options.random:
        print()
        at_random(options.random)


if __name__ == "__main__":
    main()
