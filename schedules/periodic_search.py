"""The repeating middle of a schedule: found, not declared.

A *window* is a stretch of a device's row in which every stage of the device runs ``step`` of its
microbatches: so many F's, so many backwards, and a W for each I. One window for each device, all
from about one time on, makes a periodic schedule: what is before is the prologue, what is behind
the epilogue. Where the window after each is the same again, ``step`` microbatches later, the
schedule has the kernel in itself already. Else any windows would be a schedule for more
microbatches, but few can run and stay within memory; of these the fastest is taken.

What is found is tried for a few numbers of repetitions; ``verify_every_n`` proves it for all.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TypeAlias

from bubbleproof.schedules.ops import OpKind, Row, ops_of
from bubbleproof.schedules.periodic import Periodic, moved, repeated
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.simulate import DeadlockError, earliest_starts, simulate

F, I, W, B = OpKind.FORWARD, OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT, OpKind.BACKWARD  # noqa: E741

MOST_CUTS = 24
"""How many times to cut at are tried for each step."""

MOST_KEPT = 8
"""How many repetitions are left in the prologue and epilogue at most so that it runs with none."""

TRIED = (0, 1, 2, 3, 8)
"""Repetitions that a found schedule has to run with."""

SLOW = (8, 16)
"""Repetitions between which the time of one is measured."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a row.

    Parameters
    ----------
    first, end
        Its first position and the one behind its last.
    repeats
        Whether the same follows, a step later.
    """

    first: int
    end: int
    repeats: bool


Cut: TypeAlias = tuple[Window, ...]
"""A window for each device."""


def periodic_of(
    schedule: Schedule, *, most_step: int | None = None, deadline: float | None = None
) -> Periodic | None:
    """Return a schedule as prologue, kernel and epilogue; None where no kernel is found.

    Where the schedule repeats something, unrolling the result to the schedule's own number of
    microbatches gives its rows again, and the prologue and epilogue are as short as that allows.
    Else the windows of the rows that make the fastest periodic schedule are its kernel.

    Parameters
    ----------
    schedule
        A valid one; its starts, or else the earliest ones, tell which windows go together.
    most_step
        The most microbatches of each chain in a kernel. None: whatever the schedule repeats, and
        up to 4 where it repeats nothing.
    deadline
        ``time.monotonic()`` at which the best so far is returned; None: all is tried.

    Raises
    ------
    DeadlockError
        If the schedule's order cannot run.
    ValueError
        If its rows do not fit its problem.
    """
    starts = simulate(schedule).starts
    problem = schedule.problem
    fewest = min(problem.microbatches)
    rows = _counted_in_chains(schedule)
    best: tuple[int, int, Periodic] | None = None
    for repeats in (True, False):
        most = (fewest // 2 if repeats else min(4, fewest)) if most_step is None else most_step
        for step in range(1, min(most, fewest) + 1):
            windows: list[list[Window]] = []
            for row in rows:
                of_row = _windows(problem, row, step)
                windows.append([each for each in of_row if each.repeats or not repeats])
                if row and not windows[-1]:
                    break
            if len(windows) < len(rows) or any(
                row and not found for row, found in zip(rows, windows, strict=True)
            ):
                continue
            cuts = list(_cuts(problem, windows, starts))
            if repeats:
                # What is repeated most often is the middle; what is by chance comes after it.
                cuts.sort(key=lambda cut: -_most(problem, rows, cut, step))
            for cut in cuts:
                if deadline is not None and monotonic() > deadline:
                    return None if best is None else best[2]
                found = _tried(problem, rows, cut, step)
                if found is None:
                    continue
                found = replace(found, source=schedule.source)
                if repeats:
                    return found
                rate = _ticks(found)
                # Ticks per microbatch, compared as a fraction.
                if best is None or rate * best[1] < best[0] * step:
                    best = rate, step, found
    return None if best is None else best[2]


def _counted_in_chains(schedule: Schedule) -> list[Row]:
    problem = schedule.problem
    down = [-first for first in problem.first_microbatch]
    return [tuple(moved(block, problem.placement, down) for block in row) for row in schedule.rows]


def _windows(problem: Problem, row: Row, step: int) -> Iterator[Window]:
    """Yield the stretches in which each stage runs so many microbatches, none of them twice."""
    stages = len({op.stage for block in row for op in ops_of(block)})
    shift = [step] * len(problem.placement.chains)
    later = [moved(block, problem.placement, shift) for block in row]
    for first in range(len(row)):
        counts: Counter[tuple[int, OpKind]] = Counter()
        done: set[int] = set()
        for end in range(first, len(row)):
            for op in ops_of(row[end]):
                counts[op.stage, op.kind] += 1
            touched = {op.stage for op in ops_of(row[end])}
            if any(_too_many(counts, stage, step) for stage in touched):
                break
            for stage in touched:
                (done.add if _whole(counts, stage, step) else done.discard)(stage)
            if len(done) == stages:
                length = end + 1 - first
                again = later[first : end + 1] == list(row[end + 1 : end + 1 + length])
                yield Window(first, end + 1, again)
                break


def _too_many(counts: Counter[tuple[int, OpKind]], stage: int, step: int) -> bool:
    backwards = counts[stage, I] + counts[stage, B]
    return max(counts[stage, F], backwards, counts[stage, W] + counts[stage, B]) > step


def _whole(counts: Counter[tuple[int, OpKind]], stage: int, step: int) -> bool:
    inputs, weights, whole = counts[stage, I], counts[stage, W], counts[stage, B]
    return counts[stage, F] == step == inputs + whole and inputs == weights


def _cuts(
    problem: Problem, windows: Sequence[Sequence[Window]], starts: Sequence[Sequence[int]]
) -> Iterator[Cut]:
    """Yield a window for each device, the first one from some time on, for several times."""
    idle = Window(0, 0, repeats=True)
    used = [device for device, stages in enumerate(problem.placement.stages_of_device) if stages]
    if not all(windows[device] for device in used):
        return
    times = sorted({starts[d][window.first] for d in used for window in windows[d]})
    every = -(-len(times) // MOST_CUTS)
    seen: set[Cut] = set()
    for time in times[::every]:
        cut: list[Window] = [idle] * problem.devices
        for device in used:
            later = (each for each in windows[device] if starts[device][each.first] >= time)
            cut[device] = next(later, windows[device][-1])
        if tuple(cut) not in seen:
            seen.add(tuple(cut))
            yield tuple(cut)


def _tried(problem: Problem, rows: Sequence[Row], cut: Cut, step: int) -> Periodic | None:
    """Return the periodic schedule of some windows, if it runs with few and many repetitions."""
    steps = (step,) * len(problem.placement.chains)
    most = _most(problem, rows, cut, step)
    for taken in range(most, max(0, most - MOST_KEPT), -1):
        counts = [number - taken * step for number in problem.microbatches]
        if not sum(counts):
            continue
        parts = [
            _parts(problem, row, window, steps, taken)
            for row, window in zip(rows, cut, strict=True)
        ]
        found = Periodic(
            problem=replace(problem, microbatches=counts),
            step=steps,
            prologue=tuple(before for before, _, _ in parts),
            kernel=tuple(kernel for _, kernel, _ in parts),
            epilogue=tuple(after for _, _, after in parts),
        )
        if _is_whole(found) and all(_runs(repeated(found, number)) for number in TRIED):
            return found
    return None


def _most(problem: Problem, rows: Sequence[Row], cut: Cut, step: int) -> int:
    """Return how often the windows of all devices stand there."""
    steps = (step,) * len(problem.placement.chains)
    return min(
        sum(_repetitions(problem, row, window, steps))
        for row, window in zip(rows, cut, strict=True)
        if window.end > window.first
    )


def _repetitions(
    problem: Problem, row: Row, window: Window, steps: Sequence[int]
) -> tuple[int, int]:
    """Return how often a window's blocks stand there in a row: before its end, and behind it."""
    kernel = row[window.first : window.end]
    length = len(kernel)

    def is_copy(number: int) -> bool:
        at = window.first + number * length
        by = [number * step for step in steps]
        return at >= 0 and row[at : at + length] == tuple(
            moved(block, problem.placement, by) for block in kernel
        )

    before, behind = 1, 0
    while is_copy(-before):
        before += 1
    while is_copy(behind + 1):
        behind += 1
    return before, behind


