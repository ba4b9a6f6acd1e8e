"""When everything happens in a schedule: starts, ends, memory and bubbles."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

from bubbleproof.schedules.dependencies import inputs, output
from bubbleproof.schedules.ops import Block, Op, OpKind, Row, ops_of
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.quantity import Number
from bubbleproof.schedules.schedule import Schedule, Starts, require_all_rows, require_schedule


@dataclass(frozen=True, slots=True)
class Bubble:
    """The idle time of one device within the makespan, in ticks, by its cause.

    Parameters
    ----------
    waiting
        Before an op whose input is still being computed, or that starts later than it could.
    transfer
        Before an op whose last input is on its way.
    tail
        After the device's last op.
    """

    waiting: int
    transfer: int
    tail: int

    @property
    def total(self) -> int:
        """All idle ticks."""
        return self.waiting + self.transfer + self.tail


@dataclass(frozen=True, slots=True)
class Timeline:
    """A schedule with its times.

    Parameters
    ----------
    schedule
        The schedule.
    starts, ends
        For each device the start and end of each block, in ticks.
    memory
        For each device its memory curve: (tick, grains held from then on), static part included.
    bubbles
        For each device its idle time by cause.
    makespan_ticks
        From the first start to the latest end.
    span_ticks
        The largest, over devices, of last end minus first start.
    """

    schedule: Schedule
    starts: Starts
    ends: Starts
    memory: tuple[tuple[tuple[int, int], ...], ...]
    bubbles: tuple[Bubble, ...]
    makespan_ticks: int
    span_ticks: int

    @property
    def first_ticks(self) -> int:
        """The first start; 0 where nothing runs."""
        return min((start for row in self.starts for start in row), default=0)

    @property
    def makespan(self) -> Number:
        """The makespan in the problem's unit."""
        return self.schedule.problem.time(self.makespan_ticks)

    @property
    def span(self) -> Number:
        """The span in the problem's unit."""
        return self.schedule.problem.time(self.span_ticks)

    @property
    def objective_ticks(self) -> int:
        """The makespan or the span, as the problem asks."""
        if self.schedule.problem.objective is Objective.MAKESPAN:
            return self.makespan_ticks
        return self.span_ticks

    @property
    def device_over_limit(self) -> int | None:
        """The device that exceeds its memory limit most; None where all fit."""
        limits = self.schedule.problem.memory.limit
        excess = [
            0 if limit is None else max(grains for _, grains in curve) - limit
            for curve, limit in zip(self.memory, limits, strict=True)
        ]
        return excess.index(max(excess)) if max(excess) > 0 else None

    @property
    def peak_memory(self) -> tuple[Number, ...]:
        """For each device the most that it holds, in the problem's unit."""
        amount = self.schedule.problem.amount
        return tuple(amount(max(grains for _, grains in curve)) for curve in self.memory)

    @property
    def work_ticks(self) -> int:
        """The busy ticks of all devices together."""
        return sum(
            end - start
            for starts, ends in zip(self.starts, self.ends, strict=True)
            for start, end in zip(starts, ends, strict=True)
        )

    @property
    def bubble_ratio(self) -> float:
        """1 - work / (devices x makespan); 0 where nothing takes time."""
        whole = len(self.starts) * self.makespan_ticks
        return 1 - self.work_ticks / whole if whole else 0.0

    @property
    def zb_bubble_ratio(self) -> float:
        """(span - most work of a device) / span, the Zero Bubble papers' bubble rate."""
        work = max(
            sum(end - start for start, end in zip(starts, ends, strict=True))
            for starts, ends in zip(self.starts, self.ends, strict=True)
        )
        return (self.span_ticks - work) / self.span_ticks if self.span_ticks else 0.0


class DeadlockError(ValueError):
    """An order that cannot run: every device waits for another."""


