"""The CP-SAT model of a window: some ops of a schedule are free, and all others keep their order.

Only what may move has variables (``window_ops.py``), so a window of a long schedule is a small
model. Microbatches of a chain are alike, and each stage runs each kind in their order, as in
``model.py``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from bubbleproof.schedules.dependencies import inputs, output
from bubbleproof.schedules.ops import Op, OpKind, Row, ops_of
from bubbleproof.schedules.problem import Objective
from bubbleproof.solver.cp_sat import only_if, set_limits
from bubbleproof.solver.limits import room
from bubbleproof.solver.memory_model import add_room, between, held
from bubbleproof.solver.mirror import Mirror, reflected
from bubbleproof.solver.times import LeastTimes
from bubbleproof.solver.window import Cut
from bubbleproof.solver.window_ops import Ticks, WindowOps


@dataclass(frozen=True, slots=True)
class Found:
    """What the search of a window has found.

    Parameters
    ----------
    rows
        The best order; None where there is none.
    firsts
        For the span the first start of each device in it, in ticks; for the makespan all are 0.
    objective
        Its objective, at most, in ticks.
    proven
        Whether nothing in the window is better.
    """

    rows: tuple[Row, ...] | None
    firsts: tuple[int, ...]
    objective: int
    proven: bool


class WindowModel:
    """A model of one window, ready to be solved once.

    Parameters
    ----------
    cut
        A valid order, each stage and kind in the order of the microbatches, and what is free in it.
    objective, least
        The objective of its starts, and a bound that is known, in ticks.
    horizon
        A tick by which all ops end in some schedule at least as good.
    reach
        Only what stands at most so many places apart in the order may become a pair.
    weights
        For each device how much it counts, among schedules of one objective, by when its part of
        the window is done; at least 0.
    mirror
        Only orders that are their own image are searched; rows and window have to be so.
    """

    def __init__(
        self,
        cut: Cut,
        *,
        objective: int,
        least: int,
        horizon: int,
        reach: int,
        weights: Sequence[int],
        mirror: Mirror | None = None,
    ) -> None:
        self._cut, self._problem, self._mirror = cut, cut.problem, mirror
        self._horizon, self._weights = horizon, weights
        self._model = cp_model.CpModel()
        self._solver = cp_model.CpSolver()
        self._ops = WindowOps(self._model, cut, horizon=horizon, reach=reach, mirror=mirror)
        self._add_dependencies()
        self._add_order()
        self._add_memory()
        self._known = objective
        self._value = self._model.new_int_var(min(least, objective), objective, "objective")
        self._add_objective()

    @property
    def free(self) -> int:
        """How many ops are free."""
        return len(self._ops.place)

    def solve(self, *, time_limit_s: float, workers: int, seed: int) -> Found:
        """Search until a time and return the best that was found.

        ``stop`` may be called from another thread.
        """
        set_limits(self._solver, time_limit_s=time_limit_s, workers=workers, seed=seed)
        status = self._solver.solve(self._model)
        if status == cp_model.MODEL_INVALID:
            raise AssertionError(f"invalid model: {self._model.validate()}")
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return self._found(proven=status == cp_model.OPTIMAL)
        return Found(None, (), self._known, proven=status == cp_model.INFEASIBLE)

    def stop(self) -> None:
        """End a running search soon."""
        self._solver.stop_search()

    def _add_dependencies(self) -> None:
        """What moves starts after its inputs are there."""
        model, times = self._model, LeastTimes(self._problem)
        for op, start in self._ops.start.items():
            backward, forward = _input(op), replace(op, kind=OpKind.FORWARD)
            if op.kind is OpKind.BACKWARD_WEIGHT and backward in self._ops.split:
                only_if(model.add(start >= self._ops.end[backward]), self._ops.split[backward])
                model.add(start >= self._ops.start[backward])
                continue
            for source, lag in inputs(self._problem, op):
                model.add(start >= self._ops.end_of(source) + lag)
            if op.kind is OpKind.BACKWARD_INPUT and forward in self._ops.start:
                model.add(start >= self._ops.start[forward] + times.turnaround(op.stage))

    def _add_order(self) -> None:
        """Each stage runs each kind in order; what is beside the window keeps its order."""
        model = self._model
        for op in self._ops.place:
            later = replace(op, microbatch=op.microbatch + 1)
            if later not in self._ops.place:
                continue
            maybe = any(_input(each) in self._ops.split for each in (op, later))
            if op.kind is OpKind.BACKWARD_WEIGHT and maybe:
                model.add(self._ops.start[later] >= self._ops.start[op])
            else:
                model.add(self._ops.start[later] >= self._ops.end[op])
        for device in self._ops.devices:
            before = self._ops.ends_before(device)
            for block in self._cut.rows[device][self._cut.beside[device] : self._cut.after[device]]:
                start = self._ops.start[output(ops_of(block)[0])]
                for end in before:
                    model.add(start >= end)
                before = [start + self._problem.duration(block)]

    def _add_memory(self) -> None:
        """What is allocated and not yet freed fits into each device that has free ops."""
        for device, ops in self._ops.free.items():
            limit = room(self._problem, device)
            if limit is None or not ops:
                continue
            demands: list[tuple[cp_model.IntervalVar, int]] = []
            for microbatch, when in self._microbatches(device):
                for source, freed, amount in held(self._problem, microbatch):
                    if source in self._ops.place or freed in self._ops.place:
                        demands.append((self._held(source, freed, when), amount))
                    elif source in self._cut.known and freed not in self._cut.known:
                        limit -= amount
            add_room(self._model, demands, limit)

    def _microbatches(self, device: int) -> Iterator[tuple[list[Op], cp_model.LiteralT | None]]:
        """Yield the ops of each microbatch on each stage of a device, in each form it may have."""
        as_written = {op for block in self._cut.rows[device] for op in ops_of(block)}
        for stage in self._problem.placement.stages_of_device[device]:
            for number in self._problem.microbatches_of_stage(stage):
                forward = Op(stage, OpKind.FORWARD, number)
                whole, backward = replace(forward, kind=OpKind.BACKWARD), _input(forward)
                split = self._ops.split.get(backward)
                if split is not None:
                    yield [forward, backward, _weight(forward)], split
                    yield [forward, whole], ~split
                elif whole in as_written:
                    yield [forward, whole], None
                else:
                    yield [forward, backward, _weight(forward)], None

    def _held(self, source: Op, freed: Op, when: cp_model.LiteralT | None) -> cp_model.IntervalVar:
        """Return the part of the window in which is held what one output's op has allocated."""
        within = self._cut.window.begin, self._horizon
        since = self._ops.start.get(source, within[0])
        until = self._ops.end.get(freed, within[1])
        return between(self._model, since, until, within=within, when=when)

    def _add_objective(self) -> None:
        """The objective, and then by when each device's part of the window has to be done.

        The second makes room where no window alone can shorten the whole: what is done sooner
        leaves more to gain to the next.
        """
        model, value = self._model, self._value
        model.add_hint(value, self._known)
        spans = self._problem.objective is Objective.SPAN
        done: dict[int, cp_model.IntVar] = {}
        for device, target, end, way in self._ways():
            for begin in self._begins(target) if spans else [0]:
                model.add(value >= end + way - begin)
            if device not in done:
                done[device] = model.new_int_var(0, self._horizon, f"done[{device}]")
            model.add(done[device] >= end + way)
        weighted = {device: self._weights[device] * end for device, end in done.items()}
        most = sum(self._weights[device] for device in done) * self._horizon
        model.minimize((most + 1) * value + sum(weighted.values()))

    def _begins(self, device: int) -> list[Ticks]:
        """Return the times of which the least is a device's first start."""
        if self._cut.first[device]:
            return [self._cut.starts[device][0]]
        starts = (
            self._ops.start.get(self._ops.canonical(Op(stage, OpKind.FORWARD, numbers.start)))
            for stage in self._problem.placement.stages_of_device[device]
            if (numbers := self._problem.microbatches_of_stage(stage))
        )
        return [start for start in starts if start is not None]

    def _ways(self) -> Iterator[tuple[int, int, Ticks, int]]:
        """Yield a device, a target, an end, and the longest way from it through the device.

        The end is of what moves or of what is before the window; the way begins with what is on
        the device after the window, if there is anything.
        """
        cut, tails = self._cut, self._cut.tails()
        for device in self._ops.devices:
            row, after = cut.rows[device], cut.after[device]
            ends = self._ops.ends_before(device)
            if after > cut.beside[device]:
                ends = [self._ops.end[output(ops_of(row[after - 1])[0])]]
            if after == len(row):
                for end in ends:
                    yield device, cut.target(device), end, 0
            for place in range(after, len(row)):
                entries = [(end, 0) for end in ends] if place == after else []
                for op in ops_of(row[place]):
                    entries += [
                        (self._ops.end_of(source), lag)
                        for source, lag in inputs(self._problem, op)
                        if source in cut.known or self._ops.canonical(source) in self._ops.end
                    ]
                for target, tail in tails[device][place - after].items():
                    for end, lag in entries:
                        yield device, target, end, lag + tail

    def _found(self, *, proven: bool) -> Found:
        cut = self._cut
        rows = list(cut.rows)
        spans = self._problem.objective is Objective.SPAN
        firsts = [begins[0] if spans and begins else 0 for begins in cut.starts]
        for device in self._ops.devices:
            row = rows[device]
            blocks = self._ops.blocks(device, self._solver.value)
            rows[device] = (*row[: cut.first[device]], *blocks, *row[cut.beside[device] :])
            if spans and row and not cut.first[device]:
                firsts[device] = min(map(self._solver.value, self._begins(device)))
            if self._mirror is not None:
                there = self._mirror.device[device]
                rows[there] = reflected(self._problem, self._mirror, rows[device])
                firsts[there] = firsts[device]
        return Found(tuple(rows), tuple(firsts), self._solver.value(self._value), proven)


def _input(op: Op) -> Op:
    return replace(op, kind=OpKind.BACKWARD_INPUT)


def _weight(op: Op) -> Op:
    return replace(op, kind=OpKind.BACKWARD_WEIGHT)
