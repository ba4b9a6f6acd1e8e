"""The CP-SAT model of a problem: exact for any placement, backward, pair cost and memory.

Microbatches of a chain are alike, so each stage runs them in order without loss: sort the starts
of one stage and kind, and every dependency and memory level stays as it was.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil

from ortools.sat.python import cp_model

from bubbleproof.schedules.ops import Op, OpKind, Pair, Row, ops_of
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Starts
from bubbleproof.schedules.simulate import earliest_starts
from bubbleproof.solver.bounds import bounds
from bubbleproof.solver.cp_sat import only_if, set_limits
from bubbleproof.solver.limits import room
from bubbleproof.solver.memory_model import add_room, between, held
from bubbleproof.solver.mirror import Mirror
from bubbleproof.solver.model_ops import ModelOps
from bubbleproof.solver.scale import Scaled, horizon
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
        self._real_start: dict[Op, cp_model.IntVar] = {}
        self._ops = ModelOps(
            self._model, self.scaled, self._times, horizon=self._horizon, mirror=mirror
        )
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
        status = self._solver.solve(self._model, _Reporter(self.scaled, self._ops, on_rows))
        if status == cp_model.MODEL_INVALID:
            raise AssertionError(f"invalid model: {self._model.validate()}")
        if status == cp_model.INFEASIBLE:
            raise AssertionError("the model refuses the schedule that it was given")
        return ceil(self._solver.best_objective_bound - 1e-6) * self.scaled.unit

    def stop(self) -> None:
        """End a running search soon."""
        self._solver.stop_search()

    def _is_copy(self, device: int) -> bool:
        """Whether a device does what the one that it is the image of does."""
        return self._mirror is not None and device > self._mirror.device[device]

    def _add_dependencies(self) -> None:
        """Forwards go down the chain, backwards up, W's follow; and the whole way at once."""
        problem, model = self._problem, self._model
        for forward in self._ops.of(OpKind.FORWARD):
            stage, microbatch = forward.stage, forward.microbatch
            following = problem.placement.following[stage]
            backward = Op(stage, OpKind.BACKWARD_INPUT, microbatch)
            model.add(
                self._ops.start[backward]
                >= self._ops.start[forward] + self._times.turnaround(stage)
            )
            model.add(self._ops.start[backward] >= self._ops.end[forward])
            if following is not None:
                there, back = problem.lag(stage, following), problem.lag(following, stage)
                model.add(
                    self._ops.start[Op(following, OpKind.FORWARD, microbatch)]
                    >= self._ops.end[forward] + there
                )
                model.add(
                    self._ops.start[backward]
                    >= self._ops.end[Op(following, OpKind.BACKWARD_INPUT, microbatch)] + back
                )
            weight = Op(stage, OpKind.BACKWARD_WEIGHT, microbatch)
            if weight in self._ops.start:
                after = model.add(self._ops.start[weight] >= self._ops.end[backward])
                if backward in self._ops.fused:
                    only_if(after, ~self._ops.fused[backward])

    def _add_order_of_microbatches(self) -> None:
        """Each stage runs each kind in the order of the microbatches (the exchange argument)."""
        for op, start in self._ops.start.items():
            later = self._ops.start.get(Op(op.stage, op.kind, op.microbatch + 1))
            in_chain = op.microbatch + 1 in self._problem.microbatches_of_stage(op.stage)
            if later is None or not in_chain:
                continue
            if op.kind is OpKind.BACKWARD_WEIGHT and self._ops.fused:
                self._model.add(later >= start)
            else:
                self._model.add(later >= self._ops.end[op])

    def _add_exclusion(self) -> None:
        """A device runs one block at a time."""
        for device, intervals in enumerate(self._ops.intervals):
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
        for forward in self._ops.of(OpKind.FORWARD):
            device = self._ops.device(forward)
            if device not in rooms:
                continue
            for ops, when in self._backwards(forward):
                for source, freed, amount in held(self._problem, ops):
                    since, until = self._ops.start[source], self._ops.end[freed]
                    within = (0, self._horizon)
                    interval = between(self._model, since, until, within=within, when=when)
                    demands[device].append((interval, amount))
        for device, limit in rooms.items():
            add_room(self._model, demands[device], limit)

    def _backwards(self, forward: Op) -> Iterator[tuple[list[Op], cp_model.LiteralT | None]]:
        """Yield a forward with its backward in each form that it may have, and when it has it."""
        allows = self._problem.backward.allows
        backward, whole = _input(forward), replace(forward, kind=OpKind.BACKWARD)
        fused = self._ops.fused.get(backward)
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
        for op in self._ops.of(OpKind.FORWARD):
            if op.microbatch == self._problem.microbatches_of_stage(op.stage)[0]:
                firsts[self._ops.device(op)].append(self._whole_start(op))
        spans = self._problem.objective is Objective.SPAN
        for op, forms in self._ops.forms.items():
            last = self._problem.microbatches_of_stage(op.stage)[-1]
            any_may_be_last = op.kind is OpKind.BACKWARD_WEIGHT and bool(self._ops.fused)
            if op.kind is OpKind.FORWARD or (op.microbatch != last and not any_may_be_last):
                continue
            for ticks, when in forms:
                for begin in firsts[self._ops.device(op)] if spans else [0]:
                    end = self._model.add(self._value >= self._whole_start(op) + ticks - begin)
                    only_if(end, *when)
        self._model.minimize(self._value)

    def _whole_start(self, op: Op) -> cp_model.IntVar:
        """Return the start of an op in real times: rounding down keeps every lag."""
        factor, start = self.scaled.factor, self._ops.start[op]
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
        hinted = dict.fromkeys(self._ops.fused, 0)
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
                    hint(self._ops.start[op], begin)
                    if op in self._real_start:
                        hint(self._real_start[op], begin // self.scaled.factor)
        for op, fused in self._ops.fused.items():
            hint(fused, hinted[op])
        for ops, pair in self._ops.pairs.items():
            hint(pair, ops in together)
        hint(self._value, self._objective)


class _Reporter(cp_model.CpSolverSolutionCallback):
    """Hand on every solution."""

    def __init__(
        self, scaled: Scaled, ops: ModelOps, on_rows: Callable[[tuple[Row, ...], Starts], None]
    ) -> None:
        super().__init__()
        self._scaled, self._ops = scaled, ops
        self._on_rows = on_rows

    def on_solution_callback(self) -> None:
        """Report the order and its real starts."""
        rows, starts = self._ops.rows_of(self.value)
        real_start = self._scaled.real_start
        self._on_rows(rows, tuple(tuple(map(real_start, each)) for each in starts))


def _input(op: Op) -> Op:
    return replace(op, kind=OpKind.BACKWARD_INPUT)