def simulate(schedule: Schedule) -> Timeline:
    """Return the times of a schedule: its own starts, or the earliest that its order allows.

    To see the earliest starts of a schedule that has its own, clear them first:
    ``dataclasses.replace(schedule, starts=None)``.

    Raises
    ------
    DeadlockError
        If the order cannot run, with what each device waits for.
    ValueError
        If the rows do not fit the problem (``verify`` tells all that is wrong).
    TypeError
        If it is no schedule.
    """
    require_schedule(schedule)
    problem, rows, starts = schedule.problem, schedule.rows, schedule.starts
    _check_shape(problem, rows, starts)
    if starts is None:
        starts = earliest_starts(problem, rows)
    durations = [[problem.duration(block) for block in row] for row in rows]
    ends = tuple(
        tuple(start + ticks for start, ticks in zip(begin, each, strict=True))
        for begin, each in zip(starts, durations, strict=True)
    )
    return timeline_of(schedule, starts, ends)


def timeline_of(schedule: Schedule, starts: Starts, ends: Starts) -> Timeline:
    """Return memory, bubbles and measures of a schedule for given times of its blocks.

    Parameters
    ----------
    schedule
        The schedule; its own starts are not read.
    starts, ends
        For each device the start and end of each block of its row, in ticks.
    """
    problem, rows = schedule.problem, schedule.rows
    first = min((start for begin in starts for start in begin), default=0)
    last = max((end for each in ends for end in each), default=0)
    return Timeline(
        schedule=schedule,
        starts=starts,
        ends=ends,
        memory=tuple(
            _memory_curve(problem, device, row, starts[device], ends[device])
            for device, row in enumerate(rows)
        ),
        bubbles=_bubbles(problem, rows, starts, ends, first, last),
        makespan_ticks=last - first,
        span_ticks=max(
            (max(e) - min(b) for b, e in zip(starts, ends, strict=True) if b), default=0
        ),
    )


def earliest_starts(
    problem: Problem, rows: Sequence[Row], *, release: Sequence[int] | None = None
) -> Starts:
    """Return the earliest start of each block when every device keeps its order.

    Parameters
    ----------
    problem
        The problem.
    rows
        For each device its blocks in order.
    release
        For each device the tick before which it does not start; None: 0 for all.

    Raises
    ------
    DeadlockError
        If the order cannot run, or an op that another waits for is not there.
    """
    stages, width = problem.stages, problem.total_microbatches
    needs = [_needs(problem, stage, width) for stage in range(stages)]
    durations = {kind: problem.cost.of(kind) for kind in OpKind}
    # What an op hands on, by stage x microbatch: activations, then gradients.
    handed_on: list[int | None] = [None] * (2 * stages * width)
    waiters: defaultdict[int, list[int]] = defaultdict(list)
    starts: list[list[int]] = [[] for _ in rows]
    free = [0] * len(rows) if release is None else list(release)
    ready = deque(range(len(rows)))
    while ready:
        device = ready.popleft()
        row, begun = rows[device], starts[device]
        now = free[device]
        for block in islice(row, len(begun), None):
            start, missing = now, None
            ops = (block,) if isinstance(block, Op) else (block.forward, block.backward)
            for op in ops:
                for offset, lag in needs[op.stage][op.kind]:
                    end = handed_on[offset + op.microbatch]
                    if end is None:
                        missing = offset + op.microbatch
                        break
                    if end + lag > start:
                        start = end + lag
            if missing is not None:
                waiters[missing].append(device)
                break
            begun.append(start)
            is_op = isinstance(block, Op)
            now = start + (durations[block.kind][block.stage] if is_op else problem.duration(block))
            for op in ops:
                if op.kind is not OpKind.BACKWARD_WEIGHT:
                    at = op.stage * width + op.microbatch
                    if op.kind is not OpKind.FORWARD:
                        at += stages * width
                    handed_on[at] = now
                    if at in waiters:
                        ready.extend(waiters.pop(at))
        free[device] = now
    blocked = [device for device, row in enumerate(rows) if len(starts[device]) < len(row)]
    if blocked:
        waiting = {
            device: Op(
                at // width % stages,
                OpKind.FORWARD if at < stages * width else OpKind.BACKWARD_INPUT,
                at % width,
            )
            for at, devices in waiters.items()
            for device in devices
        }
        as_written = {output(op): op for row in rows for block in row for op in ops_of(block)}

        def needed(device: int) -> str:
            op = waiting[device]
            return str(as_written[op]) if op in as_written else f"{op}, which is in no row"

        raise DeadlockError(
            "the order cannot run: "
            + "; ".join(
                f"device {d} stands at {rows[d][len(starts[d])]} and waits for {needed(d)}"
                for d in blocked[:8]
            )
            + ("; ..." if len(blocked) > 8 else "")
        )
    return tuple(map(tuple, starts))


