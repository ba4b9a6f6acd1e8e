"""Tasks on machines with precedences and memory: the least makespan by CP-SAT, with a bound.

A task runs on one machine without a break; it waits for the ends of others plus a lag. Memory is a
cumulative constraint over holds, from when the first of some tasks starts until others have ended.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, gcd

from ortools.sat.python import cp_model

from bubbleproof.solver.cp_sat import set_limits

_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Task:
    """What runs on one machine.

    Parameters
    ----------
    machine
        Its machine.
    ticks
        Its duration, above 0.
    after
        What it waits for: an earlier task of the list, and ticks after that one's end.
    """

    machine: int
    ticks: int
    after: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """An amount on a device from the first start of some tasks to the last end of others."""

    device: int
    amount: int
    first: tuple[int, ...]
    last: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shop:
    """Tasks in an order in which each comes behind what it waits for, holds, and limits.

    Parameters
    ----------
    tasks, holds
        See ``Task`` and ``Hold``.
    limits
        For each device the most that its holds may come to; None for no limit.
    """

    tasks: tuple[Task, ...]
    holds: tuple[Hold, ...] = ()
    limits: tuple[int | None, ...] = ()

    def fits(self, starts: Sequence[int]) -> bool:
        """Whether what is held stays within the limits."""
        for device, limit in enumerate(self.limits):
            changes: list[tuple[int, int]] = []
            for hold in self.holds:
                if limit is not None and hold.device == device:
                    begin = min(starts[i] for i in hold.first)
                    end = max(starts[i] + self.tasks[i].ticks for i in hold.last)
                    changes += ((begin, hold.amount), (end, -hold.amount))
            # What ends at an instant frees before what starts then allocates.
            held = accumulate(change for _, change in sorted(changes))
            if limit is not None and max(held, default=0) > limit:
                return False
        return True

    def heads(self) -> list[int]:
        """Return for each task the least time from the start of all to its start."""
        heads: list[int] = []
        for task in self.tasks:
            heads.append(
                max((heads[i] + self.tasks[i].ticks + lag for i, lag in task.after), default=0)
            )
        return heads

    def tails(self) -> list[int]:
        """Return for each task the least time from its end to the end of all."""
        tails = [0] * len(self.tasks)
        for index in reversed(range(len(self.tasks))):
            task = self.tasks[index]
            for i, lag in task.after:
                tails[i] = max(tails[i], lag + task.ticks + tails[index])
        return tails


@dataclass(frozen=True, slots=True)
class Load:
    """A bound on the makespan: a machine's work between the least ways to and from its tasks.

    Parameters
    ----------
    machine
        The machine; None where one task's ways are longer than any machine's work.
    head, work, tail
        Ticks before, of, and after the work; their sum is the bound.
    """

    machine: int | None
    head: int
    work: int
    tail: int

    @property
    def ticks(self) -> int:
        """The bound."""
        return self.head + self.work + self.tail


def load_bound(shop: Shop) -> Load:
    """Return the largest bound by one machine's work, or by one task with its ways.

    For each machine those of its tasks with a head of at least h and a tail of at least t run one
    after the other between h and the end less t: all h and t are tried (the preemptive bound of
    one machine needs both ends of such windows).
    """
    heads, tails = shop.heads(), shop.tails()
    best = Load(None, 0, 0, 0)
    for head, task, tail in zip(heads, shop.tasks, tails, strict=True):
        if head + task.ticks + tail > best.ticks:
            best = Load(None, head, task.ticks, tail)
    by_machine: dict[int, list[int]] = {}
    for index, task in enumerate(shop.tasks):
        by_machine.setdefault(task.machine, []).append(index)
    for machine, indices in by_machine.items():
        latest_first = sorted(indices, key=lambda i: -tails[i])
        for head in {heads[i] for i in indices}:
            work = 0
            for i in latest_first:
                if heads[i] >= head:
                    work += shop.tasks[i].ticks
                    if head + work + tails[i] > best.ticks:
                        best = Load(machine, head, work, tails[i])
    return best


@dataclass(frozen=True, slots=True)
class Solved:
    """Starts of all tasks in ticks, their makespan, and a bound on any makespan."""

    starts: tuple[int, ...]
    makespan: int
    bound: int


def makespan_of(shop: Shop, starts: Sequence[int]) -> int:
    """Return the last end."""
    return max(start + task.ticks for start, task in zip(starts, shop.tasks, strict=True))


def in_turn(shop: Shop, priority: Sequence[int]) -> tuple[int, ...]:
    """Return starts of one task after the other: each machine keeps the order of the priority.

    Without regard to limits. The priority must order each task behind what it waits for.
    """
    starts = [0] * len(shop.tasks)
    free: dict[int, int] = {}
    for index in priority:
        task = shop.tasks[index]
        ready = max((starts[i] + shop.tasks[i].ticks + lag for i, lag in task.after), default=0)
        starts[index] = max(ready, free.get(task.machine, 0))
        free[task.machine] = starts[index] + task.ticks
    return tuple(starts)


def solve_shop(
    shop: Shop,
    hint: Sequence[int],
    *,
    time_limit_s: float,
    workers: int,
    seed: int = 0,
    least: int = 0,
    on_starts: Callable[[tuple[int, ...]], None] | None = None,
) -> Solved:
    """Return the best starts found within a time and what is proven of them.

    Ctrl-C ends the search; what was found so far has been told.

    Parameters
    ----------
    shop
        What is to be done.
    hint
        Starts that keep all constraints; only ones at least as good are searched.
    time_limit_s, workers, seed
        Of the search.
    least
        A bound that is known, in ticks.
    on_starts
        Is told every better starts.

    Raises
    ------
    OverflowError
        If the times have too many digits for CP-SAT.
    """
    tasks = shop.tasks
    unit = gcd(*(task.ticks for task in tasks), *(lag for task in tasks for _, lag in task.after))
    horizon = makespan_of(shop, hint) // unit
    hinted = [start // unit for start in hint]
    if horizon > _LARGEST:
        raise OverflowError("the times have too many digits for the exact model")
    model = cp_model.CpModel()
    ticks = [task.ticks // unit for task in tasks]
    starts = [
        model.new_int_var(head // unit, max(head // unit, horizon - tail // unit - t), "")
        for head, tail, t in zip(shop.heads(), shop.tails(), ticks, strict=True)
    ]
    for index, task in enumerate(tasks):
        for before, lag in task.after:
            model.add(starts[index] >= starts[before] + ticks[before] + lag // unit)
    machines: dict[int, list[cp_model.IntervalVar]] = {}
    for task, start, t in zip(tasks, starts, ticks, strict=True):
        interval = model.new_fixed_size_interval_var(start, t, "")
        machines.setdefault(task.machine, []).append(interval)
    for intervals in machines.values():
        model.add_no_overlap(intervals)
    _add_memory(model, shop, starts, ticks, horizon)
    makespan = model.new_int_var(ceil(least / unit), horizon, "makespan")
    for start, t, tail in zip(starts, ticks, shop.tails(), strict=True):
        model.add(makespan >= start + t + tail // unit)
    model.minimize(makespan)
    for start, value in zip(starts, hinted, strict=True):
        model.add_hint(start, value)
    model.add_hint(makespan, horizon)
    solver = cp_model.CpSolver()
    set_limits(solver, time_limit_s=time_limit_s, workers=workers, seed=seed)
    with ThreadPoolExecutor(1) as pool:
        # In a thread of its own, so that Ctrl-C reaches this one.
        running = pool.submit(solver.solve, model, _Reporter(starts, unit, on_starts))
        try:
            status = running.result()
        except KeyboardInterrupt:
            solver.stop_search()
            raise
    if status in (cp_model.MODEL_INVALID, cp_model.INFEASIBLE):
        raise AssertionError(f"the model refuses the starts that it was given: {model.validate()}")
    bound = max(least, ceil(solver.best_objective_bound - 1e-6) * unit)
    found = tuple(hint)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        found = tuple(solver.value(start) * unit for start in starts)
    return Solved(found, makespan_of(shop, found), bound)


def _add_memory(
    model: cp_model.CpModel,
    shop: Shop,
    starts: Sequence[cp_model.IntVar],
    ticks: Sequence[int],
    horizon: int,
) -> None:
    """What is held fits into each device at any time."""

    def extreme(events: list[cp_model.LinearExprT], *, latest: bool) -> cp_model.LinearExprT:
        if len(events) == 1:
            return events[0]
        edge = model.new_int_var(0, horizon, "")
        if latest:
            model.add_max_equality(edge, events)
        else:
            model.add_min_equality(edge, events)
        return edge

    for device, limit in enumerate(shop.limits):
        held = [hold for hold in shop.holds if hold.device == device]
        if limit is None or not held:
            continue
        intervals: list[cp_model.IntervalVar] = []
        for hold in held:
            first = extreme([starts[i] for i in hold.first], latest=False)
            last = extreme([starts[i] + ticks[i] for i in hold.last], latest=True)
            size = model.new_int_var(0, horizon, "")
            intervals.append(model.new_interval_var(first, size, last, ""))
        unit = gcd(*(hold.amount for hold in held))
        model.add_cumulative(intervals, [hold.amount // unit for hold in held], limit // unit)


class _Reporter(cp_model.CpSolverSolutionCallback):
    """Hands on every better starts."""

    def __init__(
        self,
        starts: Sequence[cp_model.IntVar],
        unit: int,
        on_starts: Callable[[tuple[int, ...]], None] | None,
    ) -> None:
        super().__init__()
        self._starts = starts
        self._unit = unit
        self._on_starts = on_starts

    def on_solution_callback(self) -> None:
        """Hand on the starts of the new best solution."""
        if self._on_starts is not None:
            self._on_starts(tuple(self.value(start) * self._unit for start in self._starts))
