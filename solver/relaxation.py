"""A bound from one device alone: its best order, whatever the other devices do.

The other devices are taken to answer at once: a backward can start one turnaround after its
forward. What is left is one machine with delays and a memory limit. Microbatches are alike, so
they keep their order, and a state of the device is how many F's, I's and W's are done. Among the
ways to reach a state one is enough if it is no later and all awaited backwards can start no later
(dominance); with little memory few backwards are awaited, so few ways are left and the best of
all orders is found exactly. It sees what sums over the device cannot: that a forward must wait
for the memory of a certain earlier microbatch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import TypeAlias

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Bound
from bubbleproof.solver.limits import room
from bubbleproof.solver.times import LeastTimes

Done: TypeAlias = tuple[int, int, int]
"""How many forwards, backwards and W's have run."""

Way: TypeAlias = tuple[int, tuple[int, ...]]
"""When a device is free, and from when each awaited backward can start, in ticks.

Once all backwards have run, instead of those: by when what follows elsewhere has ended.
"""

MOST_WAYS = 300_000
"""Where more ways are left than this, the device gives no bound."""


def device_bound(problem: Problem, device: int, objective: int, deadline: float) -> Bound | None:
    """Return the bound that a device alone gives, or None where it gives none in time.

    Parameters
    ----------
    problem
        A feasible problem.
    device
        A device with one stage, which runs no pairs.
    objective
        A known schedule's objective in ticks; ways that cannot beat it are dropped, and the
        bound is at most this.
    deadline
        ``time.monotonic()`` at which to give up.
    """
    alone = _Alone.of(problem, device)
    if alone is None:
        return None
    least = _least_end(alone, objective - alone.before, deadline)
    if least is None:
        return None
    terms = {"until the first input": alone.before, "its own ops in their best order": least}
    told = " + ".join(f"{problem.time(ticks)} {name}" for name, ticks in terms.items() if ticks)
    return Bound(
        name="device",
        ticks=alone.before + least,
        text=f"device {device}, if all others answered at once: {told}, "
        f"with a turnaround of {problem.time(alone.turnaround)} and its memory",
        device=device,
        terms={name: ticks for name, ticks in terms.items() if ticks},
    )


@dataclass(frozen=True, slots=True)
class _Alone:
    """One stage alone on its device: times in ticks, memory in grains."""

    microbatches: int
    forward: int
    backward: int
    """Of an I, or of a B where all are fused."""
    weight: int | None
    whole: tuple[int, int] | None
    """The time of a B and what it takes when it starts, where it may stand for I and W."""
    turnaround: int
    before: int
    """From the start of the iteration to the first input; 0 for a span."""
    after: int
    """From the end of the last backward to the end of what follows it; 0 for a span."""
    room: int | None
    allocate: tuple[int, int, int]
    """What F, backward and W take when they start."""
    kept: int
    """What a microbatch holds between its F and its backward."""
    pending: int
    """What a microbatch holds between its I and its W."""

    @staticmethod
    def of(problem: Problem, device: int) -> "_Alone | None":
        times = LeastTimes(problem)
        parts = times.parts(device)
        if len(parts) != 1 or len(parts[0].stages) != 1:
            return None
        (stage,) = parts[0].stages
        if problem.backward is not Backward.SPLIT and problem.cost.pair[device] is not None:
            return None  # Its ops may overlap.
        cost, memory = problem.cost, problem.memory
        fused = problem.backward is Backward.FUSED
        backward = memory.B[stage] if fused else memory.I[stage]
        kept = memory.F[stage][0] - memory.F[stage][1]
        whole = problem.objective is Objective.MAKESPAN
        return _Alone(
            microbatches=parts[0].microbatches,
            forward=cost.F[stage],
            backward=cost.B[stage] if fused else cost.I[stage],
            weight=None if fused else cost.W[stage],
            whole=(cost.B[stage], memory.B[stage][0])
            if problem.backward is Backward.FREE
            else None,
            turnaround=times.turnaround(stage),
            before=times.up(times.first_in_chain(stage), stage) if whole else 0,
            after=times.way_back(stage, None) if whole else 0,
            room=room(problem, device),
            allocate=(memory.F[stage][0], backward[0], memory.W[stage][0]),
            kept=kept,
            pending=0 if fused else kept + backward[0] - backward[1],
        )


