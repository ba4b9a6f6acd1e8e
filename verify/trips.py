"""The least times of a microbatch's round trip, and what it holds meanwhile.

A microbatch's data passes its chain once down, an F on each stage, and once up, a backward on
each stage. Where a backward may be an I or a B, or an op may be half of a pair, every time here
is the least that any choice takes, so that it holds for all of them. All times are ticks, all
amounts grains.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.problem import Problem


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: how long its ops take, when they can start, and what they hold.

    Parameters
    ----------
    forward_alone, whole
        The least time of an F outside a pair, and of a whole backward outside a pair.
    forward, gradient
        The least time from the start of an F, or of a backward, until it hands on its result.
    weight
        The least time of what must still run once the gradient is handed on.
    longest, weight_alone
        The most time that a whole backward takes outside a pair, and that a W takes.
    pair
        The time of a pair on the stage's device; None where there are none.
    down_at, up_at
        The least ticks from the start of a microbatch's F on the first stage of the chain to the
        start of its F, and of its backward, on this stage.
    kept, pending
        What a microbatch holds between F and backward, and between I and W.
    """

    forward_alone: int
    whole: int
    forward: int
    gradient: int
    weight: int
    longest: int
    weight_alone: int
    pair: int | None
    down_at: int
    up_at: int
    kept: int
    pending: int

    @property
    def anywhere(self) -> int:
        """The least time of a whole backward, alone or in a pair."""
        return self.whole if self.pair is None else min(self.whole, self.pair)


@dataclass(frozen=True, slots=True)
class Visit:
    """The stages of one chain on one device, in chain order, and how many microbatches pass."""

    chain: tuple[int, ...]
    stages: tuple[int, ...]
    microbatches: int

    @property
    def first(self) -> int:
        """The stage at which the device first meets a microbatch, and leaves it last."""
        return self.stages[0]

    @property
    def last(self) -> int:
        """The stage at which the device last meets a microbatch on its way down."""
        return self.stages[-1]


def stages_of(problem: Problem) -> tuple[Stage, ...]:
    """Return all stages of a problem."""
    placement = problem.placement
    bare = [_bare(problem, stage) for stage in range(placement.stages)]
    down_at, up_at = [0] * len(bare), [0] * len(bare)
    for chain in placement.chains:
        now = 0
        for position, stage in enumerate(chain):
            if position:
                now += problem.lag(chain[position - 1], stage)
            down_at[stage] = now
            now += bare[stage].forward
        for position in reversed(range(len(chain))):
            stage = chain[position]
            up_at[stage] = now
            if position:
                now += bare[stage].gradient + problem.lag(stage, chain[position - 1])
    return tuple(
        replace(each, down_at=down, up_at=up)
        for each, down, up in zip(bare, down_at, up_at, strict=True)
    )


def visits_of(problem: Problem, device: int) -> tuple[Visit, ...]:
    """Return the visits of a device's chains; none of a chain without microbatches."""
    holder = problem.placement.device_of_stage
    found: list[Visit] = []
    for chain, microbatches in zip(problem.placement.chains, problem.microbatches, strict=True):
        stages = tuple(stage for stage in chain if holder[stage] == device)
        if stages and microbatches:
            found.append(Visit(chain, stages, microbatches))
    return tuple(found)


def room_of(problem: Problem, device: int) -> int | None:
    """Return what a device may hold beside the static part; None where it has no limit."""
    limit = problem.memory.limit[device]
    if limit is None:
        return None
    holder = problem.placement.device_of_stage
    static = problem.memory.static
    return limit - sum(static[s] for s in range(len(holder)) if holder[s] == device)


def _bare(problem: Problem, stage: int) -> Stage:
    """Return a stage without the times at which it can start."""
    cost, memory = problem.cost, problem.memory
    forward, back, weight, full = (each[stage] for each in (cost.F, cost.I, cost.W, cost.B))
    pair = cost.pair[problem.placement.device_of_stage[stage]]
    match problem.backward:
        case Backward.SPLIT:
            # A pair's backward is a B, so there are no pairs.
            pair, gradient, after, halves = None, back, weight, [back + weight]
        case Backward.FUSED:
            gradient, after, halves, weight = full, 0, [full], 0
        case Backward.FREE:
            gradient, after, halves = min(back, full), 0, [back + weight, full]
    kept = memory.F[stage][0] - memory.F[stage][1]
    return Stage(
        forward_alone=forward,
        whole=min(halves),
        forward=forward if pair is None else min(forward, pair),
        gradient=gradient if pair is None else min(gradient, pair),
        weight=after,
        longest=max(halves),
        weight_alone=weight,
        pair=pair,
        down_at=0,
        up_at=0,
        kept=kept,
        pending=kept + memory.I[stage][0] - memory.I[stage][1],
    )


Item: TypeAlias = tuple[int, int, int]
"""Work that waits: the grains that it holds, the ticks that it takes, how many of it there are."""


def most_work(items: Iterable[Item], room: int | None) -> int:
    """Return at least the most ticks of work that fit in memory together, or exactly that.

    Work that holds nothing always fits. Of one or two kinds of other work every number of the
    first is tried, with as many of the second as then fit. With more kinds the last that fits may
    be cut to size, taking the kinds by ticks per grain, most first (Dantzig 1957: no choice of
    whole pieces is worth more); the ratios are compared exactly, as fractions.
    """
    free = 0
    kinds: dict[tuple[int, int], int] = {}
    for grains, ticks, count in items:
        if room is None or grains <= 0:
            free += ticks * count
        elif ticks > 0:
            kinds[grains, ticks] = kinds.get((grains, ticks), 0) + count
    if room is None or room <= 0 or not kinds:
        return free
    if len(kinds) <= 2:
        return free + _exactly(kinds, room)
    for (grains, ticks), count in sorted(
        kinds.items(), key=lambda kind: Fraction(kind[0][1], kind[0][0]), reverse=True
    ):
        whole = min(count, room // grains)
        free += whole * ticks
        room -= whole * grains
        if whole < count:
            return free + room * ticks // grains
    return free


def _exactly(kinds: dict[tuple[int, int], int], room: int) -> int:
    (grains, ticks), number = next(iter(kinds.items()))
    others = list(kinds.items())[1:]
    best = 0
    for taken in range(min(number, room // grains) + 1):
        left = room - taken * grains
        rest = sum(min(count, left // each) * time for (each, time), count in others)
        best = max(best, taken * ticks + rest)
    return best
