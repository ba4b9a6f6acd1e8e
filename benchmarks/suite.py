"""Solve the 120 problems of suite.json and hold the answers against a strong public scheduler's.

suite.json has for each problem the span that the strongest public scheduler reached (`peer`; null
where it crashed or refused), the one it reached when fed one uniform cost (`peer_uniform`), and a
valid lower bound that was known before (`bound`).

    python benchmarks/suite.py --time-limit 60 --workers 2 [part of an id ...]

prints a table row per problem, in Markdown, and a summary.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import bubbleproof as bp


@dataclass(frozen=True, slots=True)
class Entry:
    """One problem and what was known of it, in ticks."""

    name: str
    problem: bp.Problem
    peer: int | None
    bound: int


def entries(parts: list[str]) -> Iterator[Entry]:
    """Yield the problems whose id has all the parts."""
    suite = json.loads((Path(__file__).parent / "suite.json").read_text())
    for entry in suite["entries"]:
        if all(part in entry["id"] for part in parts):
            words = {key: value for key, value in entry["problem"].items() if key != "format"}
            peers = [peer for peer in (entry["peer"], entry["peer_uniform"]) if peer is not None]
            peer = min(peers) if peers else None
            yield Entry(entry["id"], bp.Problem(**words), peer, entry["bound"])


def main() -> None:
    """Print the table and the summary."""
    parser = argparse.ArgumentParser(description="Solve the problems of suite.json.")
    parser.add_argument("parts", nargs="*", help="only problems whose id has all of these")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    print("| problem | peer | span | bound | gap % | status | source | s |")
    print("|---|---|---|---|---|---|---|---|")
    gaps: list[float] = []
    worse: list[str] = []
    spans: dict[str, dict[float, int]] = {}
    better = optimal = 0
    for entry in entries(options.parts):
        result = bp.solve(entry.problem, time_limit_s=options.time_limit, workers=options.workers)
        report = bp.verify(result.schedule)
        if not report.valid:
            raise SystemExit(f"{entry.name}: invalid, {report.violations[0].message}")
        span, gap = result.objective_ticks, 100 * result.gap
        gaps.append(gap)
        kind, limit = entry.name.removesuffix("x").rsplit("-", 1)
        spans.setdefault(kind, {})[float(limit)] = span
        optimal += result.status == "optimal"
        if entry.peer is not None:
            better += span < entry.peer
            if span > entry.peer:
                worse.append(entry.name)
        peer = "-" if entry.peer is None else entry.peer
        print(
            f"| {entry.name} | {peer} | {span} | {result.bound_ticks} | {gap:.2f} "
            f"| {result.status} | {result.source.split(' (')[0]} | {result.seconds:.1f} |",
            flush=True,
        )
    if gaps:
        mean = sum(gaps) / len(gaps)
        print(
            f"\n{len(gaps)} problems: {optimal} proven optimal, mean gap {mean:.2f} %, largest "
            f"{max(gaps):.2f} %; below the peer {better}, above it {len(worse)} "
            f"({', '.join(worse) or 'none'}); with more memory a larger span: "
            f"{', '.join(_rising(spans)) or 'none'}"
        )


def _rising(spans: dict[str, dict[float, int]]) -> Iterator[str]:
    """Yield the problems whose span is larger than with less memory."""
    for kind, by_limit in spans.items():
        limits = sorted(by_limit)
        for less, more in pairwise(limits):
            if by_limit[more] > by_limit[less]:
                yield f"{kind}-{more}x"


if __name__ == "__main__":
    main()
