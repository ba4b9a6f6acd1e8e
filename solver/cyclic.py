"""The kernel of a schedule for any number of microbatches: what repeats, and how fast at best.

A cyclic (modulo) schedule starts op x of microbatch i at ``start[x] + i x T``. With ``start = T q
+ r``, ops of one device must not overlap in r modulo T, and what the device holds when x starts
follows from the q's and from which ops precede x in r: each op y has then run ``q[x] - q[y]``
times, and once more where ``r[y] < r[x]``. So for a given period T everything is linear.

Two arguments make the search small and its refusals proofs. A period that is possible stays so
when it is made longer (start + d x floor(start / T) has the period T + d). And the wait of any op
for its input may be taken to be shorter than T: else all that follows can come one period sooner,
which holds no more memory; so the q's are bounded.

Simplifications: no overlapped pairs, and all backwards in one form; so where pairs or both forms
are allowed, a refusal proves nothing. An op that takes no time is not kept from starting within
another, so that the rows of a kernel with such ops may need longer than its period.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from itertools import combinations, pairwise
from math import ceil, gcd
from time import monotonic

from ortools.sat.python import cp_model

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import Op, OpKind
from bubbleproof.schedules.problem import Problem
from bubbleproof.solver.cp_sat import set_limits
from bubbleproof.solver.kernel import Kernel, OpStarts
from bubbleproof.solver.limits import room
from bubbleproof.solver.modulo import greedy_starts
from bubbleproof.solver.scale import may_pair
from bubbleproof.solver.times import LeastTimes

_FIRST_SHARE = 0.2
_TRIAL_SHARE = 0.4
_GREEDY_STEPS = 100
"""Periods up to twice the least that are tried without search."""

_SOON = 8
"""How much more a sooner gradient is worth than a later W."""


class Verdict(Enum):
    """Why there are no starts: it is proven that there are none, or none were found in time."""

    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search for a kernel has found and proven.

    Parameters
    ----------
    kernel
        The one with the least period, None where none was found that is short enough.
    too_short
        No kernel with as many microbatches a period repeats in this time or less, in ticks, even if
        the time between its copies is a fraction or differs.
    """

    kernel: Kernel | None
    too_short: int


def least_period(problem: Problem) -> Fraction:
    """Return a number of ticks per round that no schedule stays below for many rounds.

    A round is the problem's microbatches. Each device's work takes that long, and so does what the
    round holds of its memory x time, by Little's law: the average of what is held is at most the
    limit.
    """
    once = LeastTimes(problem)
    twice = LeastTimes(replace(problem, microbatches=tuple(2 * n for n in problem.microbatches)))
    # The work that a further round adds: unlike in the first, all its F's may be in pairs.
    return max(
        max(Fraction(twice.least_work(device) - once.least_work(device)), _area(once, device))
        for device in range(problem.devices)
    )


def _area(times: LeastTimes, device: int) -> Fraction:
    limit = room(times.problem, device)
    if not limit:
        return Fraction(0)
    return Fraction(
        sum(
            part.microbatches * times.held(stage)
            for part in times.parts(device)
            for stage in part.stages
        ),
        limit,
    )


def find_kernel(
    problem: Problem, *, most: int | None, time_limit_s: float, workers: int, seed: int
) -> Outcome:
    """Look for the kernel with the least period, and prove how small no period can be.

    Parameters
    ----------
    problem
        A feasible problem with the microbatches of one period, few of each chain.
    most
        The longest period of use, in ticks; None: any.
    time_limit_s
        Wall time in seconds.
    workers, seed
        For CP-SAT.
    """
    deadline = monotonic() + time_limit_s
    fused = _fused(problem)
    unit = _unit(problem)
    least = least_period(problem)
    too_short = ceil(least) - 1
    first = low = max(1, ceil(least / unit))
    high = (_whole_way(problem) if most is None else most) // unit
    best = _greedy(problem, low, high, unit=unit, fused=fused, deadline=deadline)
    if best is not None:
        high = best[0] - 1
    trial = low
    while low <= high and monotonic() < deadline:
        model = _Modulo(problem, period=trial, unit=unit, fused=fused)
        share = _FIRST_SHARE if trial == first else _TRIAL_SHARE
        limit_s = share * (deadline - monotonic())
        found = model.first(limit_s, workers=workers, seed=seed)
        if isinstance(found, dict):
            best, high = (trial, found), trial - 1
        else:
            low = trial + 1
            if found is Verdict.NONE and _all_kernels(problem):
                # With a period in between, rounded starts would make one of this many units.
                too_short = max(too_short, trial * unit)
        trial = (low + high) // 2
    if best is None:
        return Outcome(None, too_short)
    period, start = best
    model = _Modulo(problem, period=period, unit=unit, fused=fused)
    start = model.settled(start, deadline - monotonic(), workers=workers, seed=seed)
    ticks = {op: begin * unit for op, begin in start.items()}
    return Outcome(Kernel(problem, period * unit, ticks), too_short)