def _needs(problem: Problem, stage: int, width: int) -> dict[OpKind, list[tuple[int, int]]]:
    """Return for each kind of a stage's ops what they wait for: (place of microbatch 0, lag)."""

    def place(source: Op) -> int:
        gradients = problem.stages * width if source.kind is not OpKind.FORWARD else 0
        return gradients + source.stage * width

    return {
        kind: [(place(source), lag) for source, lag in inputs(problem, Op(stage, kind, 0))]
        for kind in OpKind
    }


def _check_shape(problem: Problem, rows: Sequence[Row], starts: Starts | None) -> None:
    require_all_rows(problem, rows)
    for device, row in enumerate(rows):
        for block in row:
            for op in ops_of(block):
                if not 0 <= op.stage < problem.stages:
                    raise ValueError(
                        f"device {device} runs {op}, but the stages are 0..{problem.stages - 1}"
                    )
                if not 0 <= op.microbatch < problem.total_microbatches:
                    raise ValueError(
                        f"device {device} runs {op}, but the microbatches are "
                        f"0..{problem.total_microbatches - 1}"
                    )
    if starts is not None and list(map(len, starts)) != list(map(len, rows)):
        raise ValueError("the starts do not fit the rows; one for each op can be simulated")


def _memory_curve(
    problem: Problem, device: int, row: Row, starts: Sequence[int], ends: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    changes: list[tuple[int, int]] = []
    for block, start, end in zip(row, starts, ends, strict=True):
        allocate, free = problem.change(block)
        changes += ((start, allocate), (end, -free))
    # In row order what ends comes before what starts at the same tick; sorting is stable and
    # only matters where given starts let ops of a device overlap.
    changes.sort(key=itemgetter(0))
    held = problem.static(device)
    curve = [(0, held)]
    for tick, change in changes:
        if change:
            held += change
            curve.append((tick, held))
    return tuple(curve)


def _bubbles(
    problem: Problem, rows: Sequence[Row], starts: Starts, ends: Starts, first: int, last: int
) -> tuple[Bubble, ...]:
    end_of: dict[Op, int] = {
        output(op): end
        for row, each in zip(rows, ends, strict=True)
        for block, end in zip(row, each, strict=True)
        for op in ops_of(block)
    }
    bubbles: list[Bubble] = []
    for device, row in enumerate(rows):
        waiting = transfer = 0
        free = first
        for block, start, end in zip(row, starts[device], ends[device], strict=True):
            if start > free:
                moving = _moving(problem, block, end_of)
                on_its_way = max(0, min(start, moving[1]) - max(free, moving[0]))
                transfer += on_its_way
                waiting += start - free - on_its_way
            free = max(free, end)
        bubbles.append(Bubble(waiting=waiting, transfer=transfer, tail=last - free))
    return tuple(bubbles)


def _moving(problem: Problem, block: Block, end_of: dict[Op, int]) -> tuple[int, int]:
    """Return from when to when a block's last input is on its way."""
    arrivals = [
        (end_of[source] + lag, end_of[source])
        for op in ops_of(block)
        for source, lag in inputs(problem, op)
        if source in end_of
    ]
    arrived, sent = max(arrivals, default=(0, 0))
    return sent, arrived
