"""A device alone: how early its own ops can end, if every other device answered at once.

*Theorem.* Let a device hold one stage and run no pairs. In any valid schedule the backward of a
microbatch starts no earlier than its round trip after its F, the device runs one op at a time, and
holds no more than its limit. So it ends no earlier than the best order of its own ops that keeps
these three, however the other devices run. Microbatches are alike, so sorting the starts of the
F's, of all backwards whether I or B, and of the W's keeps all three, and it is enough to search
orders in which each runs in the order of the microbatches; and each op as early as its order
allows, since what is held depends on the order alone.

The search is exact. A *state* is how many F's, backwards and W's have run; where a backward may
take either form, a B runs both halves at once. A *way* to it is when
the device is free and from when each open backward may start. A way that is nowhere earlier than
another way to the same state leads to nothing better, and one that cannot end before the claim,
even without idle time, need not be followed to refute it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.problem import Problem
from bubbleproof.verify.trips import room_of, stages_of, visits_of

State: TypeAlias = tuple[int, int, int]
"""How many F's, backwards and W's have run."""

MOST_TIMES = 3_000_000
"""How many times all ways together may have; what takes more is left open."""


@dataclass(frozen=True, slots=True, order=True)
class Way:
    """How far an order has come, in ticks from the device's first start.

    Parameters
    ----------
    free
        When the device is free.
    due
        From when each open backward may start, in the order of the microbatches.
    settled
        When what follows the last backward elsewhere has ended; 0 before that has run.
    """

    free: int
    due: tuple[int, ...]
    settled: int = 0

    def is_behind(self, other: "Way") -> bool:
        """Whether the other way is nowhere later."""
        return (
            other.free <= self.free
            and other.settled <= self.settled
            and all(theirs <= ours for ours, theirs in zip(self.due, other.due, strict=True))
        )


@dataclass(frozen=True, slots=True)
class Alone:
    """One stage on a device of its own; ticks, and grains beside the static part.

    Parameters
    ----------
    microbatches
        How many pass.
    ticks
        Of F, backward and W.
    has_weights
        Whether W's run on their own.
    round_trip
        From the start of an F to the start of its backward, at least.
    after
        What follows the end of the last backward, at least.
    takes
        What F, backward and W allocate.
    keeps
        What a microbatch holds more, once F, backward or W has ended.
    room
        What may be held; None for no limit.
    whole
        The ticks of a B that may stand for I and W, and what it allocates; None for no choice.
    """

    microbatches: int
    ticks: tuple[int, int, int]
    has_weights: bool
    round_trip: int
    after: int
    takes: tuple[int, int, int]
    keeps: tuple[int, int, int]
    room: int | None
    whole: tuple[int, int] | None = None

    def least_from(self, state: State, way: Way) -> int:
        """Return a time before which no order that goes on from here can end."""
        n, ticks = self.microbatches, self.ticks
        forwards, backwards, weights = state
        open_weights = backwards - weights if self.has_weights else 0
        both, last_one = ticks[1] + ticks[2], ticks[1] + max(ticks[2], self.after)
        if self.whole is not None:
            both, last_one = min(both, self.whole[0]), min(last_one, self.whole[0] + self.after)
        work = (n - forwards) * ticks[0] + (n - backwards) * both + open_weights * ticks[2]
        end = max(way.settled, way.free + work)
        if backwards == n:
            return end
        last = way.free + (n - 1 - forwards) * ticks[0] + self.round_trip
        if forwards == n:
            last = max(way.free, way.due[-1])
        return max(end, last + last_one)

    def fits(self, state: State, takes: int) -> bool:
        """Whether an op that allocates so much may start in a state."""
        held = sum(grains * count for grains, count in zip(self.keeps, state, strict=True))
        return self.room is None or held + takes <= self.room

    def steps(self, state: State, way: Way) -> Iterator[tuple[State, Way]]:
        """Yield each op that may be next, as the state and the way after it."""
        forwards, backwards, weights = state
        ticks, takes, n = self.ticks, self.takes, self.microbatches
        if forwards < n and self.fits(state, takes[0]):
            due = (*way.due, way.free + self.round_trip)
            yield (forwards + 1, backwards, weights), Way(way.free + ticks[0], due, way.settled)
        forms = [(ticks[1], takes[1], 0)]
        if self.whole is not None:
            forms.append((*self.whole, 1))
        for length, taken, more_weights in forms:
            if backwards < forwards and self.fits(state, taken):
                end = max(way.free, way.due[0]) + length
                settled = end + self.after if backwards + 1 == n else 0
                after = (forwards, backwards + 1, weights + more_weights)
                yield after, Way(end, way.due[1:], settled)
        if self.has_weights and weights < backwards and self.fits(state, takes[2]):
            end = way.free + ticks[2]
            yield (forwards, backwards, weights + 1), Way(end, way.due, way.settled)


def alone_of(problem: Problem, device: int, *, makespan: bool) -> Alone | None:
    """Return a device alone; None where the theorem says nothing about it."""
    visits = visits_of(problem, device)
    if len(visits) != 1 or len(visits[0].stages) != 1:
        return None
    visit = visits[0]
    stages = stages_of(problem)
    stage, each = visit.first, stages[visit.first]
    split = problem.backward is not Backward.FUSED
    if each.pair is not None:
        return None
    kinds = (OpKind.FORWARD, OpKind.BACKWARD_INPUT if split else OpKind.BACKWARD)
    changes = [problem.memory.of(kind)[stage] for kind in kinds]
    changes.append(problem.memory.W[stage] if split else (0, 0))
    takes = [allocate for allocate, _ in changes]
    keeps = [allocate - free for allocate, free in changes]
    after = 0
    if makespan:
        before = visit.chain[: visit.chain.index(stage)]
        after = max(
            (
                stages[s].up_at + stages[s].gradient + stages[s].weight - each.up_at - each.gradient
                for s in before
            ),
            default=0,
        )
    return Alone(
        microbatches=visit.microbatches,
        ticks=(
            each.forward_alone,
            problem.cost.I[stage] if split else problem.cost.B[stage],
            problem.cost.W[stage] if split else 0,
        ),
        has_weights=split,
        round_trip=each.up_at - each.down_at,
        after=after,
        takes=(takes[0], takes[1], takes[2]),
        keeps=(keeps[0], keeps[1], keeps[2]),
        room=room_of(problem, device),
        whole=(problem.cost.B[stage], problem.memory.B[stage][0])
        if problem.backward is Backward.FREE
        else None,
    )


def least_end(alone: Alone, claim: int) -> int | None:
    """Return the least end of all orders, or the claim where none ends before it.

    Parameters
    ----------
    alone
        The device.
    claim
        In ticks from the device's first start.

    Returns
    -------
    int or None
        None where the search is too large.
    """
    n = alone.microbatches
    complete = (n, n, n if alone.has_weights else 0)
    # By how many halves have run: no op leads back, and a B leads two on.
    layers: list[dict[State, list[Way]]] = [{} for _ in range(sum(complete) + 1)]
    layers[0][0, 0, 0] = [Way(0, ())]
    followed = 0
    best = claim
    for place, layer in enumerate(layers):
        followed += sum(1 + len(way.due) for ways in layer.values() for way in ways)
        if followed > MOST_TIMES:
            return None
        for state, ways in layer.items():
            for way in _foremost(ways):
                for after, longer in alone.steps(state, way):
                    end = alone.least_from(after, longer)
                    if end < best and after == complete:
                        best = end
                    elif end < best:
                        layers[sum(after)].setdefault(after, []).append(longer)
        layers[place] = {}
    return best


def _foremost(ways: Iterable[Way]) -> list[Way]:
    """Return the ways that are behind no other; a start that is past is as good as now."""
    current = {replace(way, due=tuple(max(way.free, start) for start in way.due)) for way in ways}
    kept: list[Way] = []
    for way in sorted(current):
        if not any(way.is_behind(other) for other in kept):
            kept.append(way)
    return kept