def _parts(
    problem: Problem, row: Row, window: Window, steps: Sequence[int], taken: int
) -> tuple[Row, Row, Row]:
    """Return a row as prologue, kernel and epilogue, so that ``taken`` repetitions give it."""
    if window.end == window.first:
        return row, (), ()
    before, _ = _repetitions(problem, row, window, steps)
    length = window.end - window.first
    first = window.first - (min(before, taken) - 1) * length
    end = first + taken * length
    down = [-taken * step for step in steps]
    after = tuple(moved(block, problem.placement, down) for block in row[end:])
    return row[:first], row[first : first + length], after


def _is_whole(periodic: Periodic) -> bool:
    """Whether all that is left without a repetition is there, each op once."""
    problem = periodic.problem
    placement = problem.placement
    done: defaultdict[tuple[int, OpKind], list[int]] = defaultdict(list)
    for row in (*periodic.prologue, *periodic.epilogue):
        for op in (op for block in row for op in ops_of(block)):
            done[op.stage, op.kind].append(op.microbatch)
    for stage in range(problem.stages):
        numbers = list(range(problem.microbatches[placement.chain_of_stage[stage]]))
        forwards, inputs, weights, whole = (sorted(done[stage, kind]) for kind in (F, I, W, B))
        if forwards != numbers or inputs != weights or sorted(inputs + whole) != numbers:
            return False
    return True


def _runs(schedule: Schedule) -> bool:
    if not all(
        _keeps_limit(schedule.problem, device, row) for device, row in enumerate(schedule.rows)
    ):
        return False
    try:
        earliest_starts(schedule.problem, schedule.rows)
    except DeadlockError:
        return False
    return True


def _keeps_limit(problem: Problem, device: int, row: Row) -> bool:
    """Whether a device holds no more than it may, which its order alone decides."""
    limit = problem.memory.limit[device]
    held = problem.static(device)
    if limit is None:
        return True
    for block in row:
        allocate, free = problem.change(block)
        if held + allocate > limit:
            return False
        held += allocate - free
    return True


def _ticks(periodic: Periodic) -> int:
    """Return how long the repetitions between two numbers of them take."""
    few, many = (simulate(repeated(periodic, number)).objective_ticks for number in SLOW)
    return many - few
