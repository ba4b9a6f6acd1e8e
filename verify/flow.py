"""Theorem ``fluid``: multipliers of linear laws prove that not everything is done by a time.

The laws are those of SPEC.md, "Flows". Times are in units of the certificate, and everything is
computed in whole numbers.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import gcd
from typing import TypeAlias

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Flow
from bubbleproof.verify.trips import room_of, stages_of

_MOST_INSTANTS = 200_000
_MOST_ENTRIES = 10_000_000
"""Certificates that take more arithmetic are not recomputed."""

_Event: TypeAlias = tuple[str, int]
"""F, G (the gradient is handed on) or W, and the stage."""

_Entry: TypeAlias = tuple[int, int, int]
"""The number of a count, a place in the instants, and how many times the count is taken."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of block: its time, what it does, what it allocates and frees, how many there are."""

    device: int
    ticks: int
    does: tuple[_Event, ...]
    allocates: int
    frees: int
    most: int

    @property
    def name(self) -> str:
        """What it does, as ``2F`` or ``2G2W``."""
        return "".join(f"{stage}{event}" for event, stage in self.does)


@dataclass(frozen=True, slots=True)
class _Law:
    """At every place from the first on, the entries add up to at most the limit."""

    first: int
    limit: Callable[[int], int]
    entries: Callable[[int], Iterable[_Entry]]


def proven_by(problem: Problem, flow: Flow) -> int | None:
    """Return the bound in ticks that a certificate proves; None where that takes too long.

    Raises
    ------
    ValueError
        If it proves nothing, with the reason.
    """
    _check(problem, flow)
    instants = _instants(flow)
    if instants is None:
        return None
    flows = _Flows(problem, flow, instants)
    laws = dict(flows.laws())
    excess: defaultdict[tuple[int, int], int] = defaultdict(int)
    total = entries = 0
    for name, multipliers in flow.multipliers.items():
        law = laws.get(name)
        if law is None:
            raise ValueError(f"there is no law {name!a} for what it looks at")
        for place, multiplier in multipliers:
            if not law.first <= place < len(instants):
                accepted = f"{law.first}..{len(instants) - 1}"
                raise ValueError(f"law {name!a} has no place {place}; accepted are {accepted}")
            if multiplier < 0:
                raise ValueError(f"law {name!a} has a multiplier {multiplier}; it is 0 or more")
            total += multiplier * law.limit(place)
            for count, at, value in law.entries(place):
                excess[count, at] += multiplier * value
                entries += 1
            if entries > _MOST_ENTRIES:
                return None
    total -= sum(value * flows.most(*where) for where, value in excess.items() if value < 0)
    if total >= 0:
        raise ValueError("its multipliers contradict nothing")
    return (flow.horizon + 1) * flow.unit


def _check(problem: Problem, flow: Flow) -> None:
    """Refuse what no law is about."""
    accepted = range(problem.devices)
    if flow.target is None and problem.objective is Objective.SPAN:
        raise ValueError(f"a span is that of a device; as target 0..{accepted[-1]} is accepted")
    for device in (*flow.devices, *(() if flow.target is None else (flow.target,))):
        if device not in accepted:
            raise ValueError(f"there is no device {device}; accepted are 0..{accepted[-1]}")
    if len(set(flow.devices)) < len(flow.devices):
        raise ValueError("it looks at a device twice; once is right")
    divisor = _divisor(problem)
    if flow.unit < 1 or divisor % flow.unit:
        raise ValueError(
            f"a unit of {flow.unit} ticks does not divide all times; a divisor of {divisor} does"
        )


def _divisor(problem: Problem) -> int:
    """Return the largest divisor of all times that a schedule of the problem may have."""
    cost, backward = problem.cost, problem.backward
    times = [*cost.F]
    if backward is not Backward.FUSED:
        times += [*cost.I, *cost.W]
    if backward is not Backward.SPLIT:
        times += [*cost.B, *(ticks for ticks in cost.pair if ticks is not None)]
    for chain in problem.placement.chains:
        for a, b in pairwise(chain):
            times += [problem.lag(a, b), problem.lag(b, a)]
    return gcd(*times)


def _instants(flow: Flow) -> list[int] | None:
    """Return the instants, -1 for all time before 0 and then those of the runs; None: too many."""
    instants = [-1]
    for first, last, step in flow.instants:
        if step < 1 or not instants[-1] < first <= last or (last - first) % step:
            raise ValueError(
                f"its instants {first}, {first} + {step} and so on to {last} do not ascend "
                f"from {instants[-1] + 1} or later to their last"
            )
        if len(instants) + (last - first) // step > _MOST_INSTANTS:
            return None
        instants += range(first, last + 1, step)
    if instants[-1] != flow.horizon or flow.horizon < 0:
        raise ValueError(f"its last instant is {instants[-1]}, not its horizon {flow.horizon}")
    return instants


