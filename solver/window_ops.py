"""The free ops of a window as variables for CP-SAT: when each starts, and in which form it runs.

A forward is alone or in a pair. A backward is whole, in a pair, or split where its problem is not
fused; where it is free all three are tried, and a W that may come to be has a start as well.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from ortools.sat.python import cp_model

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.dependencies import output
from bubbleproof.schedules.ops import Block, Op, OpKind, Pair, Row, ops_of
from bubbleproof.solver.cp_sat import only_if
from bubbleproof.solver.mirror import Mirror, image
from bubbleproof.solver.window import Cut

Ticks: TypeAlias = cp_model.LinearExpr | int
"""A time that is a variable, or known."""

_Form: TypeAlias = tuple[cp_model.IntVar | None, int]
"""When an op has a form outside pairs, None for always, and how long it takes in it."""


class WindowOps:
    """The variables of a window, with what makes each device run one block at a time.

    Parameters
    ----------
    model
        The model to which they are added.
    cut
        A valid order, each stage and kind in the order of the microbatches, and what is free in it.
    horizon
        A tick by which all ops end in some schedule at least as good.
    reach
        Only what stands at most so many places apart in the order may become a pair.
    mirror
        Only orders that are their own image are searched; rows and window have to be so.

    Attributes
    ----------
    devices
        The devices that are searched: all, or those that others are the images of.
    free
        For each of them the ops that are free; a B that may be split is there as I and W, whatever
        it is in the order.
    place
        For each free op where in its row it stands.
    start
        Of each free op, and of the outputs of each block beside the window.
    end
        Of the same.
    split
        For each free backward that may be split or not, whether it is.
    """

    def __init__(
        self,
        model: cp_model.CpModel,
        cut: Cut,
        *,
        horizon: int,
        reach: int,
        mirror: Mirror | None,
    ) -> None:
        self._model, self._cut, self._problem, self._mirror = model, cut, cut.problem, mirror
        self._reach, self._horizon = reach, horizon
        self.devices = [
            device
            for device in range(self._problem.devices)
            if mirror is None or device <= mirror.device[device]
        ]
        self.free: dict[int, list[Op]] = {device: [] for device in self.devices}
        self.place: dict[Op, int] = {}
        self.start: dict[Op, cp_model.IntVar] = {}
        self.end: dict[Op, Ticks] = {}
        self.split: dict[Op, cp_model.IntVar] = {}
        self._pairs: dict[tuple[Op, Op], cp_model.IntVar] = {}
        self._pairs_of: dict[Op, list[cp_model.IntVar]] = {}
        self._add_starts()
        self._add_pairs()
        self._add_free()

    def _add_starts(self) -> None:
        """A start for each op that is free, and one for each block beside the window."""
        cut = self._cut
        for device in self.devices:
            row, begins = cut.rows[device], cut.starts[device]
            for place in range(cut.first[device], cut.beside[device]):
                for op in ops_of(row[place]):
                    for part in self._parts(op):
                        self.free[device].append(part)
                        self.place[part] = place
                        self.start[part] = self._new_start(part, begins[place])
            for place in range(cut.beside[device], cut.after[device]):
                start = self._new_start(ops_of(row[place])[0], begins[place])
                for op in ops_of(row[place]):
                    self.start[output(op)] = start
                    self.end[output(op)] = start + self._problem.duration(row[place])

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
            for device in self.devices
            for block in self._cut.rows[device]
            if isinstance(block, Pair)
        }
        for device, ops in self.free.items():
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
                        same = self._model.add(self.start[forward] == self.start[backward])
                        only_if(same, pair)

    def _may_pair(self, forward: Op, backward: Op) -> bool:
        """Whether they are a forward and a backward that does not wait for it, and near it."""
        if (forward.kind, backward.kind) != (OpKind.FORWARD, OpKind.BACKWARD_INPUT):
            return False
        chain_of = self._problem.placement.chain_of_stage
        one_chain = chain_of[forward.stage] == chain_of[backward.stage]
        return (
            self._may_be_whole(backward)
            and not (one_chain and backward.microbatch >= forward.microbatch)
            and abs(self.place[forward] - self.place[backward]) <= self._reach
        )

    def _may_be_whole(self, backward: Op) -> bool:
        """Whether a free backward may be a B: it has to be, or its W is free as well."""
        match self._problem.backward:
            case Backward.FUSED:
                return True
            case Backward.SPLIT:
                return False
            case Backward.FREE:
                return _weight(backward) in self.place

    def _add_free(self) -> None:
        """Each free op takes its time on its device, after what ran before the window."""
        model = self._model
        as_written = {op for device in self.devices for op in _ops(self._cut.rows[device])}
        for device, ops in self.free.items():
            intervals: list[cp_model.IntervalVar] = []
            free_from = self._cut.free_from(device)
            for op in ops:
                forms, pairs = self._forms(op, as_written), self._pairs_of.get(op, [])
                choices = [form for form, _ in forms if form is not None]
                if choices and op.kind is not OpKind.BACKWARD_WEIGHT:
                    model.add_exactly_one([*choices, *pairs])
                model.add(self.start[op] >= free_from)
                self.end[op] = self._end_in(op, forms, device)
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
                return [(self.split.get(_input(op)), cost.W[stage])]
            case _ if not self._may_be_whole(op):
                return [(None, cost.I[stage])]
            case _ if self._problem.backward is Backward.FREE:
                self.split[op] = self._choice("split", op)
                self._model.add_hint(self.split[op], whole not in as_written)
                return [
                    (self.split[op], cost.I[stage]),
                    (self._choice("whole", op), cost.B[stage]),
                ]
            case _:
                pairs = op in self._pairs_of
                return [(self._choice("whole", op) if pairs else None, cost.B[stage])]

    def _choice(self, name: str, op: Op) -> cp_model.IntVar:
        return self._model.new_bool_var(f"{name}[{op}]")

    def _end_in(self, op: Op, forms: Sequence[_Form], device: int) -> Ticks:
        """Return the end of an op in whatever form it has; its start if it has none."""
        start, pairs = self.start[op], self._pairs_of.get(op, [])
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
        start = self.start[op]
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

    def canonical(self, op: Op) -> Op:
        """Return the op itself or its image, whichever is on a device that is searched."""
        if self._mirror is None or self._device(op) in self.free:
            return op
        return image(self._problem, self._mirror, op)

    def end_of(self, source: Op) -> Ticks:
        """Return when an output of the window, of an image of it, or of before it is handed on."""
        known = self._cut.known.get(source)
        return self.end[self.canonical(source)] if known is None else known

    def ends_before(self, device: int) -> list[Ticks]:
        """Return the ends of which the last is when a device has done all that is free."""
        ends = [self.end[op] for op in self.free[device]]
        return ends or [self._cut.free_from(device)]

    def blocks(self, device: int, value: Callable[[cp_model.IntVar], int]) -> list[Block]:
        """Return the free blocks of a device in the order of their starts, given all values."""
        partner = dict(pair for pair, chosen in self._pairs.items() if value(chosen))
        paired = set(partner.values())
        timed: list[tuple[int, int, Block]] = []
        for number, op in enumerate(self.free[device]):
            block: Block = op
            split = self.split.get(_input(op))
            whole = self._problem.backward is Backward.FUSED or (
                split is not None and not value(split)
            )
            if op in partner:
                block = Pair(op, replace(partner[op], kind=OpKind.BACKWARD))
            elif op in paired or (whole and op.kind is OpKind.BACKWARD_WEIGHT):
                continue
            elif whole and op.kind is OpKind.BACKWARD_INPUT:
                block = replace(op, kind=OpKind.BACKWARD)
            timed.append((value(self.start[op]), number, block))
        return [block for _, _, block in sorted(timed)]


def _ops(row: Row) -> Iterator[Op]:
    return (op for block in row for op in ops_of(block))


def _input(op: Op) -> Op:
    return replace(op, kind=OpKind.BACKWARD_INPUT)


def _weight(op: Op) -> Op:
    return replace(op, kind=OpKind.BACKWARD_WEIGHT)
