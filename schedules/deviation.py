"""A prediction held against a run: the measured timeline, and how far off each op kind was."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from statistics import median

from bubbleproof.schedules.ops import Block, OpKind, Pair
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Measured, Schedule
from bubbleproof.schedules.simulate import Timeline, simulate, timeline_of

PAIR = "pair"


@dataclass(frozen=True, slots=True)
class KindDeviation:
    """How far the durations of an op kind were from what the problem says.

    Parameters
    ----------
    kind
        ``F``, ``I``, ``W``, ``B`` or ``pair``.
    count
        How many blocks ran.
    predicted, measured
        The medians of their durations, in the problem's unit.
    median_off
        The median of measured / predicted - 1 over the blocks; None where all are predicted to take
        no time.
    worst_off
        The one of these that is farthest from 0.
    worst
        The block that it is of.
    """

    kind: str
    count: int
    predicted: float
    measured: float
    median_off: float | None
    worst_off: float | None
    worst: str


@dataclass(frozen=True, slots=True)
class Deviation:
    """A run beside its prediction.

    Parameters
    ----------
    predicted
        The schedule's own times, or the earliest that its order allows.
    measured
        When its blocks ran, from 0 on, in ticks fine enough for both.
    kinds
        One for each op kind that ran.
    """

    predicted: Timeline
    measured: Timeline
    kinds: tuple[KindDeviation, ...]

    @property
    def makespan_off(self) -> float:
        """Measured makespan / predicted makespan - 1; 0 where nothing is predicted to take time."""
        predicted = self.predicted.makespan
        return float(self.measured.makespan) / float(predicted) - 1 if predicted else 0.0


def deviation(schedule: Schedule) -> Deviation:
    """Hold what was measured of a schedule against what is predicted of it.

    Raises
    ------
    ValueError
        If nothing was measured, or the order cannot run.
    """
    measured = _measured_of(schedule)
    predicted = simulate(schedule)
    return Deviation(predicted, _timeline(schedule, measured), tuple(_kinds(schedule, measured)))


def remeasured(schedule: Schedule, *, transfer: Sequence[Sequence[int]] | None = None) -> Problem:
    """Return a schedule's problem with the times of its run: means by stage and kind.

    With means the work of each device is what it was in the run. A kind that did not run on a stage
    keeps the time that the problem gives it.

    Parameters
    ----------
    schedule
        What was run, with its measured timeline.
    transfer
        Times from device to device in ticks of the run; None: what the problem says.

    Raises
    ------
    ValueError
        If nothing was measured.
    """
    measured = _measured_of(schedule)
    problem = schedule.problem
    per_unit = lcm(problem.cost.ticks_per_unit, measured.ticks_per_unit)
    factor = per_unit // measured.ticks_per_unit
    cost = problem.cost.in_ticks(per_unit)
    times: dict[tuple[OpKind, int], list[int]] = {}
    pairs: dict[int, list[int]] = {}
    for device, block, ticks in _durations(schedule, measured):
        if isinstance(block, Pair):
            pairs.setdefault(device, []).append(factor * ticks)
        else:
            times.setdefault((block.kind, block.stage), []).append(factor * ticks)

    def of(kind: OpKind) -> tuple[int, ...]:
        return tuple(
            _mean(times[kind, stage]) if (kind, stage) in times else given
            for stage, given in enumerate(cost.of(kind))
        )

    return replace(
        problem,
        cost=replace(
            cost,
            F=of(OpKind.FORWARD),
            I=of(OpKind.BACKWARD_INPUT),
            W=of(OpKind.BACKWARD_WEIGHT),
            B=of(OpKind.BACKWARD),
            pair=tuple(
                _mean(pairs[device]) if device in pairs else given
                for device, given in enumerate(cost.pair)
            ),
            transfer=cost.transfer
            if transfer is None
            else tuple(tuple(factor * ticks for ticks in row) for row in transfer),
        ),
    )


def _measured_of(schedule: Schedule) -> Measured:
    if schedule.measured is None:
        raise ValueError("nothing was measured; bubbleproof run -o writes a schedule with its run")
    return schedule.measured


def _timeline(schedule: Schedule, measured: Measured) -> Timeline:
    """Return the measured timeline in ticks that both clocks divide, from 0 on."""
    problem = schedule.problem
    per_unit = lcm(problem.cost.ticks_per_unit, measured.ticks_per_unit)
    factor = per_unit // measured.ticks_per_unit
    zero = min((start for row in measured.starts for start in row), default=0)
    ran = replace(
        schedule,
        problem=replace(problem, cost=problem.cost.in_ticks(per_unit)),
        starts=None,
        objective=None,
        bound=None,
        status=None,
        proof=(),
        measured=None,
    )
    return timeline_of(
        ran,
        tuple(tuple(factor * (tick - zero) for tick in row) for row in measured.starts),
        tuple(tuple(factor * (tick - zero) for tick in row) for row in measured.ends),
    )


def _durations(schedule: Schedule, measured: Measured) -> Iterator[tuple[int, Block, int]]:
    for device, row in enumerate(schedule.rows):
        times = zip(row, measured.starts[device], measured.ends[device], strict=True)
        for block, start, end in times:
            yield device, block, end - start


def _kinds(schedule: Schedule, measured: Measured) -> Iterator[KindDeviation]:
    problem = schedule.problem
    ran: dict[str, list[tuple[Block, float, float]]] = {}
    for _, block, ticks in _durations(schedule, measured):
        kind = PAIR if isinstance(block, Pair) else block.kind.value
        predicted = float(problem.time(problem.duration(block)))
        ran.setdefault(kind, []).append((block, predicted, ticks / measured.ticks_per_unit))
    for kind in (*(kind.value for kind in OpKind), PAIR):
        if kind not in ran:
            continue
        off = [(took / predicted - 1, block) for block, predicted, took in ran[kind] if predicted]
        worst = max(off, key=lambda each: abs(each[0]), default=None)
        yield KindDeviation(
            kind=kind,
            count=len(ran[kind]),
            predicted=median(predicted for _, predicted, _ in ran[kind]),
            measured=median(took for _, _, took in ran[kind]),
            median_off=median(each for each, _ in off) if off else None,
            worst_off=None if worst is None else worst[0],
            worst="" if worst is None else str(worst[1]),
        )


def _mean(ticks: Sequence[int]) -> int:
    return round(Fraction(sum(ticks), len(ticks)))