class _Flows:
    """The counts of blocks on some devices, and the laws that they keep."""

    def __init__(self, problem: Problem, flow: Flow, instants: Sequence[int]) -> None:
        self._problem, self._target, self._unit = problem, flow.target, flow.unit
        self._devices = flow.devices
        self._instants = instants
        self._stage = stages_of(problem)
        self._kinds = [kind for device in flow.devices for kind in self._kinds_of(device)]
        self._doing: defaultdict[_Event, list[int]] = defaultdict(list)
        for number, kind in enumerate(self._kinds):
            for event in kind.does:
                self._doing[event].append(number)
        self._early = self._early_events()

    def _kinds_of(self, device: int) -> Iterator[_Kind]:
        """Yield the kinds of blocks that a device may run."""
        problem, cost, memory = self._problem, self._problem.cost, self._problem.memory
        split = problem.backward is not Backward.FUSED
        whole = problem.backward is not Backward.SPLIT
        stages = problem.placement.stages_of_device[device]
        number = [len(problem.microbatches_of_stage(s)) for s in range(problem.stages)]

        def kind(does: Sequence[_Event], ticks: int, *changes: tuple[int, int]) -> _Kind:
            allocates, frees = (sum(amounts) for amounts in zip(*changes, strict=True))
            most = min(number[stage] for _, stage in does)
            return _Kind(device, ticks // self._unit, tuple(does), allocates, frees, most)

        for s in stages:
            forward, gradient, weight = (("F", s), ("G", s), ("W", s))
            yield kind([forward], cost.F[s], memory.F[s])
            if split:
                yield kind([gradient], cost.I[s], memory.I[s])
                yield kind([weight], cost.W[s], memory.W[s])
            if whole:
                yield kind([gradient, weight], cost.B[s], memory.B[s])
        ticks = cost.pair[device]
        if ticks is None or not whole:
            return
        for f, b in product(stages, stages):
            yield kind([("F", f), ("G", b), ("W", b)], ticks, memory.F[f], memory.B[b])

    def _early_events(self) -> set[_Event]:
        """Return what may have been done before the target's first start."""
        if self._target is None:
            return set()
        holder = self._problem.placement.device_of_stage
        early: set[_Event] = set()
        for chain in self._problem.placement.chains:
            own = [place for place, s in enumerate(chain) if holder[s] == self._target]
            early |= {("F", s) for s in (chain[: own[0]] if own else chain)}
            if not own:
                early |= {(event, s) for event in "GW" for s in chain}
        return early

    def most(self, count: int, place: int) -> int:
        """Return the most that a count can be at a place."""
        if count >= len(self._kinds):
            device = self._devices[count - len(self._kinds)]
            return sum(self._kinds[i].ticks * self._kinds[i].most for i in self._of(device))
        kind = self._kinds[count]
        if place == 0:
            return kind.most if self._early.issuperset(kind.does) else 0
        event, stage = kind.does[0]
        lead = self._stage[stage].down_at if self._target is None and event == "F" else 0
        return kind.most if self._instants[place] * self._unit >= lead else 0

    def laws(self) -> Iterator[tuple[str, _Law]]:
        """Yield all laws by name."""
        for number, kind in enumerate(self._kinds):
            yield f"rising {kind.name}", self._rising(number)
        for chain in self._problem.placement.chains:
            yield from self._inputs(chain)
        for number, device in enumerate(self._devices, len(self._kinds)):
            mine = self._of(device)
            yield f"exclusive {device}", self._exclusive(mine)
            yield f"time {device}", self._time(number)
            yield f"busy at least {device}", self._busy_at_least(number, mine)
            yield f"busy at most {device}", self._busy_at_most(number, mine)
            memory = self._memory(device, mine)
            if memory is not None:
                yield f"memory {device}", memory
        for event, stage in self._doing:
            device = self._problem.placement.device_of_stage[stage]
            yield f"number {stage}{event}", self._number(event, stage)
            if self._target in (None, device):
                yield f"done {stage}{event}", self._done(event, stage)

    def _of(self, device: int) -> list[int]:
        return [number for number, kind in enumerate(self._kinds) if kind.device == device]

    def _after(self, time: int) -> int:
        """Return the place of the first instant that is no earlier."""
        return bisect_left(self._instants, max(time, -1))

    def _until(self, time: int) -> int:
        """Return the place of the last instant that is no later."""
        return bisect_right(self._instants, max(time, -1)) - 1

    def _over(self, count: int, place: int, lag: int = 0) -> int:
        """Return a place by which all are counted that are over for some time at another."""
        return self._after(self._instants[place] - self._kinds[count].ticks - lag)

    def _rising(self, count: int) -> _Law:
        """A count never falls."""
        return _Law(1, _nothing, lambda place: ((count, place - 1, 1), (count, place, -1)))

    def _inputs(self, chain: Sequence[int]) -> Iterator[tuple[str, _Law]]:
        """What needs an input has started no oftener than the input was there."""
        stage, holder = self._stage, self._problem.placement.device_of_stage
        seen = [s for s in chain if holder[s] in self._devices]
        for a, b in pairwise(seen):
            lag = stage[b].down_at - stage[a].down_at - stage[a].forward
            yield f"forward {a} {b}", self._order(("F", a), ("F", b), lag)
            lag = stage[a].up_at - stage[b].up_at - stage[b].gradient
            yield f"gradient {b} {a}", self._order(("G", b), ("G", a), lag)
        for s in seen[-1:]:
            lag = stage[s].up_at - stage[s].down_at - stage[s].forward
            yield f"turn {s}", self._order(("F", s), ("G", s), lag)
        if self._problem.backward is not Backward.FUSED:
            for s in seen:
                inputs, weights = self._alone("G", s), self._alone("W", s)
                yield f"weight {s}", self._follow(inputs, weights, 0)

    def _alone(self, event: str, stage: int) -> list[int]:
        return [i for i in self._doing[event, stage] if self._kinds[i].does == ((event, stage),)]

    def _order(self, before: _Event, after: _Event, lag: int) -> _Law:
        return self._follow(self._doing[before], self._doing[after], lag // self._unit)

    def _follow(self, before: Sequence[int], after: Sequence[int], lag: int) -> _Law:
        def entries(place: int) -> Iterator[_Entry]:
            for count in after:
                yield count, place, 1
            for count in before:
                yield count, self._over(count, place, lag), -1

        return _Law(1, _nothing, entries)

    def _exclusive(self, mine: Sequence[int]) -> _Law:
        """At most one block of a device is in progress."""

        def entries(place: int) -> Iterator[_Entry]:
            for count in mine:
                if self._kinds[count].ticks:
                    yield count, place, 1
                    yield count, self._over(count, place), -1

        return _Law(1, lambda _: 1, entries)

    def _time(self, busy: int) -> _Law:
        """From one instant to the next a device is busy no longer than the time between."""
        return _Law(
            1,
            lambda place: self._instants[place] - self._instants[place - 1],
            lambda place: ((busy, place, 1), (busy, place - 1, -1)),
        )

    def _busy_at_least(self, busy: int, mine: Sequence[int]) -> _Law:
        """Each block has been busy at each moment of its time that is past."""

        def entries(place: int) -> Iterator[_Entry]:
            yield busy, place, -1
            end = self._instants[place]
            for count in mine:
                first = end - self._kinds[count].ticks + 1
                for at in range(self._until(first), place + 1):
                    last = self._instants[at + 1] - 1 if at < place else end
                    yield count, at, last - first + 1
                    first = last + 1

        return _Law(0, _nothing, entries)

    def _busy_at_most(self, busy: int, mine: Sequence[int]) -> _Law:
        """And no block at any other."""

        def entries(place: int) -> Iterator[_Entry]:
            yield busy, place, 1
            for count in mine:
                first = self._instants[place] - self._kinds[count].ticks + 1
                for at in range(self._after(first), place + 1):
                    yield count, at, first - self._instants[at] - 1
                    first = self._instants[at] + 1

        return _Law(0, _nothing, entries)

    def _memory(self, device: int, mine: Sequence[int]) -> _Law | None:
        """What is allocated and not yet freed fits, all in the largest amount that divides it."""
        room = room_of(self._problem, device)
        kinds = [(count, self._kinds[count]) for count in mine]
        grain = gcd(*(amount for _, kind in kinds for amount in (kind.allocates, kind.frees)))
        if room is None or not grain:
            return None

        def entries(place: int) -> Iterator[_Entry]:
            for count, kind in kinds:
                yield count, place, kind.allocates // grain
                yield count, self._over(count, place), -(kind.frees // grain)

        return _Law(1, lambda _: room // grain, entries)

    def _number(self, event: str, stage: int) -> _Law:
        """Each event happens once for each microbatch, whichever kinds of block do it."""
        number = len(self._problem.microbatches_of_stage(stage))
        return _Law(
            1,
            lambda _: number,
            lambda place: [(count, place, 1) for count in self._doing[event, stage]],
        )

    def _done(self, event: str, stage: int) -> _Law:
        """All is done by the horizon, for the makespan with what must follow on other devices."""
        times = self._stage
        way = 0
        if self._target is None and event == "G":
            chain = next(chain for chain in self._problem.placement.chains if stage in chain)
            way = max(
                times[s].up_at + times[s].gradient + times[s].weight
                for s in chain[: chain.index(stage) + 1]
            )
            way -= times[stage].up_at + times[stage].gradient
        number = len(self._problem.microbatches_of_stage(stage))

        def entries(place: int) -> Iterator[_Entry]:
            for count in self._doing[event, stage]:
                yield count, self._over(count, place, way // self._unit), -1

        return _Law(len(self._instants) - 1, lambda _: -number, entries)


def _nothing(_: int) -> int:
    return 0
