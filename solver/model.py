"""The CP-SAT model of a problem: exact for any placement, backward, pair cost and memory.

Microbatches of a chain are alike, so each stage runs them in order without loss: sort the starts
of one stage and kind, and every dependency and memory level stays as it was.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil

from ortools.sat.python import cp_model

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import Block, Op, OpKind, Pair, Row, ops_of
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Starts
from bubbleproof.schedules.simulate import earliest_starts
from bubbleproof.solver.bounds import bounds
from bubbleproof.solver.cp_sat import only_if, set_limits
from bubbleproof.solver.limits import room
from bubbleproof.solver.memory_model import add_room, between, held
from bubbleproof.solver.mirror import Mirror, image
from bubbleproof.solver.scale import Scaled, horizon, may_pair
from bubbleproof.solver.times import LeastTimes

_LARGEST = 2**31 - 1


class Model:
    """A model with a complete hint, ready to be solved once.

    Parameters
    ----------
    problem
        A feasible problem.
    rows
        A valid order; only schedules at least as good are searched.
    least
        A bound that is known, in ticks.
    mirror
        Only schedules that are their own image in it are searched, which halves the model; what is
        proven holds among them alone. The order has to be its own image.
    """

    def __init__(
        self,
        problem: Problem,
        rows: tuple[Row, ...],
        *,
        least: int = 0,
        mirror: Mirror | None = None,
    ) -> None:
        self.scaled = Scaled.of(problem)
        self._problem = self.scaled.problem
        self._least = least
        self._mirror = mirror
        self._times = LeastTimes(self._problem)
        self._model = cp_model.CpModel()
        self._solver = cp_model.CpSolver()
        starts = earliest_starts(self._problem, rows)
        self._objective = self.scaled.objective(rows, starts)
        self._horizon = horizon(self._problem, rows, starts) + self.scaled.factor
        if self._horizon > _LARGEST:
            raise OverflowError("the times have too many digits for the exact model")
        self._start: dict[Op, cp_model.IntVar] = {}
        self._end: dict[Op, cp_model.LinearExpr] = {}
        self._real_start: dict[Op, cp_model.IntVar] = {}
        self._forms: dict[Op, list[tuple[int, list[cp_model.LiteralT]]]] = {}
        """For each op the real times that it may take, and when."""
        self._fused: dict[Op, cp_model.IntVar] = {}
        self._paired: dict[Op, cp_model.IntVar] = {}
        self._pairs: dict[tuple[Op, Op], cp_model.IntVar] = {}
        self._intervals: list[list[cp_model.IntervalVar]] = [
            [] for _ in range(self._problem.devices)
        ]
        self._add_starts()
        self._add_pairs()
        self._add_ops()
        self._add_dependencies()
        self._add_order_of_microbatches()
        self._add_exclusion()
        self._add_memory()
        self._add_objective()
        self._add_hint(rows, starts)

    def solve(
        self,
        *,
        time_limit_s: float,
        workers: int,
        seed: int,
        on_rows: Callable[[tuple[Row, ...], Starts], None],
        deterministic_s: float | None = None,
    ) -> int:
        """Search and return the bound that is proven, in real ticks.

        Every better order found is reported with its starts. ``stop`` may be called from another
        thread. ``deterministic_s`` limits the work in CP-SAT's deterministic seconds as well.
        """
        set_limits(self._solver, time_limit_s=time_limit_s, workers=workers, seed=seed)
        if deterministic_s is not None:
            self._solver.parameters.max_deterministic_time = deterministic_s
        status = self._solver.solve(self._model, _Reporter(self, on_rows))
        if status == cp_model.MODEL_INVALID:
            raise AssertionError(f"invalid model: {self._model.validate()}")
        if status == cp_model.INFEASIBLE:
            raise AssertionError("the model refuses the schedule that it was given")
        return ceil(self._solver.best_objective_bound - 1e-6) * self.scaled.unit

    def stop(self) -> None:
        """End a running search soon."""
        self._solver.stop_search()

    # Variables

    def _ops(self, kind: OpKind) -> Iterator[Op]:
        for stage in range(self._problem.stages):
            for microbatch in self._problem.microbatches_of_stage(stage):
                yield Op(stage, kind, microbatch)

    def _device(self, op: Op) -> int:
        return self._problem.placement.device_of_stage[op.stage]

    def _image(self, op: Op) -> Op:
        """Return what runs at the same time as an op on another device; else the op itself."""
        return op if self._mirror is None else image(self._problem, self._mirror, op)

    def _is_copy(self, device: int) -> bool:
        """Whether a device does what the one that it is the image of does."""
        return self._mirror is not None and device > self._mirror.device[device]

    def _add_starts(self) -> None:
        """A start for each F, backward and W; the backward is an I or a B at the same start.

        The horizon is the best known makespan. For the span it allows devices to start late.
        """
        kinds = [OpKind.FORWARD, OpKind.BACKWARD_INPUT]
        if self._problem.backward.allows(OpKind.BACKWARD_WEIGHT):
            kinds.append(OpKind.BACKWARD_WEIGHT)
        for kind in kinds:
            for op in self._ops(kind):
                known = self._start.get(self._image(op))
                if known is not None:
                    self._start[op] = known
                    continue
                first = self._times.first_in_chain(op.stage)
                earliest = self._times.up(first, op.stage)
                if kind is not OpKind.FORWARD:
                    earliest += self._times.turnaround(op.stage)
                self._start[op] = self._model.new_int_var(earliest, self._horizon, f"start[{op}]")

    def _add_pairs(self) -> None:
        """Any forward and backward of two microbatches on a device may be one block."""
        if not may_pair(self._problem):
            return
        for forward in self._ops(OpKind.FORWARD):
            if self._problem.cost.pair[self._device(forward)] is None:
                continue
            for backward in self._ops(OpKind.BACKWARD_INPUT):
                same_device = self._device(backward) == self._device(forward)
                if same_device and self._independent(forward, backward):
                    known = self._pairs.get((self._image(forward), self._image(backward)))
                    if known is not None:
                        self._pairs[forward, backward] = known
                        continue
                    pair = self._model.new_bool_var(f"pair[{forward};{backward}]")
                    self._pairs[forward, backward] = pair
                    only_if(self._model.add(self._start[forward] == self._start[backward]), pair)
        members: dict[Op, list[cp_model.IntVar]] = {}
        for pair_ops, pair in self._pairs.items():
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
        for forward in self._ops(OpKind.FORWARD):
            self._end[forward] = self._run(forward, cost.F[forward.stage], [])
        for op in self._ops(OpKind.BACKWARD_INPUT):
            ticks_input, ticks_full = cost.I[op.stage], cost.B[op.stage]
            match self._problem.backward:
                case Backward.SPLIT:
                    self._end[op] = self._run(op, ticks_input, [])
                case Backward.FUSED:
                    self._end[op] = self._run(op, ticks_full, [])
                case Backward.FREE:
                    known = self._fused.get(self._image(op))
                    fused = model.new_bool_var(f"fused[{op}]") if known is None else known
                    self._fused[op] = fused
                    if op in self._paired:
                        model.add_implication(self._paired[op], fused)
                    end = model.new_int_var(0, self._horizon, f"end[{op}]")
                    for ticks, chosen in ((ticks_input, ~fused), (ticks_full, fused)):
                        ends = self._run(op, ticks, [chosen])
                        only_if(model.add(end >= ends), chosen)
                    self._end[op] = self._end.get(self._image(op), end)
        for (forward, _), pair in self._pairs.items():
            start, ticks = self._start[forward], self._pair_ticks(forward)
            self._intervals[self._device(forward)].append(
                model.new_optional_interval_var(start, ticks, start + ticks, pair, "")
            )
        if not self._problem.backward.allows(OpKind.BACKWARD_WEIGHT):
            return
        for weight in self._ops(OpKind.BACKWARD_WEIGHT):
            fused = self._fused.get(_input(weight))
            self._end[weight] = self._run(
                weight, cost.W[weight.stage], [] if fused is None else [~fused]
            )

    def _pair_ticks(self, op: Op) -> int:
        ticks = self._problem.cost.pair[self._device(op)]
        if ticks is None:
            raise AssertionError(f"{op} cannot be in a pair")
        return ticks

    def _run(self, op: Op, ticks: int, when: list[cp_model.LiteralT]) -> cp_model.LinearExpr:
        """Add an op's interval on its device and return its end."""
        model, start = self._model, self._start[op]
        paired = self._paired.get(op)
        forms = self._forms.setdefault(op, [])
        forms.append((self.scaled.real(ticks), [*when] if paired is None else [*when, ~paired]))
        if paired is not None:
            forms.append((self.scaled.real(self._pair_ticks(op)), [*when, paired]))
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
        self._intervals[self._device(op)].append(interval)
        return end

    # Constraints

    def _add_dependencies(self) -> None:
        """Forwards go down the chain, backwards up, W's follow; and the whole way at once."""
        problem, model = self._problem, self._model
        for forward in self._ops(OpKind.FORWARD):
            stage, microbatch = forward.stage, forward.microbatch
            following = problem.placement.following[stage]
            backward = Op(stage, OpKind.BACKWARD_INPUT, microbatch)
            model.add(self._start[backward] >= self._start[forward] + self._times.turnaround(stage))
            model.add(self._start[backward] >= self._end[forward])
            if following is not None:
                there, back = problem.lag(stage, following), problem.lag(following, stage)
                model.add(
                    self._start[Op(following, OpKind.FORWARD, microbatch)]
                    >= self._end[forward] + there
                )
                model.add(
                    self._start[backward]
                    >= self._end[Op(following, OpKind.BACKWARD_INPUT, microbatch)] + back
                )
            weight = Op(stage, OpKind.BACKWARD_WEIGHT, microbatch)
            if weight in self._start:
                after = model.add(self._start[weight] >= self._end[backward])
                if backward in self._fused:
                    only_if(after, ~self._fused[backward])

    def _add_order_of_microbatches(self) -> None:
        """Each stage runs each kind in the order of the microbatches (the exchange argument)."""
        for op, start in self._start.items():
            later = self._start.get(Op(op.stage, op.kind, op.microbatch + 1))
            in_chain = op.microbatch + 1 in self._problem.microbatches_of_stage(op.stage)
            if later is None or not in_chain:
                continue
            if op.kind is OpKind.BACKWARD_WEIGHT and self._fused:
                self._model.add(later >= start)
            else:
                self._model.add(later >= self._end[op])

    def _add_exclusion(self) -> None:
        """A device runs one block at a time."""
        for device, intervals in enumerate(self._intervals):
            if not self._is_copy(device):
                self._model.add_no_overlap(intervals)

    def _add_memory(self) -> None:
        """What is allocated and not yet freed fits into each device."""
        rooms = {
            device: limit
            for device in range(self._problem.devices)
            if not self._is_copy(device) and (limit := room(self._problem, device)) is not None
        }
        demands: dict[int, list[tuple[cp_model.IntervalVar, int]]] = {d: [] for d in rooms}
        for forward in self._ops(OpKind.FORWARD):
            device = self._device(forward)
            if device not in rooms:
                continue
            for ops, when in self._backwards(forward):
                for source, freed, amount in held(self._problem, ops):
                    since, until = self._start[source], self._end[freed]
                    within = (0, self._horizon)
                    interval = between(self._model, since, until, within=within, when=when)
                    demands[device].append((interval, amount))
        for device, limit in rooms.items():
            add_room(self._model, demands[device], limit)

    def _backwards(self, forward: Op) -> Iterator[tuple[list[Op], cp_model.LiteralT | None]]:
        """Yield a forward with its backward in each form that it may have, and when it has it."""
        allows = self._problem.backward.allows
        backward, whole = _input(forward), replace(forward, kind=OpKind.BACKWARD)
        fused = self._fused.get(backward)
        if allows(OpKind.BACKWARD_INPUT):
            weight = replace(forward, kind=OpKind.BACKWARD_WEIGHT)
            yield [forward, backward, weight], None if fused is None else ~fused
        if allows(OpKind.BACKWARD):
            yield [forward, whole], fused

    def _add_objective(self) -> None:
        """Makespan or span in real times, between the best bound and the best known schedule."""
        known = max(self._least, bounds(self.scaled.original)[0].ticks)
        least = -(-known // self.scaled.unit)
        self._value = self._model.new_int_var(
            min(least, self._objective), self._objective, "objective"
        )
        firsts: list[list[cp_model.LinearExpr]] = [[] for _ in range(self._problem.devices)]
        for op in self._ops(OpKind.FORWARD):
            if op.microbatch == self._problem.microbatches_of_stage(op.stage)[0]:
                firsts[self._device(op)].append(self._whole_start(op))
        spans = self._problem.objective is Objective.SPAN
        for op, forms in self._forms.items():
            last = self._problem.microbatches_of_stage(op.stage)[-1]
            any_may_be_last = op.kind is OpKind.BACKWARD_WEIGHT and bool(self._fused)
            if op.kind is OpKind.FORWARD or (op.microbatch != last and not any_may_be_last):
                continue
            for ticks, when in forms:
                for begin in firsts[self._device(op)] if spans else [0]:
                    end = self._model.add(self._value >= self._whole_start(op) + ticks - begin)
                    only_if(end, *when)
        self._model.minimize(self._value)

    def _whole_start(self, op: Op) -> cp_model.IntVar:
        """Return the start of an op in real times: rounding down keeps every lag."""
        factor, start = self.scaled.factor, self._start[op]
        if factor == 1:
            return start
        if op not in self._real_start:
            whole = self._model.new_int_var(0, self._horizon // factor, f"real_start[{op}]")
            part = self._model.new_int_var(0, factor - 1, "")
            self._model.add(start == factor * whole + part)
            self._real_start[op] = whole
        return self._real_start[op]

    def _add_hint(self, rows: tuple[Row, ...], starts: Starts) -> None:
        """Hint every variable that decides, from a valid order."""
        hinted = dict.fromkeys(self._fused, 0)
        hinted_variables: set[int] = set()
        together = {
            (block.forward, _input(block.backward))
            for row in rows
            for block in row
            if isinstance(block, Pair)
        }

        def hint(variable: cp_model.IntVar, value: int) -> None:
            if variable.index not in hinted_variables:
                hinted_variables.add(variable.index)
                self._model.add_hint(variable, value)

        for row, begins in zip(rows, starts, strict=True):
            for block, begin in zip(row, begins, strict=True):
                for op in ops_of(block):
                    if op.kind is OpKind.BACKWARD:
                        op = _input(op)
                        hinted[op] = 1
                    hint(self._start[op], begin)
                    if op in self._real_start:
                        hint(self._real_start[op], begin // self.scaled.factor)
        for op, fused in self._fused.items():
            hint(fused, hinted[op])
        for ops, pair in self._pairs.items():
            hint(pair, ops in together)
        hint(self._value, self._objective)

    def rows_of(self, value: Callable[[cp_model.IntVar], int]) -> tuple[tuple[Row, ...], Starts]:
        """Return the order and the starts (scaled) of a solution."""
        problem = self._problem
        timed: list[list[tuple[int, Block]]] = [[] for _ in range(problem.devices)]
        backward_of = dict(ops for ops, pair in self._pairs.items() if value(pair))
        in_pairs = {*backward_of, *backward_of.values()}
        for op, start in self._start.items():
            block: Block = op
            if op in backward_of:
                block = Pair(op, replace(backward_of[op], kind=OpKind.BACKWARD))
            elif op in in_pairs:
                continue
            elif op.kind is OpKind.BACKWARD_INPUT:
                if problem.backward is Backward.FUSED or (
                    op in self._fused and value(self._fused[op])
                ):
                    block = replace(op, kind=OpKind.BACKWARD)
            elif op.kind is OpKind.BACKWARD_WEIGHT:
                fused = self._fused.get(_input(op))
                if fused is not None and value(fused):
                    continue
            timed[self._device(op)].append((value(start), block))
        for blocks in timed:
            blocks.sort()
        rows = tuple(tuple(block for _, block in blocks) for blocks in timed)
        return rows, tuple(tuple(start for start, _ in blocks) for blocks in timed)


class _Reporter(cp_model.CpSolverSolutionCallback):
    """Hand on every solution."""

    def __init__(self, model: Model, on_rows: Callable[[tuple[Row, ...], Starts], None]) -> None:
        super().__init__()
        self._model = model
        self._on_rows = on_rows

    def on_solution_callback(self) -> None:
        """Report the order and its real starts."""
        rows, starts = self._model.rows_of(self.value)
        real_start = self._model.scaled.real_start
        self._on_rows(rows, tuple(tuple(map(real_start, each)) for each in starts))


def _input(op: Op) -> Op:
    return replace(op, kind=OpKind.BACKWARD_INPUT)


def _negated(literal: cp_model.LiteralT) -> cp_model.LiteralT:
    return not literal if isinstance(literal, bool) else ~literal
