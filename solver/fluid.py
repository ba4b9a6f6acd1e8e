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

from collections.abc import Iterator, Sequence
from time import monotonic

from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Bound, Flow
from bubbleproof.solver.background import Stop
from bubbleproof.solver.flow_grid import Grid
from bubbleproof.solver.flow_rows import Rows
from bubbleproof.solver.flow_view import View
from bubbleproof.solver.times import LeastTimes

MOST_COLUMNS = 30_000
"""Larger linear programs are left alone: they would take minutes."""

_WINDOWS = (1.15, 2.3, 4.6, 1000.0)
"""How much of time is seen at its begin and at its end, in ways forth and back of a microbatch."""

_CLOSE = 0.0005
"""A bound this near to where its relaxation ends, as a part of the best, is not sharpened."""

_STEPS = (9, 13)
"""About how many instants there are at least and at most in the longest block's time."""

_FINER = (1, 2, 4)
"""How many times as many are tried, too."""


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
            fluids = [Fluid(problem, target, devices, windows, finer=finer) for finer in _FINER]
            yield from {fluid.step: fluid for fluid in fluids}.values()
            if fluids[0].whole(best):
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
    outer = tuple(dict.fromkeys(ends))
    if busiest not in outer and targets[-1] in (None, *outer):
        yield targets[-1], outer
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
    finer
        How many times as many instants are seen as on the coarsest grid.
    """

    def __init__(
        self,
        problem: Problem,
        target: int | None,
        devices: tuple[int, ...],
        windows: float,
        *,
        finer: int = 1,
    ) -> None:
        self.view = View(problem, target, devices)
        self.unit = self.view.unit
        self.longest = max(kind.ticks for kind in self.view.kinds) // self.unit
        self.step = self._step(finer)
        self.points = max(4, int(2 * windows * self.view.way / self.step))

    def _step(self, finer: int) -> int:
        """Return a time between instants that divides the blocks' times with little left over."""
        fewest, most = (finer * number for number in _STEPS)
        steps = range(max(1, self.longest // most), max(1, self.longest // fewest) + 1)
        ticks = [kind.ticks // self.unit for kind in self.view.kinds]
        return min(steps, key=lambda step: sum(time % step for time in ticks))

    def whole(self, horizon: int) -> bool:
        """Whether all of time is seen up to a horizon in ticks, but for one block's time."""
        return horizon // self.unit // self.step < self.points

    def columns(self, horizon: int) -> int:
        """Return about how many columns the program up to a horizon in ticks has."""
        instants = horizon // self.unit // self.step + 1
        halves = 1 if self.view.mirror is None else 2
        return len(self.view.kinds) * min(self.points, instants) // halves

    def bounds(self, best: int, known: int, deadline: float, stop: Stop) -> Iterator[Bound]:
        """Yield better and better bounds above a known one, up to the best objective.

        At first a middle is left out, however short, so that one program tells the least horizon.
        """
        horizon = known // self.unit
        for begin in (True, False) if self.whole(best) else (True,):
            tried, last, close = horizon, best // self.unit, _CLOSE * best / self.unit
            while last - horizon > close and not stop.asked and monotonic() < deadline:
                grid = self._grid(tried) if begin else Grid.whole(tried, step=self.step)
                found = self.refuted(grid, deadline - monotonic(), stop)
                if found is None:
                    last = tried
                    tried = (horizon + last) // 2
                    continue
                flow, hoped = found
                yield self._bound(flow)
                gain, horizon = flow.horizon + 1 - horizon, flow.horizon + 1
                if begin and horizon >= hoped:
                    if gain < close or not self.whole(horizon * self.unit):
                        break
                    tried = horizon
                else:
                    tried = min(hoped, last - 1) if begin else (horizon + last) // 2

    def _grid(self, horizon: int) -> Grid:
        return Grid.evenly(horizon, step=self.step, points=self.points, middle=self.longest)

    def refuted(self, grid: Grid, time_limit_s: float, stop: Stop) -> tuple[Flow, int] | None:
        """Return a flow that refutes the horizon of a grid, or a later one.

        With it comes the horizon that could be reached if what laws take from the other side of
        the middle were other instants. None if the fluid can end by the horizon, or if no proof
        that it cannot was found in time.
        """
        rows = Rows(self.view, grid)
        multipliers = rows.program.multipliers(time_limit_s, stop)
        if multipliers is None:
            return None
        length = rows.program.refuted(multipliers)
        if length < 0:
            return None
        if grid.middle is None or not length:
            return rows.flow(multipliers), grid.horizon
        longer = Rows(self.view, grid.longer(length))
        if longer.program.refuted(multipliers) >= 0:
            return longer.flow(multipliers), grid.horizon + length
        return rows.flow(multipliers), grid.horizon + length

    def _bound(self, flow: Flow) -> Bound:
        ticks = (flow.horizon + 1) * self.unit
        problem, target = self.view.problem, self.view.target
        if target is None:
            target = max(self.view.devices, key=self.view.times.least_work)
        work = self.view.times.least_work(target)
        terms = {"work": work, "idle that no flow of microbatches avoids": ticks - work}
        told = " + ".join(f"{problem.time(value)} {name}" for name, value in terms.items())
        seen = "device" if len(self.view.devices) == 1 else "devices"
        return Bound(
            name="fluid",
            ticks=ticks,
            text=f"device {target}: {told} = {problem.time(ticks)}, "
            f"seen on {seen} {', '.join(map(str, sorted(self.view.devices)))} together",
            device=target,
            terms=terms,
            flow=flow,
        )
