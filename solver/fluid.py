"""A bound from several devices at once: microbatches as a fluid that flows through them.

For each kind of block, as F of stage 2, let N(t) be how many have started by time t. Whatever the
order of a schedule is, these counts keep linear laws: what needs an input has started no oftener
than that input was there by then; at any instant the blocks in progress on a device are at most
one; what they hold fits its memory. Counts that need not be whole numbers can be searched by
linear programming. If even such a fluid cannot do all of the work by some time, no schedule can.
It sees what no device alone shows: that the devices at both ends of a chain wait for each other
while it fills and drains, each with its own memory.

A few devices give nearly all of the bound, the others being left out but for the time that it
takes to pass them. Time is a grid of instants: where the grid has no point, the next one is taken
on the side that makes a law weaker. A long middle can be left out of the grid, so that the program
does not grow with the number of microbatches: there, each device is only held to be busy no longer
than the middle is. With the span of a device as the objective, time counts from its first start,
and what comes before it in the chain may have run before. Where a problem is its own mirror image,
a fluid may be averaged with its image, so one half of it is enough to know.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise, product
from math import gcd
from time import monotonic

import numpy as np

from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.quantity import LARGEST
from bubbleproof.schedules.schedule import Bound, Flow
from bubbleproof.solver.limits import room
from bubbleproof.solver.linear import SCALE, Entries, Ints, LinearProgram, Stop
from bubbleproof.solver.mirror import Mirror, mirror_of
from bubbleproof.solver.times import LeastTimes

MOST_COLUMNS = 30_000
"""Larger linear programs are left alone: they would take minutes."""

_WINDOWS = (1.15, 2.3, 4.6, 1000.0)
"""How much of time is seen at its begin and at its end, in ways forth and back of a microbatch."""

_GOAL = 0.99
"""What part of the best objective is tried first as a bound."""

_CLOSE = 0.0005
"""A bound this near to where its relaxation ends, as a part of the best, is not sharpened."""

_OF_DEVICE = ("exclusive", "memory", "time", "busy at least", "busy at most")
"""The laws of one device; the others are of stages."""

_FINEST_STEPS = 12
"""Instants within the longest block where its times have no large common divisor."""


class Event(Enum):
    """What a block does to a microbatch on a stage."""

    FORWARD = "F"
    GRADIENT = "G"
    WEIGHT = "W"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of block of a device; blocks of one kind are counted together.

    Attributes
    ----------
    ticks
        Its duration.
    does
        What it does, each for a stage.
    allocate, free
        What it takes at its start and gives back at its end, in grains.
    """

    device: int
    ticks: int
    does: tuple[tuple[int, Event], ...]
    allocate: int
    free: int

    @property
    def name(self) -> str:
        """What it does, as ``2F`` or ``2G2W``."""
        return "".join(f"{stage}{event.value}" for stage, event in self.does)


def kinds(problem: Problem, device: int) -> Iterator[Kind]:
    """Yield the kinds of blocks that a device may run."""
    cost, memory, backward = problem.cost, problem.memory, problem.backward
    stages = problem.placement.stages_of_device[device]
    for s in stages:
        forward, whole = ((s, Event.FORWARD),), ((s, Event.GRADIENT), (s, Event.WEIGHT))
        yield Kind(device, cost.F[s], forward, *memory.F[s])
        if backward.allows(OpKind.BACKWARD_INPUT):
            yield Kind(device, cost.I[s], whole[:1], *memory.I[s])
            yield Kind(device, cost.W[s], whole[1:], *memory.W[s])
        if backward.allows(OpKind.BACKWARD):
            yield Kind(device, cost.B[s], whole, *memory.B[s])
    ticks = cost.pair[device]
    if ticks is None or not backward.allows(OpKind.BACKWARD):
        return
    for f, b in product(stages, stages):
        does = ((f, Event.FORWARD), (b, Event.GRADIENT), (b, Event.WEIGHT))
        (first, second), (third, fourth) = memory.F[f], memory.B[b]
        yield Kind(device, ticks, does, first + third, second + fourth)


