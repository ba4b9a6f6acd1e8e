"""A cyclic schedule for a given period without search: each op as soon as its device is free.

Forwards go down the chain, then backwards up, each followed by its W. A device that is taken at a
phase of the period is taken in every period. What comes out waits little, so it holds little
memory; whether it fits is looked at only at the end.
"""

from collections.abc import Sequence

from bubbleproof.schedules.ops import Op, OpKind
from bubbleproof.schedules.problem import Problem
from bubbleproof.solver.kernel import OpStarts
from bubbleproof.solver.limits import room


def greedy_starts(problem: Problem, *, period: int, unit: int, fused: bool) -> OpStarts | None:
    """Return starts with this period, or None where this way finds none.

    Parameters
    ----------
    problem
        A problem with the microbatches of one period.
    period
        In units, as are the starts.
    unit
        Ticks in one.
    fused
        Whether backwards run as B.
    """
    for in_turn in (False, True):
        table = _filled(problem, period, unit, fused, in_turn=in_turn)
        if table is not None and table.fits():
            return table.start
    return None


def _filled(
    problem: Problem, period: int, unit: int, fused: bool, *, in_turn: bool
) -> "_Table | None":
    """Place the ops of one period; None where one finds no free time.

    Microbatches spread over the period and chains begin together; or, in turn, each microbatch
    begins when all before it are done, which holds least memory where chains meet on a device.
    """
    table = _Table(problem, period, unit)
    backward = OpKind.BACKWARD if fused else OpKind.BACKWARD_INPUT
    done = 0
    for number, chain in enumerate(problem.placement.chains):
        for index in range(problem.microbatches[number]):
            microbatch = problem.first_microbatch[number] + index
            ready = done if in_turn else index * period // problem.microbatches[number]
            way = [Op(stage, OpKind.FORWARD, microbatch) for stage in chain]
            way += [Op(stage, backward, microbatch) for stage in reversed(chain)]
            before: Op | None = None
            for op in way:
                if before is not None:
                    ready += problem.lag(before.stage, op.stage) // unit
                end = table.place(op, ready)
                if end is None:
                    return None
                done = max(done, end)
                if op.kind is OpKind.BACKWARD_INPUT:
                    weight = Op(op.stage, OpKind.BACKWARD_WEIGHT, microbatch)
                    freed = table.place(weight, end)
                    if freed is None:
                        return None
                    done = max(done, freed)
                before, ready = op, end
    return table


class _Table:
    """Which phases of the period each device is taken in."""

    def __init__(self, problem: Problem, period: int, unit: int) -> None:
        self._problem, self._period, self._unit = problem, period, unit
        self._taken: list[list[tuple[int, int]]] = [[] for _ in range(problem.devices)]
        self.start: OpStarts = {}

    def place(self, op: Op, ready: int) -> int | None:
        """Put an op at its first free time and return its end; None where none is free."""
        ticks = self._problem.duration(op) // self._unit
        taken = self._taken[self._problem.placement.device_of_stage[op.stage]]
        start = ready
        while start < ready + self._period:
            wait = self._wait(taken, start, ticks)
            if not wait:
                taken.append((start % self._period, ticks))
                self.start[op] = start
                return start + ticks
            start += wait
        return None

    def _wait(self, taken: Sequence[tuple[int, int]], start: int, ticks: int) -> int:
        """Return how long to wait at least until the device may be free; 0 if it is."""
        if ticks > self._period:
            return self._period
        for phase, length in taken:
            behind = (start - phase) % self._period
            if behind < length:
                return length - behind
            if ticks > self._period - behind and length:
                return self._period - behind + length
        return 0

    def fits(self) -> bool:
        """Whether each op finds its memory, once as many periods run at once as ever do."""
        problem, period = self._problem, self._period
        device_of = problem.placement.device_of_stage
        for device in range(problem.devices):
            limit = room(problem, device)
            ops = [op for op in self.start if device_of[op.stage] == device]
            kept = {op: problem.change(op)[0] - problem.change(op)[1] for op in ops}
            for op in ops if limit is not None else ():
                phase = self.start[op] % period
                held = sum(
                    kept[other]
                    * ((self.start[other] % period < phase) - self.start[other] // period)
                    for other in ops
                )
                if held + problem.change(op)[0] > (limit or 0):
                    return False
        return True
