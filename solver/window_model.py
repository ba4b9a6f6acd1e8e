"""The CP-SAT model of a window: some ops of a schedule are free, and all others keep their order.

Only what may move has variables, so a window of a long schedule is a small model. Microbatches of
a chain are alike, and each stage runs each kind in their order, as in ``model.py``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import TypeAlias

from ortools.sat.python import cp_model

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.dependencies import inputs, output
from bubbleproof.schedules.ops import Block, Op, OpKind, Pair, Row, ops_of
from bubbleproof.schedules.problem import Objective
from bubbleproof.solver.limits import room
from bubbleproof.solver.mirror import Mirror, image, reflected
from bubbleproof.solver.times import LeastTimes
from bubbleproof.solver.window import Cut, held

Ticks: TypeAlias = cp_model.LinearExpr | int
"""A time that is a variable, or known."""

_Form: TypeAlias = tuple[cp_model.IntVar | None, int]
"""When an op has a form outside pairs, None for always, and how long it takes in it."""


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
        self._reach, self._horizon, self._weights = reach, horizon, weights
        self._devices = [
            device
            for device in range(self._problem.devices)
            if mirror is None or device <= mirror.device[device]
        ]
        self._model = cp_model.CpModel()
        self._solver = cp_model.CpSolver()
        self._free: dict[int, list[Op]] = {device: [] for device in self._devices}
        """What is free; a B that may be split is there as I and W, whatever it is in the order."""
        self._place: dict[Op, int] = {}
        self._start: dict[Op, cp_model.IntVar] = {}
        """Of each free op, and of the outputs of each block beside the window."""
        self._end: dict[Op, Ticks] = {}
        self._split: dict[Op, cp_model.IntVar] = {}
        """Of each free backward that may be split or not, whether it is."""
        self._pairs: dict[tuple[Op, Op], cp_model.IntVar] = {}
        self._pairs_of: dict[Op, list[cp_model.IntVar]] = {}
        self._add_starts()
        self._add_pairs()
        self._add_free()
        self._add_dependencies()
        self._add_order()
        self._add_memory()
        self._known = objective
        self._value = self._model.new_int_var(min(least, objective), objective, "objective")
        self._add_objective()

    @property
    def free(self) -> int:
        """How many ops are free."""
        return len(self._place)

    def solve(self, *, time_limit_s: float, workers: int, seed: int) -> Found:
        """Search until a time and return the best that was found.

        ``stop`` may be called from another thread.
        """
        parameters = self._solver.parameters
        parameters.max_time_in_seconds = time_limit_s
        parameters.num_workers = workers
        parameters.random_seed = seed
        parameters.catch_sigint_signal = False
        status = self._solver.solve(self._model)
        if status == cp_model.MODEL_INVALID:
            raise AssertionError(f"invalid model: {self._model.validate()}")
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return self._found(proven=status == cp_model.OPTIMAL)
        return Found(None, (), self._known, proven=status == cp_model.INFEASIBLE)

    def stop(self) -> None:
        """End a running search soon."""
        self._solver.stop_search()

    # Variables

    def _add_starts(self) -> None:
        """A start for each op that is free, and one for each block beside the window."""
        cut = self._cut
        for device in self._devices:
            row, begins = cut.rows[device], cut.starts[device]
            for place in range(cut.first[device], cut.beside[device]):
                for op in ops_of(row[place]):
                    for part in self._parts(op):
                        self._free[device].append(part)
                        self._place[part] = place
                        self._start[part] = self._new_start(part, begins[place])
            for place in range(cut.beside[device], cut.after[device]):
                start = self._new_start(ops_of(row[place])[0], begins[place])
                for op in ops_of(row[place]):
                    self._start[output(op)] = start
                    self._end[output(op)] = start + self._problem.duration(row[place])

    def _new_start(self, op: Op, hint: int) -> cp_model.IntVar:
        start = self._model.new_int_var(self._cut.window.begin, self._horizon, f"start[{op}]")
        self._model.add_hint(start, hint)
        return start

    def _parts(self, op: Op) -> tuple[Op, ...]:
        if op.kind is not OpKind.BACKWARD:
            return (op,)
        if self._problem.backward is Backward.FUSED:
            return (output(op),)
        return (output(op), _weight(op))

    def _add_pairs(self) -> None:
        """A forward and a backward that stand near each other may be one block."""
        together = {
            (block.forward, output(block.backward))
            for device in self._devices
            for block in self._cut.rows[device]
            if isinstance(block, Pair)
        }
        for device, ops in self._free.items():
            if self._problem.cost.pair[device] is None:
                continue
            for forward in ops:
                for backward in ops:
                    if self._may_pair(forward, backward):
                        pair = self._model.new_bool_var(f"pair[{forward};{backward}]")
                        self._model.add_hint(pair, (forward, backward) in together)
                        self._pairs[forward, backward] = pair
                        self._pairs_of.setdefault(forward, []).append(pair)
                        self._pairs_of.setdefault(backward, []).append(pair)
                        same = self._model.add(self._start[forward] == self._start[backward])
                        _only_if(same, pair)

    def _may_pair(self, forward: Op, backward: Op) -> bool:
        """Whether they are a forward and a backward that does not wait for it, and near it."""
        if (forward.kind, backward.kind) != (OpKind.FORWARD, OpKind.BACKWARD_INPUT):
            return False
        chain_of = self._problem.placement.chain_of_stage
        one_chain = chain_of[forward.stage] == chain_of[backward.stage]
        return (
            self._may_be_whole(backward)
            and not (one_chain and backward.microbatch >= forward.microbatch)
            and abs(self._place[forward] - self._place[backward]) <= self._reach
        )

    def _may_be_whole(self, backward: Op) -> bool:
        """Whether a free backward may be a B: it has to be, or its W is free as well."""
        match self._problem.backward:
            case Backward.FUSED:
                return True
            case Backward.SPLIT:
                return False
            case Backward.FREE:
                return _weight(backward) in self._place

    def _add_free(self) -> None:
        """Each free op takes its time on its device, after what ran before the window."""
        model = self._model
        as_written = {op for device in self._devices for op in _ops(self._cut.rows[device])}
        for device, ops in self._free.items():
            intervals: list[cp_model.IntervalVar] = []
            free_from = self._cut.free_from(device)
            for op in ops:
                forms, pairs = self._forms(op, as_written), self._pairs_of.get(op, [])
                choices = [form for form, _ in forms if form is not None]
                if choices and op.kind is not OpKind.BACKWARD_WEIGHT:
                    model.add_exactly_one([*choices, *pairs])
                model.add(self._start[op] >= free_from)
                self._end[op] = self._end_in(op, forms, device)
                intervals += [self._interval(op, ticks, form) for form, ticks in forms]
            intervals += [
                self._interval(forward, self._pair_ticks(device), pair)
                for (forward, _), pair in self._pairs.items()
                if self._device(forward) == device
            ]
            model.add_no_overlap(intervals)

    def _forms(self, op: Op, as_written: set[Op]) -> list[_Form]:
        """Return the forms of an op outside pairs; a new variable for each where there are more."""
        cost, stage = self._problem.cost, op.stage
        whole = replace(op, kind=OpKind.BACKWARD)
        match op.kind:
            case OpKind.FORWARD:
                if op not in self._pairs_of:
                    return [(None, cost.F[stage])]
                return [(self._choice("alone", op), cost.F[stage])]
            case OpKind.BACKWARD_WEIGHT:
                return [(self._split.get(_input(op)), cost.W[stage])]
            case _ if not self._may_be_whole(op):
                return [(None, cost.I[stage])]
            case _ if self._problem.backward is Backward.FREE:
                self._split[op] = self._choice("split", op)
                self._model.add_hint(self._split[op], whole not in as_written)
                return [
                    (self._split[op], cost.I[stage]),
                    (self._choice("whole", op), cost.B[stage]),
                ]
            case _:
                pairs = op in self._pairs_of
                return [(self._choice("whole", op) if pairs else None, cost.B[stage])]

    def _choice(self, name: str, op: Op) -> cp_model.IntVar:
        return self._model.new_bool_var(f"{name}[{op}]")

    def _end_in(self, op: Op, forms: Sequence[_Form], device: int) -> Ticks:
        """Return the end of an op in whatever form it has; its start if it has none."""
        start, pairs = self._start[op], self._pairs_of.get(op, [])
        (form, ticks), *others = forms
        if form is None and not others:
            return start + ticks
        end = self._model.new_int_var(self._cut.window.begin, self._horizon, f"end[{op}]")
        taken = sum(form * ticks for form, ticks in forms if form is not None)
        if pairs:
            taken += self._pair_ticks(device) * sum(pairs)
        self._model.add(end == start + taken)
        return end

    def _interval(self, op: Op, ticks: int, when: cp_model.IntVar | None) -> cp_model.IntervalVar:
        start = self._start[op]
        if when is None:
            return self._model.new_fixed_size_interval_var(start, ticks, "")
        return self._model.new_optional_interval_var(start, ticks, start + ticks, when, "")

    def _device(self, op: Op) -> int:
        return self._problem.placement.device_of_stage[op.stage]

    def _pair_ticks(self, device: int) -> int:
        ticks = self._problem.cost.pair[device]
        if ticks is None:
            raise AssertionError(f"device {device} runs no pairs")
        return ticks

    # Constraints

    def _add_dependencies(self) -> None:
        """What moves starts after its inputs are there."""
        model, times = self._model, LeastTimes(self._problem)
        for op, start in self._start.items():
            backward, forward = _input(op), replace(op, kind=OpKind.FORWARD)
            if op.kind is OpKind.BACKWARD_WEIGHT and backward in self._split:
                _only_if(model.add(start >= self._end[backward]), self._split[backward])
                model.add(start >= self._start[backward])
                continue
            for source, lag in inputs(self._problem, op):
                model.add(start >= self._end_of(source) + lag)
            if op.kind is OpKind.BACKWARD_INPUT and forward in self._start:
                model.add(start >= self._start[forward] + times.turnaround(op.stage))

    def _canonical(self, op: Op) -> Op:
        """Return the op itself or its image, whichever is on a device that is searched."""
        if self._mirror is None or self._device(op) in self._free:
            return op
        return image(self._problem, self._mirror, op)

    def _end_of(self, source: Op) -> Ticks:
        known = self._cut.known.get(source)
        return self._end[self._canonical(source)] if known is None else known

    def _add_order(self) -> None:
        """Each stage runs each kind in order; what is beside the window keeps its order."""
        model = self._model
        for op in self._place:
            later = replace(op, microbatch=op.microbatch + 1)
            if later not in self._place:
                continue
            maybe = any(_input(each) in self._split for each in (op, later))
            if op.kind is OpKind.BACKWARD_WEIGHT and maybe:
                model.add(self._start[later] >= self._start[op])
            else:
                model.add(self._start[later] >= self._end[op])
        for device in self._devices:
            before = self._ends_before(device)
            for block in self._cut.rows[device][self._cut.beside[device] : self._cut.after[device]]:
                start = self._start[output(ops_of(block)[0])]
                for end in before:
                    model.add(start >= end)
                before = [start + self._problem.duration(block)]

    def _ends_before(self, device: int) -> list[Ticks]:
        """Return the ends of which the last is when a device has done all that is free."""
        ends = [self._end[op] for op in self._free[device]]
        return ends or [self._cut.free_from(device)]

    def _add_memory(self) -> None:
        """What is allocated and not yet freed fits into each device that has free ops."""
        for device, ops in self._free.items():
            limit = room(self._problem, device)
            if limit is None or not ops:
                continue
            intervals: list[cp_model.IntervalVar] = []
            amounts: list[int] = []
            for microbatch, when in self._microbatches(device):
                for source, freed, amount in held(self._problem, microbatch):
                    since, until = self._start.get(source), self._end.get(freed)
                    if source in self._place or freed in self._place:
                        intervals.append(self._between(since, until, when))
                        amounts.append(amount)
                    elif source in self._cut.known and freed not in self._cut.known:
                        limit -= amount
            unit = gcd(*amounts)
            if amounts:
                demands = [amount // unit for amount in amounts]
                self._model.add_cumulative(intervals, demands, limit // unit)

    def _microbatches(self, device: int) -> Iterator[tuple[list[Op], cp_model.LiteralT | None]]:
        """Yield the ops of each microbatch on each stage of a device, in each form it may have."""
        as_written = set(_ops(self._cut.rows[device]))
        for stage in self._problem.placement.stages_of_device[device]:
            for number in self._problem.microbatches_of_stage(stage):
                forward = Op(stage, OpKind.FORWARD, number)
                whole, backward = replace(forward, kind=OpKind.BACKWARD), _input(forward)
                split = self._split.get(backward)
                if split is not None:
                    yield [forward, backward, _weight(forward)], split
                    yield [forward, whole], ~split
                elif whole in as_written:
                    yield [forward, whole], None
                else:
                    yield [forward, backward, _weight(forward)], None

    def _between(
        self, since: Ticks | None, until: Ticks | None, when: cp_model.LiteralT | None
    ) -> cp_model.IntervalVar:
        """Return the part of the window from one time, or all before it, to another."""
        model, begin = self._model, self._cut.window.begin
        start = begin if since is None else since
        end = model.new_int_var(begin, self._horizon, "")
        length = model.new_int_var(0, self._horizon - begin, "")
        ends = model.add(end == (self._horizon if until is None else until))
        if when is None:
            return model.new_interval_var(start, length, end, "")
        _only_if(ends, when)
        return model.new_optional_interval_var(start, length, end, when, "")

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
            self._start.get(self._canonical(Op(stage, OpKind.FORWARD, numbers.start)))
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
        for device in self._devices:
            row, after = cut.rows[device], cut.after[device]
            ends = self._ends_before(device)
            if after > cut.beside[device]:
                ends = [self._end[output(ops_of(row[after - 1])[0])]]
            if after == len(row):
                for end in ends:
                    yield device, cut.target(device), end, 0
            for place in range(after, len(row)):
                entries = [(end, 0) for end in ends] if place == after else []
                for op in ops_of(row[place]):
                    entries += [
                        (self._end_of(source), lag)
                        for source, lag in inputs(self._problem, op)
                        if source in cut.known or self._canonical(source) in self._end
                    ]
                for target, tail in tails[device][place - after].items():
                    for end, lag in entries:
                        yield device, target, end, lag + tail

    # What was found

    def _found(self, *, proven: bool) -> Found:
        cut = self._cut
        rows = list(cut.rows)
        spans = self._problem.objective is Objective.SPAN
        firsts = [begins[0] if spans and begins else 0 for begins in cut.starts]
        for device, ops in self._free.items():
            row = rows[device]
            blocks = [block for _, _, block in sorted(self._blocks(ops))]
            rows[device] = (*row[: cut.first[device]], *blocks, *row[cut.beside[device] :])
            if spans and row and not cut.first[device]:
                firsts[device] = min(map(self._solver.value, self._begins(device)))
            if self._mirror is not None:
                there = self._mirror.device[device]
                rows[there] = reflected(self._problem, self._mirror, rows[device])
                firsts[there] = firsts[device]
        return Found(tuple(rows), tuple(firsts), self._solver.value(self._value), proven)

    def _blocks(self, ops: Sequence[Op]) -> Iterator[tuple[int, int, Block]]:
        """Yield the free blocks of a device, each with its start and a number of its own."""
        value = self._solver.value
        partner = dict(pair for pair, chosen in self._pairs.items() if value(chosen))
        paired = set(partner.values())
        for number, op in enumerate(ops):
            block: Block = op
            split = self._split.get(_input(op))
            whole = self._problem.backward is Backward.FUSED or (
                split is not None and not value(split)
            )
            if op in partner:
                block = Pair(op, replace(partner[op], kind=OpKind.BACKWARD))
            elif op in paired or (whole and op.kind is OpKind.BACKWARD_WEIGHT):
                continue
            elif whole and op.kind is OpKind.BACKWARD_INPUT:
                block = replace(op, kind=OpKind.BACKWARD)
            yield value(self._start[op]), number, block


def _ops(row: Row) -> Iterator[Op]:
    return (op for block in row for op in ops_of(block))


def _input(op: Op) -> Op:
    return replace(op, kind=OpKind.BACKWARD_INPUT)


def _weight(op: Op) -> Op:
    return replace(op, kind=OpKind.BACKWARD_WEIGHT)


def _only_if(constraint: cp_model.Constraint, literal: cp_model.LiteralT) -> None:
    constraint.only_enforce_if(literal)  # pyright: ignore[reportUnknownMemberType]