def fluid_bounds(
    problem: Problem, best: int, known: int, deadline: float, stop: Stop
) -> Iterator[Bound]:
    """Yield better and better bounds until the deadline, or until nothing more can be expected.

    Parameters
    ----------
    problem
        A feasible problem.
    best
        The objective of a known schedule, in ticks.
    known
        A bound that is known, in ticks.
    deadline
        ``time.monotonic()`` at which to give up.
    stop
        Ends the search from another thread.
    """
    for fluid in sorted(_fluids(problem, best), key=lambda fluid: fluid.columns(best)):
        if fluid.columns(best) > MOST_COLUMNS or known >= best:
            return
        for bound in fluid.bounds(best, known, deadline, stop):
            known = bound.ticks
            yield bound
        if stop.asked or monotonic() > deadline:
            return


def _fluids(problem: Problem, best: int) -> Iterator["Fluid"]:
    """Yield what to look at: which devices, and how much of time.

    A microbatch's way forth and back is how long it takes until all devices have filled, and about
    as long they drain. Windows somewhat longer than that give most of the bound.
    """
    for target, devices in _views(problem):
        for windows in _WINDOWS:
            fluid = Fluid(problem, target, devices, windows)
            yield fluid
            if fluid.whole(best):
                break


def _views(problem: Problem) -> Iterator[tuple[int | None, tuple[int, ...]]]:
    """Yield which device's span to bound, or None for the makespan, and which devices to look at.

    A chain is held up most between its first device and the one that it reaches last; chains that
    meet hold each other up in the middle, too.
    """
    times = LeastTimes(problem)
    ends: list[int] = []
    for chain, microbatches in zip(problem.placement.chains, problem.microbatches, strict=True):
        reached = dict.fromkeys(problem.placement.device_of_stage[s] for s in chain)
        if microbatches and reached:
            ends += [next(iter(reached)), next(reversed(reached))]
    everything = tuple(device for device in range(problem.devices) if times.parts(device))
    busiest = max(everything, key=times.least_work)
    few = tuple(dict.fromkeys((busiest, *ends)))
    targets: Sequence[int | None] = (None,)
    if problem.objective is Objective.SPAN:
        targets = tuple(dict.fromkeys((busiest, ends[0])))
    meeting = (device for device in _crossings(problem) if device in everything)
    few = tuple(dict.fromkeys((*few, *meeting)))
    for target in targets:
        yield target, few
    if len(everything) > len(few):
        for target in targets:
            yield target, everything


