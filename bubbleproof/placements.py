"""One model on every placement, side by side: time, idle time, memory, weights and messages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bubbleproof.answers import Json
from bubbleproof.report import SOLVE, percent
from bubbleproof.schedules import families
from bubbleproof.schedules.problem import Problem
from bubbleproof.solver.comparison import Candidate, compare_families
from bubbleproof.solver.recut import PLACEMENTS, messages, recut
from bubbleproof.solver.result import NoScheduleError
from bubbleproof.steps import FINE, INTERRUPTED, NO, put, put_json, search, usable

BASIS = (
    "Basis: the same devices, model, microbatches and memory limits. A chain passes the whole "
    "model, each stage an equal share of it; a transfer and a device's limit stay as they are. "
    "Idle and peak are of the worst device; over is above the limit. Weights and messages are the "
    "same for all schedules of a placement."
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A schedule on a placement.

    Parameters
    ----------
    placement
        Its name.
    candidate
        The schedule with its times.
    bound_ticks
        What no schedule on this placement is faster than, where the solver ran; else None.
    """

    placement: str
    candidate: Candidate
    bound_ticks: int | None = None

    @property
    def problem(self) -> Problem:
        """The model as it is cut for the placement."""
        return self.candidate.timeline.schedule.problem

    @property
    def idle(self) -> tuple[float, ...]:
        """For each device its idle time within the makespan."""
        return tuple(self.problem.time(b.total) for b in self.candidate.timeline.bubbles)

    @property
    def objective(self) -> float:
        """Makespan or span, as the problem asks."""
        return self.problem.time(self.candidate.objective_ticks)


def compare_placements(
    problem: Problem, *, time_limit: float, workers: int | None, seed: int, as_json: bool
) -> int:
    """Show all families and the solver on every placement; return the exit status."""
    with usable():
        cuts = [(words, recut(problem, words)) for words in PLACEMENTS]
    entries: list[Entry] = []
    refused: list[tuple[str, str]] = []
    missing: dict[str, str] = {}
    interrupted = False
    for words, cut in cuts:
        comparison = compare_families(cut)
        entries += [Entry(words, candidate) for candidate in comparison.candidates]
        missing |= {
            name: reason
            for name, reason in comparison.refused
            if _same_kind(families.describe(name).placement, words)
        }
        if interrupted:
            continue
        try:
            result = search(
                cut, None, time_limit=time_limit / len(cuts), workers=workers, seed=seed
            )
        except NoScheduleError as error:
            refused.append((f"{SOLVE} on {words}", str(error)))
            continue
        interrupted = result.interrupted
        entries.append(Entry(words, Candidate(SOLVE, result.timeline), result.bound_ticks))
    entries.sort(key=lambda entry: (not entry.candidate.fits, entry.objective))
    refused += sorted(missing.items())
    if as_json:
        put_json(_answer(problem, entries, refused))
    else:
        put(_table(problem, entries, refused))
    if interrupted:
        return INTERRUPTED
    return FINE if any(entry.candidate.name == SOLVE for entry in entries) else NO


def _table(
    problem: Problem, entries: Sequence[Entry], refused: Sequence[tuple[str, str]]
) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for title in ("schedule", "placement"):
        table.add_column(title, min_width=13)
    for title in (problem.objective.value, "bound", "bubble", "idle", "peak"):
        table.add_column(title, justify="right", no_wrap=True)
    for entry in entries:
        candidate, timeline = entry.candidate, entry.candidate.timeline
        bound = entry.bound_ticks
        table.add_row(
            candidate.name,
            entry.placement,
            _number(entry.objective),
            "" if bound is None else _number(entry.problem.time(bound)),
            percent(timeline.bubble_ratio),
            _number(max(entry.idle)),
            _number(max(timeline.peak_memory)) + ("" if candidate.fits else " over"),
            style="" if candidate.fits else "dim",
        )
    parts: list[RenderableType] = [
        Text(problem.name, style="bold"),
        table,
        "",
        _resources(entries),
        "",
        Text(BASIS),
    ]
    if refused:
        parts += ["", Text("does not apply", style="bold")]
        parts += [Padding(Text(reason), (0, 0, 0, 2)) for reason in _reasons(refused)]
    return Group(*parts)


def _resources(entries: Sequence[Entry]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("placement", min_width=13)
    for title in ("stages", "weights", "messages"):
        table.add_column(title, justify="right")
    for placement, entry in {entry.placement: entry for entry in entries}.items():
        problem = entry.problem
        copies = f"{entry.candidate.weight_copies}x"
        table.add_row(placement, str(problem.stages), copies, str(messages(problem)))
    return table


def _same_kind(placement: str, other: str) -> bool:
    return placement.partition(":")[0] == other.partition(":")[0]


def _reasons(refused: Sequence[tuple[str, str]]) -> Iterator[str]:
    for name, reason in refused:
        yield reason if reason.startswith(name) else f"{name}: {reason}"


def _number(value: float) -> str:
    return f"{value:g}" if value == round(value, 3) else f"{value:.3f}"


def _answer(problem: Problem, entries: Sequence[Entry], refused: Sequence[tuple[str, str]]) -> Json:
    return {
        "problem": problem.name,
        "minimized": problem.objective.value,
        "basis": BASIS,
        "candidates": [_entry(entry) for entry in entries],
        "refused": [{"name": name, "reason": reason} for name, reason in refused],
    }


def _entry(entry: Entry) -> Json:
    candidate, bound = entry.candidate, entry.bound_ticks
    return {
        "name": candidate.name,
        "placement": entry.placement,
        "objective": entry.objective,
        "bound": None if bound is None else entry.problem.time(bound),
        "bubble_ratio": candidate.timeline.bubble_ratio,
        "idle": entry.idle,
        "peak_memory": candidate.timeline.peak_memory,
        "fits": candidate.fits,
        "weight_copies": candidate.weight_copies,
        "messages": messages(entry.problem),
    }
