"""Solve problems made by rule, and say how far each is proven.

unequal: linear, F, I and W of every stage 10, 12 and 8 times a random factor within the spread, in
steps of a hundredth; a transfer takes 1; memory is a limit in microbatches of a stage, as a
multiple of the number of devices; the objective is the span. The same arguments give the same
problems.
large: the same with 16, 32 and 64 devices, stages equal and within a tenth.
small: up to 4 devices and 12 microbatches, every placement of two chunks per device, equal stages.

    python benchmarks/generated.py unequal --time-limit 60 --workers 2

prints a table row per problem, in Markdown, and a summary.
"""

import argparse
import random
from collections.abc import Iterator

import bubbleproof as bp

LIMITS = (1.0, 1.5, 2.5)
LARGE = ((16, 64), (32, 128), (64, 512))


def unequal(
    devices: int, microbatches: int, *, spread: float, limit: float, seed: int
) -> bp.Problem:
    """Return a linear problem with random costs within a spread."""
    rng = random.Random(f"{devices} {microbatches} {spread} {seed}")

    def costs(mean: int) -> list[float]:
        return [round(mean * rng.uniform(1 - spread, 1 + spread), 2) for _ in range(devices)]

    return bp.Problem(
        devices=devices,
        placement="linear",
        microbatches=microbatches,
        cost={"F": costs(10), "I": costs(12), "W": costs(8), "transfer": 1},
        memory={"F": 2, "I": -1, "W": -1, "limit": int(2 * limit * devices)},
        objective="span",
        name=f"p{devices}-n{microbatches}-{100 * spread:.0f}%-{limit}x-{seed}",
    )


def random_problems(devices: list[int], seeds: int) -> Iterator[bp.Problem]:
    """Yield the random problems."""
    for p in devices:
        for microbatches in (2 * p, 4 * p):
            for spread in (0.1, 0.3):
                for limit in LIMITS:
                    for seed in range(seeds):
                        yield unequal(p, microbatches, spread=spread, limit=limit, seed=seed)


def large_problems() -> Iterator[bp.Problem]:
    """Yield the large problems."""
    for devices, microbatches in LARGE:
        for spread in (0.0, 0.1):
            for limit in (1.0, 1.5, 2.0):
                yield unequal(devices, microbatches, spread=spread, limit=limit, seed=0)


def small_problems(devices: list[int]) -> Iterator[bp.Problem]:
    """Yield problems with two chunks per device that are to be proven."""
    for p in devices:
        for placement in ("v", "loop:2", "wave:2", "bidirectional"):
            for microbatches in (p, 2 * p, 3 * p):
                for limit in (0.75, 1.0, 1.5):
                    yield bp.Problem(
                        devices=p,
                        placement=placement,
                        microbatches=microbatches,
                        cost={"F": 10, "I": 12, "W": 8, "transfer": 1},
                        memory={"F": 2, "I": -1, "W": -1, "limit": max(4, int(4 * limit * p))},
                        objective="span",
                        name=f"p{p}-{placement}-n{microbatches}-{limit}x",
                    )


def main() -> None:
    """Print the table and the summary."""
    parser = argparse.ArgumentParser(description="Solve problems made by rule.")
    parser.add_argument("kind", choices=["unequal", "large", "small"])
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--devices", type=int, nargs="+")
    options = parser.parse_args()
    match options.kind:
        case "small":
            problems = small_problems(options.devices or [2, 3, 4])
        case "large":
            problems = large_problems()
        case _:
            problems = random_problems(options.devices or [4, 8, 16], options.seeds)
    print("| problem | span | bound | gap % | status | source | s |")
    print("|---|---|---|---|---|---|---|")
    gaps: list[float] = []
    optimal = 0
    for problem in problems:
        result = bp.solve(problem, time_limit_s=options.time_limit, workers=options.workers)
        report = bp.verify(result.schedule)
        if not report.valid:
            raise SystemExit(f"{problem.name}: invalid, {report.violations[0].message}")
        gaps.append(100 * result.gap)
        optimal += result.status == "optimal"
        print(
            f"| {problem.name} | {result.objective} | {result.bound} | {gaps[-1]:.2f} "
            f"| {result.status} | {result.source.split(' (')[0]} | {result.seconds:.1f} |",
            flush=True,
        )
    print(
        f"\n{len(gaps)} problems: {optimal} proven optimal, "
        f"mean gap {sum(gaps) / len(gaps):.2f} %, largest {max(gaps):.2f} %"
    )


if __name__ == "__main__":
    main()