def _greedy(
    problem: Problem, low: int, high: int, *, unit: int, fused: bool, deadline: float
) -> tuple[int, OpStarts] | None:
    """Return the first of many periods that needs no search, and its starts."""
    for period in range(low, high + 1, max(1, low // _GREEDY_STEPS)):
        start = greedy_starts(problem, period=period, unit=unit, fused=fused)
        if start is not None:
            return period, start
        if monotonic() > deadline:
            return None
    return None


def greedy_kernel(problem: Problem, *, deadline: float) -> Kernel | None:
    """Return a kernel that takes no search, for a problem with the microbatches of one period."""
    unit, fused = _unit(problem), _fused(problem)
    low = max(1, ceil(least_period(problem) / unit))
    high = _whole_way(problem) // unit
    found = _greedy(problem, low, high, unit=unit, fused=fused, deadline=deadline)
    if found is None:
        return None
    period, start = found
    ticks = {op: begin * unit for op, begin in start.items()}
    return Kernel(problem, period * unit, ticks)


def _fused(problem: Problem) -> bool:
    """Whether backwards run as B: where they must, or may and are faster so."""
    cost, backward = problem.cost, problem.backward
    faster = sum(cost.B) < sum(cost.I) + sum(cost.W)
    return backward is Backward.FUSED or (backward is Backward.FREE and faster)


def _all_kernels(problem: Problem) -> bool:
    """Whether the model leaves no kernel out."""
    return problem.backward is not Backward.FREE and not may_pair(problem)


def _whole_way(problem: Problem) -> int:
    """Return a period with which one microbatch after the other can pass."""
    times = LeastTimes(problem)
    return sum(
        number * sum(problem.cost.F[s] + max(problem.cost.B[s], times.backward[s]) for s in chain)
        + number * sum(problem.lag(a, b) + problem.lag(b, a) for a, b in pairwise(chain))
        for chain, number in zip(problem.placement.chains, problem.microbatches, strict=True)
    )


def _unit(problem: Problem) -> int:
    """Return the coarsest ticks that keep all times whole."""
    cost = problem.cost
    delays = [cost.transfer] if isinstance(cost.transfer, int) else sum(cost.transfer, ())
    kinds = [kind for kind in OpKind if problem.backward.allows(kind)]
    return gcd(*delays, *(ticks for kind in kinds for ticks in cost.of(kind))) or 1


class _Modulo:
    """The model for one period, in units, as are all times here."""

    def __init__(self, problem: Problem, *, period: int, unit: int, fused: bool) -> None:
        self._problem, self._unit, self._fused = problem, unit, fused
        self._period = period
        self._model = cp_model.CpModel()
        self._start: dict[Op, cp_model.LinearExpr] = {}
        self._turn: dict[Op, cp_model.IntVar] = {}
        self._phase: dict[Op, cp_model.IntVar] = {}
        self._before: dict[tuple[Op, Op], cp_model.LinearExpr] = {}
        """Whether the first op's phase is before the second's, for ops of one device."""
        self._backward = OpKind.BACKWARD if fused else OpKind.BACKWARD_INPUT
        self._add_starts()
        self._add_dependencies()
        self._add_exclusion()
        self._add_memory()

    def first(self, time_limit_s: float, *, workers: int, seed: int) -> OpStarts | Verdict:
        """Return starts with this period, or that there are none, or that none were found."""
        return self._solved(time_limit_s, workers=workers, seed=seed)

    def settled(self, start: OpStarts, time_limit_s: float, *, workers: int, seed: int) -> OpStarts:
        """Return starts with this period whose ramps are short, no worse than the given ones.

        Forwards and gradients as soon as can be, which makes the way of one microbatch short; W's
        late, so that they are left for when no forwards are.
        """
        if time_limit_s <= 0:
            return start
        weights = [op for op in self._start if op.kind is OpKind.BACKWARD_WEIGHT]
        gradients = [op for op in self._start if op.kind is self._backward]
        late = sum(self._start[w] - self._start[replace(w, kind=self._backward)] for w in weights)
        soon = sum(self._start[op] for op in gradients)
        self._model.minimize(_SOON * soon - late)
        for op, begin in start.items():
            self._model.add_hint(self._turn[op], begin // self._period)
            self._model.add_hint(self._phase[op], begin % self._period)
        found = self._solved(time_limit_s, workers=workers, seed=seed)
        return found if isinstance(found, dict) else start

    def _solved(self, time_limit_s: float, *, workers: int, seed: int) -> OpStarts | Verdict:
        solver = cp_model.CpSolver()
        set_limits(solver, time_limit_s=max(0.01, time_limit_s), workers=workers, seed=seed)
        match solver.solve(self._model):
            case cp_model.OPTIMAL | cp_model.FEASIBLE:
                start = {op: solver.value(begin) for op, begin in self._start.items()}
                first = min(start.values()) // self._period * self._period
                return {op: begin - first for op, begin in start.items()}
            case cp_model.INFEASIBLE:
                return Verdict.NONE
            case cp_model.MODEL_INVALID:
                raise AssertionError(f"invalid model: {self._model.validate()}")
            case _:
                return Verdict.UNKNOWN

    def _ticks(self, op: Op) -> int:
        return self._problem.duration(op) // self._unit

    def _kinds(self) -> tuple[OpKind, ...]:
        weights = () if self._fused else (OpKind.BACKWARD_WEIGHT,)
        return OpKind.FORWARD, self._backward, *weights

    def _add_starts(self) -> None:
        """A turn and a phase for each op, the first op of all in turn 0.

        The whole way of a microbatch has two waits for each stage, each shorter than the period,
        and one before each W. W's may wait longer where that is of use for the ramp.
        """
        problem, period = self._problem, self._period
        ways = max(
            sum(self._ticks(Op(s, kind, 0)) for s in chain for kind in self._kinds())
            + sum((problem.lag(a, b) + problem.lag(b, a)) // self._unit for a, b in pairwise(chain))
            for chain in problem.placement.chains
        )
        most = ceil(ways / period) + 4 * max(map(len, problem.placement.chains)) + 2
        for stage in range(problem.stages):
            for microbatch in problem.microbatches_of_stage(stage):
                for kind in self._kinds():
                    op = Op(stage, kind, microbatch)
                    self._turn[op] = self._model.new_int_var(0, most, f"turn[{op}]")
                    self._phase[op] = self._model.new_int_var(0, period - 1, f"phase[{op}]")
                    self._start[op] = period * self._turn[op] + self._phase[op]

    def _add_dependencies(self) -> None:
        """Forwards go down the chain, backwards up, W's follow; microbatches keep their order."""
        problem, model, start = self._problem, self._model, self._start
        for forward in [op for op in start if op.kind is OpKind.FORWARD]:
            stage, microbatch = forward.stage, forward.microbatch
            backward = Op(stage, self._backward, microbatch)
            following = problem.placement.following[stage]
            if following is None:
                model.add(start[backward] >= start[forward] + self._ticks(forward))
            else:
                after = Op(following, OpKind.FORWARD, microbatch)
                gradient = Op(following, self._backward, microbatch)
                there = problem.lag(stage, following) // self._unit
                back = problem.lag(following, stage) // self._unit
                model.add(start[after] >= start[forward] + self._ticks(forward) + there)
                model.add(start[backward] >= start[gradient] + self._ticks(gradient) + back)
            if not self._fused:
                weight = Op(stage, OpKind.BACKWARD_WEIGHT, microbatch)
                model.add(start[weight] >= start[backward] + self._ticks(backward))
        for op in start:
            of_stage = problem.microbatches_of_stage(op.stage)
            if op.microbatch + 1 in of_stage:
                model.add(start[replace(op, microbatch=op.microbatch + 1)] >= start[op])
            elif len(of_stage) > 1:
                model.add(start[replace(op, microbatch=of_stage[0])] + self._period >= start[op])

    def _add_exclusion(self) -> None:
        """A device runs one op at a time, and the last of a period ends before the next's first."""
        model, period = self._model, self._period
        for ops in self._of_devices():
            model.add_no_overlap(
                model.new_fixed_size_interval_var(begin, self._ticks(op), "")
                for op in ops
                for begin in (self._phase[op], self._phase[op] + period)
            )
            for one, other in combinations(ops, 2):
                first = model.new_bool_var(f"before[{one};{other}]")
                self._before[one, other], self._before[other, one] = first, 1 - first
                for ended, begun in ((one, other), (other, one)):
                    before = self._before[ended, begun]
                    ends = self._phase[ended] + self._ticks(ended)
                    model.add(ends <= self._phase[begun] + period * (1 - before))

    def _add_memory(self) -> None:
        """What is held when an op starts, and what it takes, fit into its device."""
        problem = self._problem
        for device, ops in enumerate(self._of_devices()):
            limit = room(problem, device)
            if limit is None:
                continue
            changes = {op: problem.change(op) for op in ops}
            unit = gcd(*(amount for change in changes.values() for amount in change)) or 1
            for op in ops:
                taken = changes[op][0] // unit
                if not taken:
                    continue
                held = [
                    (allocate - free) // unit * self._run_before(other, op)
                    for other, (allocate, free) in changes.items()
                ]
                self._model.add(sum(held) + taken <= limit // unit)

    def _run_before(self, other: Op, op: Op) -> cp_model.LinearExpr:
        """Return how often another op has run when an op starts, but for what all have in common.

        That is the op's own turn, which cancels out since what a microbatch takes it gives back.
        """
        if other == op:
            return -self._turn[other]
        return self._before[other, op] - self._turn[other]

    def _of_devices(self) -> Iterator[list[Op]]:
        device_of = self._problem.placement.device_of_stage
        for device in range(self._problem.devices):
            yield [op for op in self._start if device_of[op.stage] == device]