def _least_end(alone: _Alone, most: int, deadline: float) -> int | None:
    """Return the least end of all, at most ``most``; None if it takes too long.

    States are taken by how much is done in them. A B does two steps at once.
    """
    steps = 3 * alone.microbatches
    reached: list[dict[Done, list[Way]]] = [{} for _ in range(steps + 1)]
    reached[0] = {(0, 0, 0): [(0, ())]}
    for number in range(steps):
        layer, reached[number] = reached[number], {}
        if sum(map(len, layer.values())) > MOST_WAYS or monotonic() > deadline:
            return None
        for done, ways in layer.items():
            for way in _undominated(ways):
                for after, longer in _steps(alone, done, way):
                    if _at_least(alone, after, longer) < most:
                        reached[sum(after)].setdefault(after, []).append(longer)
    return min(
        (max(end, *required) for ways in reached[steps].values() for end, required in ways),
        default=most,
    )


def _steps(alone: _Alone, done: Done, way: Way) -> Iterator[tuple[Done, Way]]:
    forwards, backwards, weights = done
    now, awaited = way
    held = (forwards - backwards) * alone.kept + (backwards - weights) * alone.pending
    free = None if alone.room is None else alone.room - held
    fits = [free is None or amount <= free for amount in alone.allocate]
    if forwards < alone.microbatches and fits[0]:
        start = (now + alone.turnaround,)
        yield (forwards + 1, backwards, weights), (now + alone.forward, (*awaited, *start))
    if backwards < forwards:
        last = backwards + 1 == alone.microbatches
        if fits[1]:
            done_weights = weights + 1 if alone.weight is None else weights
            longer = _handed_on(alone, way, alone.backward, last=last)
            yield (forwards, backwards + 1, done_weights), longer
        if alone.whole is not None and (free is None or alone.whole[1] <= free):
            longer = _handed_on(alone, way, alone.whole[0], last=last)
            yield (forwards, backwards + 1, weights + 1), longer
    if alone.weight is not None and weights < backwards and fits[2]:
        yield (forwards, backwards, weights + 1), (now + alone.weight, awaited)


def _handed_on(alone: _Alone, way: Way, backward: int, *, last: bool) -> Way:
    """Return the way on once the oldest awaited backward has run, which takes so long."""
    now, awaited = way
    end = max(now, awaited[0]) + backward
    return end, (end + alone.after,) if last else awaited[1:]


def _at_least(alone: _Alone, done: Done, way: Way) -> int:
    """Return a time before which no way on from here can end."""
    forwards, backwards, weights = (alone.microbatches - number for number in done)
    now, awaited = way
    weight = alone.weight or 0
    each, last_one = alone.backward + weight, alone.backward + max(weight, alone.after)
    if alone.whole is not None:
        each, last_one = min(each, alone.whole[0]), min(last_one, alone.whole[0] + alone.after)
    busy = now + forwards * alone.forward + backwards * each + (weights - backwards) * weight
    if not backwards:
        return max(busy, *awaited)
    last = now + (forwards - 1) * alone.forward + alone.turnaround if forwards else awaited[-1]
    return max(busy, last + last_one)


def _undominated(ways: list[Way]) -> list[Way]:
    """Keep the ways that no other beats or equals in every respect."""
    clipped = {(now, tuple(max(now, start) for start in awaited)) for now, awaited in ways}
    kept: list[Way] = []
    for way in sorted(clipped):
        if not any(
            all(start <= other for start, other in zip(before[1], way[1], strict=True))
            for before in kept
        ):
            kept.append(way)
    return kept
