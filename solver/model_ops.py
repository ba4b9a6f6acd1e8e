"""The ops of a problem as variables for CP-SAT: when each starts, and in which form it runs.

An op is alone or in a pair; where the backward is free, a backward is an I that a W follows or a B.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from ortools.sat.python import cp_model

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import Block, Op, OpKind, Pair, Row
from bubbleproof.schedules.schedule import Starts
from bubbleproof.solver.cp_sat import only_if
from bubbleproof.solver.mirror import Mirror, image
from bubbleproof.solver.scale import Scaled, may_pair
from bubbleproof.solver.times import LeastTimes


class ModelOps:
    """The variables of all ops, and the intervals in which they occupy their devices.

    Parameters
    ----------
    model
        The model to which they are added.
    scaled
        The problem, with its times as the model needs them.
    times
        Its least times.
    horizon
        A tick by which all ops end in some schedule at least as good.
    mirror
        An op and its image have the same variables.

    Attributes
    ----------
    start, end
        Of each op; a backward has them as an I, whether it is one or a B.
    forms
        For each op the real times that it may take, and when.
    fused
        For each backward that may be a B or an I and a W, whether it is a B.
    pairs
        For each forward and backward that may be a pair, whether they are.
    intervals
        For each device what occupies it.
    """

    def __init__(
        self,
        model: cp_model.CpModel,
        scaled: Scaled,
        times: LeastTimes,
        *,
        horizon: int,
        mirror: Mirror | None,
    ) -> None:
        self._model, self._scaled, self._problem = model, scaled, scaled.problem
        self._times, self._horizon, self._mirror = times, horizon, mirror
        self.start: dict[Op, cp_model.IntVar] = {}
        self.end: dict[Op, cp_model.LinearExpr] = {}
        self.forms: dict[Op, list[tuple[int, list[cp_model.LiteralT]]]] = {}
        self.fused: dict[Op, cp_model.IntVar] = {}
        self._paired: dict[Op, cp_model.IntVar] = {}
        self.pairs: dict[tuple[Op, Op], cp_model.IntVar] = {}
        self.intervals: list[list[cp_model.IntervalVar]] = [
            [] for _ in range(self._problem.devices)
        ]
        self._add_starts()
        self._add_pairs()
        self._add_ops()

    def of(self, kind: OpKind) -> Iterator[Op]:
        """Yield all ops of a kind."""
        for stage in range(self._problem.stages):
            for microbatch in self._problem.microbatches_of_stage(stage):
                yield Op(stage, kind, microbatch)

    def device(self, op: Op) -> int:
        """Return the device of an op."""
        return self._problem.placement.device_of_stage[op.stage]

    def _image(self, op: Op) -> Op:
        """Return what runs at the same time as an op on another device; else the op itself."""
        return op if self._mirror is None else image(self._problem, self._mirror, op)

    def _add_starts(self) -> None:
        """A start for each F, backward and W; the backward is an I or a B at the same start.

        The horizon is the best known makespan. For the span it allows devices to start late.
        """
        kinds = [OpKind.FORWARD, OpKind.BACKWARD_INPUT]
        if self._problem.backward.allows(OpKind.BACKWARD_WEIGHT):
            kinds.append(OpKind.BACKWARD_WEIGHT)
        for kind in kinds:
            for op in self.of(kind):
                known = self.start.get(self._image(op))
                if known is not None:
                    self.start[op] = known
                    continue
                first = self._times.first_in_chain(op.stage)
                earliest = self._times.up(first, op.stage)
                if kind is not OpKind.FORWARD:
                    earliest += self._times.turnaround(op.stage)
                self.start[op] = self._model.new_int_var(earliest, self._horizon, f"start[{op}]")

    def _add_pairs(self) -> None:
        """Any forward and backward of two microbatches on a device may be one block."""
        if not may_pair(self._problem):
            return
        for forward in self.of(OpKind.FORWARD):
            if self._problem.cost.pair[self.device(forward)] is None:
                continue
            for backward in self.of(OpKind.BACKWARD_INPUT):
                same_device = self.device(backward) == self.device(forward)
                if same_device and self._independent(forward, backward):
                    known = self.pairs.get((self._image(forward), self._image(backward)))
                    if known is not None:
                        self.pairs[forward, backward] = known
                        continue
                    pair = self._model.new_bool_var(f"pair[{forward};{backward}]")
                    self.pairs[forward, backward] = pair
                    only_if(self._model.add(self.start[forward] == self.start[backward]), pair)
        members: dict[Op, list[cp_model.IntVar]] = {}
        for pair_ops, pair in self.pairs.items():
            for op in pair_ops:
                members.setdefault(op, []).append(pair)
        for op, pairs in members.items():
            known = self._paired.get(self._image(op))
            if known is not None:
                self._paired[op] = known
                continue
            self._paired[op] = self._model.new_bool_var(f"paired[{op}]")
            self._model.add(sum(pairs) == self._paired[op])

    def _independent(self, forward: Op, backward: Op) -> bool:
        """Whether the backward is of another chain, or of a microbatch ahead in the same one."""
        chain_of = self._problem.placement.chain_of_stage
        one_chain = chain_of[forward.stage] == chain_of[backward.stage]
        return not one_chain or backward.microbatch < forward.microbatch

    def _add_ops(self) -> None:
        """Each op, alone or in a pair, takes its time on its device."""
        cost, model = self._problem.cost, self._model
        for forward in self.of(OpKind.FORWARD):
            self.end[forward] = self._run(forward, cost.F[forward.stage], [])
        for op in self.of(OpKind.BACKWARD_INPUT):
            ticks_input, ticks_full = cost.I[op.stage], cost.B[op.stage]
            match self._problem.backward:
                case Backward.SPLIT:
                    self.end[op] = self._run(op, ticks_input, [])
                case Backward.FUSED:
                    self.end[op] = self._run(op, ticks_full, [])
                case Backward.FREE:
                    known = self.fused.get(self._image(op))
                    fused = model.new_bool_var(f"fused[{op}]") if known is None else known
                    self.fused[op] = fused
                    if op in self._paired:
                        model.add_implication(self._paired[op], fused)
                    end = model.new_int_var(0, self._horizon, f"end[{op}]")
                    for ticks, chosen in ((ticks_input, ~fused), (ticks_full, fused)):
                        ends = self._run(op, ticks, [chosen])
                        only_if(model.add(end >= ends), chosen)
                    self.end[op] = self.end.get(self._image(op), end)
        for (forward, _), pair in self.pairs.items():
            start, ticks = self.start[forward], self._pair_ticks(forward)
            self.intervals[self.device(forward)].append(
                model.new_optional_interval_var(start, ticks, start + ticks, pair, "")
            )
        if not self._problem.backward.allows(OpKind.BACKWARD_WEIGHT):
            return
        for weight in self.of(OpKind.BACKWARD_WEIGHT):
            fused = self.fused.get(_input(weight))
            self.end[weight] = self._run(
                weight, cost.W[weight.stage], [] if fused is None else [~fused]
            )

    def _pair_ticks(self, op: Op) -> int:
        ticks = self._problem.cost.pair[self.device(op)]
        if ticks is None:
            raise AssertionError(f"{op} cannot be in a pair")
        return ticks

    def _run(self, op: Op, ticks: int, when: list[cp_model.LiteralT]) -> cp_model.LinearExpr:
        """Add an op's interval on its device and return its end."""
        model, start = self._model, self.start[op]
        paired = self._paired.get(op)
        forms = self.forms.setdefault(op, [])
        forms.append((self._scaled.real(ticks), [*when] if paired is None else [*when, ~paired]))
        if paired is not None:
            forms.append((self._scaled.real(self._pair_ticks(op)), [*when, paired]))
        if paired is None:
            alone, end = when, start + ticks
        else:
            alone = [*when, ~paired]
            end = start + ticks + (self._pair_ticks(op) - ticks) * paired
        if not alone:
            interval = model.new_fixed_size_interval_var(start, ticks, "")
        elif len(alone) == 1:
            interval = model.new_optional_interval_var(start, ticks, start + ticks, alone[0], "")
        else:
            both = model.new_bool_var("")
            only_if(model.add_bool_and(alone), both)
            model.add_bool_or([both, *(_negated(literal) for literal in alone)])
            interval = model.new_optional_interval_var(start, ticks, start + ticks, both, "")
        self.intervals[self.device(op)].append(interval)
        return end

    def rows_of(self, value: Callable[[cp_model.IntVar], int]) -> tuple[tuple[Row, ...], Starts]:
        """Return the order and the starts (scaled) of a solution."""
        problem = self._problem
        timed: list[list[tuple[int, Block]]] = [[] for _ in range(problem.devices)]
        backward_of = dict(ops for ops, pair in self.pairs.items() if value(pair))
        in_pairs = {*backward_of, *backward_of.values()}
        for op, start in self.start.items():
            block: Block = op
            if op in backward_of:
                block = Pair(op, replace(backward_of[op], kind=OpKind.BACKWARD))
            elif op in in_pairs:
                continue
            elif op.kind is OpKind.BACKWARD_INPUT:
                if problem.backward is Backward.FUSED or (
                    op in self.fused and value(self.fused[op])
                ):
                    block = replace(op, kind=OpKind.BACKWARD)
            elif op.kind is OpKind.BACKWARD_WEIGHT:
                fused = self.fused.get(_input(op))
                if fused is not None and value(fused):
                    continue
            timed[self.device(op)].append((value(start), block))
        for blocks in timed:
            blocks.sort()
        rows = tuple(tuple(block for _, block in blocks) for blocks in timed)
        return rows, tuple(tuple(start for start, _ in blocks) for blocks in timed)


def _input(op: Op) -> Op:
    return replace(op, kind=OpKind.BACKWARD_INPUT)


def _negated(literal: cp_model.LiteralT) -> cp_model.LiteralT:
    return not literal if isinstance(literal, bool) else ~literal