def _crossings(problem: Problem) -> Iterator[int]:
    """Yield the devices on which chains are half way, where several meet."""
    if len(problem.microbatches) > 1:
        for chain in problem.placement.chains:
            for place in ((len(chain) - 1) // 2, len(chain) // 2):
                yield problem.placement.device_of_stage[chain[place]]


class Fluid:
    """The relaxation for the span of one device, or the makespan, seen on some devices.

    Parameters
    ----------
    target
        The device whose span is bounded; None for the makespan.
    devices
        The devices that are looked at.
    windows
        How much of time is seen at its begin and at its end, in ways forth and back.
    """

    def __init__(
        self, problem: Problem, target: int | None, devices: tuple[int, ...], windows: float
    ) -> None:
        self.problem, self.target, self.devices = problem, target, devices
        self.times = LeastTimes(problem)
        self.kinds = [kind for device in devices for kind in kinds(problem, device)]
        self.unit = self._unit()
        longest = max(kind.ticks for kind in self.kinds) // self.unit
        self.step = max(1, longest // _FINEST_STEPS)
        way = max(self.times.turnaround(chain[0]) for chain in problem.placement.chains if chain)
        self.points = max(4, int(2 * windows * way / (self.unit * self.step)))
        self.early = self._early()
        self.mirror = self._mirror()
        placement = problem.placement
        self.chains = [
            [s for s in chain if placement.device_of_stage[s] in devices]
            for chain, microbatches in zip(placement.chains, problem.microbatches, strict=True)
            if microbatches
        ]
        if self.mirror is not None:
            del self.chains[1:]
        self.stages = {s for chain in self.chains for s in chain}

    def _mirror(self) -> Mirror | None:
        """Return the mirror in which what is looked at is its own image."""
        mirror = mirror_of(self.problem) if self.target is None else None
        if mirror is None or {mirror.device[d] for d in self.devices} != set(self.devices):
            return None
        return mirror

    def image(self, does: tuple[tuple[int, Event], ...]) -> tuple[tuple[int, Event], ...]:
        """Return what the image of a kind does."""
        if self.mirror is None:
            return does
        return tuple((self.mirror.stage[stage], event) for stage, event in does)

    def law_image(self, law: str) -> str:
        """Return the name of a law's image."""
        mirror = self.mirror
        if mirror is None:
            return law
        name, _, where = law.rpartition(" ")
        if name in _OF_DEVICE:
            return f"{name} {mirror.device[int(where)]}"
        return re.sub(r"\d+", lambda stage: str(mirror.stage[int(stage[0])]), law)

    def _unit(self) -> int:
        """Return what divides every time of the problem, in ticks."""
        cost, lag = self.problem.cost, self.problem.lag
        ticks = [*cost.F, *cost.I, *cost.W, *cost.B]
        ticks += [pair for pair in cost.pair if pair is not None]
        for chain in self.problem.placement.chains:
            ticks += [time for a, b in pairwise(chain) for time in (lag(a, b), lag(b, a))]
        return gcd(*ticks) or 1

    def _early(self) -> set[tuple[int, Event]]:
        """Return what may have been done before the target's first start."""
        if self.target is None:
            return set()
        early: set[tuple[int, Event]] = set()
        for number, chain in enumerate(self.problem.placement.chains):
            first = self.times.first_on(self.target, number)
            if first is None:
                early |= set(product(chain, Event))
            else:
                early |= {(stage, Event.FORWARD) for stage in chain[: chain.index(first)]}
        return early

    def whole(self, horizon: int) -> bool:
        """Whether all of time is seen up to a horizon in ticks."""
        return horizon // self.unit // self.step < self.points

    def columns(self, horizon: int) -> int:
        """Return about how many columns the program up to a horizon in ticks has."""
        instants = horizon // self.unit // self.step + 1
        halves = 1 if self.mirror is None else 2
        return len(self.kinds) * min(self.points, instants) // halves

    def bounds(self, best: int, known: int, deadline: float, stop: Stop) -> Iterator[Bound]:
        """Yield better and better bounds above a known one, up to the best objective."""
        least, most = known // self.unit - 1, best // self.unit
        undone: list[tuple[int, float]] = []
        tried = int(_GOAL * most)
        while most - least > 1:
            tried = min(max(tried, least + 1), most - 1)
            found = self.missing(tried, deadline - monotonic(), stop)
            if found is None:
                return
            missing, flow = found
            if missing > 0:
                yield self._bound((tried + 1) * self.unit, flow)
                least = tried
                undone = [*undone[-1:], (tried, missing)]
            else:
                most = tried
                if (most - least) * self.unit < _CLOSE * best:
                    return
            tried = _next(undone, self.unit)
            if not least < tried < most:
                tried = (least + most) // 2

    def _bound(self, ticks: int, flow: Flow) -> Bound:
        problem = self.problem
        target = self.target
        if target is None:
            target = max(self.devices, key=self.times.least_work)
        work = self.times.least_work(target)
        terms = {"work": work, "idle that no flow of microbatches avoids": ticks - work}
        told = " + ".join(f"{problem.time(value)} {name}" for name, value in terms.items())
        seen = "device" if len(self.devices) == 1 else "devices"
        return Bound(
            name="fluid",
            ticks=ticks,
            text=f"device {target}: {told} = {problem.time(ticks)}, "
            f"seen on {seen} {', '.join(map(str, sorted(self.devices)))} together",
            device=target,
            terms=terms,
            flow=flow,
        )

    def missing(self, horizon: int, time_limit_s: float, stop: Stop) -> tuple[float, Flow] | None:
        """Return how much must be left undone at a time, with its proof; None if it is stopped.

        Parameters
        ----------
        horizon
            In units. Each event that is left undone counts with its duration.
        """
        if stop.asked or time_limit_s <= 0:
            return None
        rows = _Rows(self, horizon)
        program, needed = rows.program()
        most = program.most(time_limit_s, stop)
        if most is None:
            return None
        return float(needed - most.worth), rows.flow(most.multipliers)


def _next(undone: Sequence[tuple[int, float]], unit: int) -> int:
    """Return up to when nothing might be left undone: the last two such times go on in a line."""
    if not undone:
        return -1
    tried, missing = undone[-1]
    slope = 0.5 * unit
    if len(undone) == 2 and undone[0][1] > missing:
        slope = (undone[0][1] - missing) / (tried - undone[0][0])
    return tried + max(1, int(0.999 * missing / slope))


class _Rows:
    """The linear program of a fluid up to a horizon; all times in units."""

    def __init__(self, fluid: Fluid, horizon: int) -> None:
        self._fluid, self._problem = fluid, fluid.problem
        self._horizon = horizon
        self._lp = LinearProgram()
        self._laws: list[tuple[str, Ints]] = []
        self._worth: dict[str, int] = {}
        self._grid, self._gap = _grid(horizon, fluid.step, fluid.points)
        self._at = self._grid[1:]
        self._row = np.arange(len(self._at), dtype=np.int64)
        self._kinds = fluid.kinds
        self._ticks = [kind.ticks // fluid.unit for kind in fluid.kinds]
        self._own: list[bool] = []
        """For each kind whether it has columns of its own, not those of its image."""
        self._curves = self._add_curves()
        self._doing: dict[tuple[int, Event], list[int]] = {}
        for index, kind in enumerate(fluid.kinds):
            for event in kind.does:
                self._doing.setdefault(event, []).append(index)

    def program(self) -> tuple[LinearProgram, int]:
        """Return the program and what doing everything is worth."""
        for kind, curve, own in zip(self._kinds, self._curves, self._own, strict=True):
            rise = [self._entries(curve[:-1], 1), self._entries(curve[1:], -1)]
            if own:
                self._add(f"rising {kind.name}", rise, 0)
        for chain in self._fluid.chains:
            self._add_chain(chain)
        self._add_numbers()
        mirror = self._fluid.mirror
        for device in self._fluid.devices:
            if mirror is not None and device > mirror.device[device]:
                continue
            mine = [i for i, kind in enumerate(self._kinds) if kind.device == device]
            self._add_exclusion(device, mine)
            self._add_long_run(device, mine)
            self._add_memory(device, mine)
        return self._lp, self._reward()

    def _add_curves(self) -> list[Ints]:
        known: dict[tuple[tuple[int, Event], ...], Ints] = {}
        for kind in self._kinds:
            curve = known.get(self._fluid.image(kind.does))
            self._own.append(curve is None)
            if curve is None:
                curve = self._lp.add_columns(self._most_started(kind))
            known[kind.does] = curve
        return [known[kind.does] for kind in self._kinds]

    def _add_numbers(self) -> None:
        """Each event happens once for each microbatch, whichever kinds of block do it."""
        row, end = np.zeros(1, np.int64), self._row[-1:] + 1
        for (stage, event), indices in self._doing.items():
            if stage in self._fluid.stages and len(indices) > 1:
                number = np.array([len(self._problem.microbatches_of_stage(stage))], np.int64)
                entries = [(row, self._curves[i][-1:], row + 1) for i in indices]
                self._add_at(f"number {stage}{event.value}", end, entries, number)

    def _most_started(self, kind: Kind) -> Ints:
        """Return how many blocks of a kind can have started by each instant, at most."""
        problem, fluid = self._problem, self._fluid
        count = min(len(problem.microbatches_of_stage(stage)) for stage, _ in kind.does)
        most = np.full(len(self._grid), count, np.int64)
        if not fluid.early.issuperset(kind.does):
            most[0] = 0
        stage, event = kind.does[0]
        if fluid.target is None and event is Event.FORWARD:
            lead = fluid.times.up(fluid.times.first_in_chain(stage), stage) // fluid.unit
            most[self._grid < lead] = 0
        return most

    def _after(self, time: Ints) -> Ints:
        """Return the places in the grid of the first instants that are no earlier."""
        place = np.searchsorted(self._grid, np.maximum(time, -1), side="left")
        return np.minimum(place, len(self._grid) - 1).astype(np.int64)

    def _until(self, time: Ints) -> Ints:
        """Return the places in the grid of the last instants that are no later."""
        place = np.searchsorted(self._grid, np.maximum(time, -1), side="right") - 1
        return place.astype(np.int64)

    def _entries(self, columns: Ints, value: int) -> Entries:
        return self._row, columns, np.full(len(self._row), value, np.int64)

    def _started(self, index: int, value: int) -> Entries:
        return self._entries(self._curves[index][1:], value)

    def _over(self, index: int, value: int, lag: int = 0) -> Entries:
        """Return the entries of how many of a kind are over for a time."""
        places = self._after(self._at - self._ticks[index] - lag)
        return self._entries(self._curves[index][places], value)

    def _add(self, law: str, entries: Sequence[Entries], limit: int) -> None:
        if entries:
            self._add_at(law, self._row + 1, entries, np.full(len(self._row), limit, np.int64))

    def _add_at(self, law: str, places: Ints, entries: Sequence[Entries], limit: Ints) -> None:
        self._lp.add_rows(entries, limit)
        self._laws.append((law, places))

    def _add_chain(self, chain: Sequence[int]) -> None:
        """What needs an input has started no oftener than the input was there."""
        times, unit = self._fluid.times, self._fluid.unit
        for a, b in pairwise(chain):
            if (b, Event.FORWARD) not in self._fluid.early:
                lag = (times.up(a, b) - times.forward[a]) // unit
                self._add_order(f"forward {a} {b}", (a, Event.FORWARD), (b, Event.FORWARD), lag)
            lag = (times.down(b, a) - times.gradient[b]) // unit
            self._add_order(f"gradient {b} {a}", (b, Event.GRADIENT), (a, Event.GRADIENT), lag)
        for last in chain[-1:]:
            lag = (times.turnaround(last) - times.forward[last]) // unit
            self._add_order(f"turn {last}", (last, Event.FORWARD), (last, Event.GRADIENT), lag)
        for stage in chain:
            alone = [
                [i for i in self._doing[stage, event] if self._kinds[i].does == ((stage, event),)]
                for event in (Event.GRADIENT, Event.WEIGHT)
            ]
            if alone[1]:
                over = [self._over(i, -1) for i in alone[0]]
                self._add(f"weight {stage}", [self._started(i, 1) for i in alone[1]] + over, 0)

    def _add_order(
        self, law: str, before: tuple[int, Event], after: tuple[int, Event], lag: int
    ) -> None:
        over = [self._over(i, -1, lag) for i in self._doing[before]]
        self._add(law, [self._started(i, 1) for i in self._doing[after]] + over, 0)

    def _add_exclusion(self, device: int, mine: Sequence[int]) -> None:
        """At any instant at most one block of a device is in progress."""
        busy = [i for i in mine if self._ticks[i]]
        entries = [self._started(i, 1) for i in busy] + [self._over(i, -1) for i in busy]
        self._add(f"exclusive {device}", entries, 1)

    def _add_long_run(self, device: int, mine: Sequence[int]) -> None:
        """From one instant to a later one a device is busy no longer than the time between."""
        longest = max(self._ticks[i] for i in mine)
        if self._fluid.step > 1:
            first, last = 0, len(self._grid) - 1
        elif self._gap is not None:
            until, since = self._gap
            first, last = map(int, self._after(np.array([until, since + longest], np.int64)))
        else:
            return
        marks = np.arange(first, last + 1, dtype=np.int64)
        seen = marks if self._fluid.step > 1 else np.array([first, last], np.int64)
        most = sum(
            self._ticks[i] * len(self._problem.microbatches_of_stage(self._kinds[i].does[0][0]))
            for i in mine
        )
        busy = self._lp.add_columns(np.full(len(marks), most, np.int64))
        rows, ones = np.arange(len(marks) - 1), np.ones(len(marks) - 1, np.int64)
        self._add_at(
            f"time {device}",
            marks[1:],
            [(rows, busy[1:], ones), (rows, busy[:-1], -ones)],
            np.diff(self._grid[marks]),
        )
        # How long a device was busy until t is for each kind the sum of N over the last of its
        # duration, which lies between the sums of N at the instants before and behind.
        rows, ones = np.arange(len(seen)), np.ones(len(seen), np.int64)
        for law, behind, sign in (("busy at least", False, 1), ("busy at most", True, -1)):
            entries: list[Entries] = [(rows, busy[seen - marks[0]], -sign * ones)]
            for i in mine:
                for row, place, number in self._moments(seen, self._ticks[i], behind=behind):
                    entries.append((row, self._curves[i][place], sign * number))
            self._add_at(f"{law} {device}", seen, entries, 0 * ones)

    def _moments(self, places: Ints, ticks: int, *, behind: bool) -> Iterator[Entries]:
        """Yield how many of the last moments up to some instants have which instants before them.

        Parameters
        ----------
        places
            The instants, as places in the grid.
        ticks
            How many moments.
        behind
            Whether the first instant that is no earlier stands for a moment, not the last one
            that is no later.
        """
        last = self._grid[places]
        first = last - ticks + 1
        begin = np.append(-LARGEST, self._grid[:-1] + 1 if behind else self._grid[1:])
        end = self._grid if behind else np.append(self._grid[1:] - 1, self._grid[-1])
        row = np.arange(len(places))
        while ticks and len(row):
            number = np.minimum(end[places], last) - np.maximum(begin[places], first) + 1
            yield row, places, number
            more = begin[places] > first
            row, places, first, last = (each[more] for each in (row, places - 1, first, last))

    def _add_memory(self, device: int, mine: Sequence[int]) -> None:
        """What is allocated and not yet freed fits into the device."""
        limit = room(self._problem, device)
        changes = [(i, self._kinds[i].allocate, self._kinds[i].free) for i in mine]
        grain = gcd(*(amount for _, *both in changes for amount in both))
        if limit is None or not grain:
            return
        entries = [self._started(i, taken // grain) for i, taken, _ in changes if taken]
        entries += [self._over(i, -freed // grain) for i, _, freed in changes if freed]
        self._add(f"memory {device}", entries, limit // grain)

    def _reward(self) -> int:
        """Reward each event that is over by the horizon with its duration; return the sum of all.

        For the makespan the way back to the first stage is to be over as well.
        """
        fluid, cost = self._fluid, self._problem.cost
        needed = 0
        for (stage, event), indices in self._doing.items():
            if fluid.target not in (None, self._kinds[indices[0]].device):
                continue
            if stage not in fluid.stages:
                continue
            count = len(self._problem.microbatches_of_stage(stage))
            after, worth = 0, cost.F[stage]
            if event is Event.GRADIENT:
                worth = fluid.times.gradient[stage]
                after = fluid.times.way_back(stage, None) if fluid.target is None else 0
            elif event is Event.WEIGHT:
                worth = cost.W[stage]
            worth = max(1, worth)
            needed += worth * count
            self._worth[f"done {stage}{event.value}"] = worth
            for i in indices:
                end = self._horizon - self._ticks[i] - after // fluid.unit
                place = int(self._after(np.array([end], np.int64))[0])
                self._lp.reward(int(self._curves[i][place]), worth)
        return needed

    def flow(self, multipliers: Sequence[int]) -> Flow:
        """Return what the multipliers of the program's rows prove."""
        fluid, horizon = self._fluid, self._horizon
        end = len(self._at)
        found: dict[str, tuple[tuple[int, int], ...]] = {
            law: ((end, worth * SCALE),) for law, worth in self._worth.items()
        }
        first = 0
        for law, places in self._laws:
            # A law that is its own image stands for the two halves of what it is about.
            twice = 1 + (fluid.mirror is not None and fluid.law_image(law) == law)
            values = multipliers[first : first + len(places)]
            pairs = zip(places.tolist(), values, strict=True)
            found[law] = tuple((place, twice * value) for place, value in pairs if value)
            first += len(places)
        found |= {fluid.law_image(law): pairs for law, pairs in found.items()}
        return Flow(
            target=fluid.target,
            devices=fluid.devices,
            unit=fluid.unit,
            horizon=horizon,
            instants=tuple(_evenly(self._at.tolist())),
            multipliers={law: pairs for law, pairs in found.items() if pairs},
        )


def _grid(horizon: int, step: int, points: int) -> tuple[Ints, tuple[int, int] | None]:
    """Return the instants that are seen and the middle that is not, if there is one.

    The first instant, -1, stands for all that came before.
    """
    times = np.arange(horizon % step, horizon + 1, step, dtype=np.int64)
    if times[0]:
        times = np.concatenate((np.zeros(1, np.int64), times))
    gap = None
    if len(times) > points:
        edge = points // 2
        gap = (int(times[edge - 1]), int(times[len(times) - edge]))
        times = np.concatenate((times[:edge], times[len(times) - edge :]))
    return np.concatenate((np.full(1, -1, np.int64), times)), gap


def _evenly(instants: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the runs of instants at the same distance: the first, the last, and the distance."""
    first, count = 0, len(instants)
    for place in range(1, count + 1):
        step = instants[first + 1] - instants[first] if first + 1 < count else 1
        if place == count or (place > first + 1 and instants[place] - instants[place - 1] != step):
            yield instants[first], instants[place - 1], step if place > first + 1 else 1
            first = place
