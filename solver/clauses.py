"""Unit-time problems as clauses, for a machine-checkable proof of a bound.

The clauses say that some schedule has an objective below the bound. Variables, clauses and their
order are fixed in verify/SPEC.md, "Proofs by clauses".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product
from typing import TypeAlias

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import Op, OpKind
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.solver.limits import room

MOST_CLAUSES = 4_000_000
"""Beyond, CP-SAT and the checker would need too much memory."""

Clauses: TypeAlias = list[list[int]]


@dataclass(frozen=True, slots=True)
class Question:
    """The clauses that some schedule has an objective below a bound.

    Parameters
    ----------
    variables
        How many there are.
    clauses
        Literals as in DIMACS.
    """

    variables: int
    clauses: Clauses

    def __str__(self) -> str:
        """The text of a DIMACS file."""
        lines = [f"p cnf {self.variables} {len(self.clauses)}"]
        lines += [" ".join(map(str, [*clause, 0])) for clause in self.clauses]
        return "\n".join(lines) + "\n"


def question(problem: Problem, bound: int) -> Question:
    """Return the clauses that a schedule with an objective below a bound (in ticks) exists.

    Raises
    ------
    ValueError
        If the ops do not all take the same time, a transfer is no multiple of it, backwards may
        be fused or split or be in pairs, or the clauses would be too many.
    """
    return _Writer(problem, bound).question()


def unit_time(problem: Problem) -> int:
    """Return the time that every op of a problem takes, in ticks.

    Raises
    ------
    ValueError
        If there is no such time, or clauses cannot express the problem; with what would do.
    """
    needs = "a certificate is for problems in which"
    if problem.backward is Backward.FREE:
        raise ValueError(f'{needs} backward is "split" or "fused", not "free"')
    if problem.backward is Backward.FUSED and any(t is not None for t in problem.cost.pair):
        raise ValueError(f"{needs} cost.pair is null")
    times = sorted({ticks for kind in _kinds(problem) for ticks in problem.cost.of(kind)})
    if times[0] != times[-1] or not times[0]:
        least, most = problem.time(times[0]), problem.time(times[-1])
        raise ValueError(f"{needs} all ops take the same time above 0, not {least} to {most}")
    delays = problem.cost.transfer
    for delay in [delays] if isinstance(delays, int) else sum(delays, ()):
        if delay % times[0]:
            raise ValueError(
                f"{needs} a transfer takes a multiple of an op's time, not {problem.time(delay)}"
            )
    return times[0]


def _too_many_clauses() -> ValueError:
    return ValueError(
        f"a certificate would take more than {MOST_CLAUSES} clauses; a problem with fewer "
        "microbatches, or fewer stages per device, takes less"
    )


def _kinds(problem: Problem) -> list[OpKind]:
    return [kind for kind in OpKind if problem.backward.allows(kind)]


class _Writer:
    """Writes the clauses: variable (op, slot) says that the op starts in this slot or before."""

    def __init__(self, problem: Problem, bound: int) -> None:
        self._problem = problem
        self._unit = unit_time(problem)
        self._most = max(0, -(-bound // self._unit) - 1)
        chains = sum(1 for count in problem.microbatches if count)
        spans = problem.objective is Objective.SPAN
        self._horizon = self._most * (2 * chains if spans else 1)
        ops = [
            Op(stage, kind, microbatch)
            for stage in range(problem.stages)
            for kind in sorted(_kinds(problem), key="FIWB".index)
            for microbatch in problem.microbatches_of_stage(stage)
        ]
        self._number = {op: index for index, op in enumerate(ops)}
        self._ops_of = [
            [op for op in ops if problem.placement.device_of_stage[op.stage] == device]
            for device in range(problem.devices)
        ]
        self._clauses: Clauses = []

    def question(self) -> Question:
        if self._horizon < 1:
            return Question(0, [[]])
        for op in self._number:
            for slot in range(self._horizon - 1):
                self._add([(op, slot, False), (op, slot + 1, True)])
        for op in self._number:
            for before, slots in self._inputs(op):
                self._precede(before, op, slots)
        for ops in self._ops_of:
            self._exclude(ops)
        for device in range(self._problem.devices):
            self._limit_memory(device)
        if self._problem.objective is Objective.SPAN:
            for ops in self._ops_of:
                self._limit_span(ops)
        return Question(len(self._number) * (self._horizon - 1), self._clauses)

    def _add(self, literals: Sequence[tuple[Op, int, bool]]) -> None:
        """Add a clause of literals: op starts by a slot (True), or after it (False)."""
        last = self._horizon - 1
        clause: list[int] = []
        for op, slot, by in literals:
            if 0 <= slot < last:
                number = self._number[op] * last + slot + 1
                clause.append(number if by else -number)
            elif by is (slot >= last):
                return
        if len(self._clauses) >= MOST_CLAUSES:
            raise _too_many_clauses()
        self._clauses.append(clause)

    def _inputs(self, op: Op) -> Iterator[tuple[Op, int]]:
        """Yield what an op comes after, with the least slots from start to start."""
        problem, stage, microbatch = self._problem, op.stage, op.microbatch
        match op.kind:
            case OpKind.FORWARD:
                previous = problem.placement.previous[stage]
                if previous is not None:
                    lag = problem.lag(previous, stage) // self._unit
                    yield Op(previous, op.kind, microbatch), 1 + lag
            case OpKind.BACKWARD_WEIGHT:
                yield Op(stage, OpKind.BACKWARD_INPUT, microbatch), 1
            case OpKind.BACKWARD_INPUT | OpKind.BACKWARD:
                yield Op(stage, OpKind.FORWARD, microbatch), 1
                following = problem.placement.following[stage]
                if following is not None:
                    lag = problem.lag(following, stage) // self._unit
                    yield Op(following, op.kind, microbatch), 1 + lag
        if microbatch > problem.microbatches_of_stage(stage)[0]:
            yield Op(stage, op.kind, microbatch - 1), 1

    def _precede(self, before: Op, op: Op, slots: int) -> None:
        for slot in range(self._horizon):
            self._add([(op, slot, False), (before, slot - slots, True)])

    def _exclude(self, ops: Sequence[Op]) -> None:
        """No two ops of a device in one slot, where their order does not say so already."""
        for one, other in combinations(ops, 2):
            same = one.stage == other.stage and one.kind is other.kind
            if same or self._is_behind(one, other) or self._is_behind(other, one):
                continue
            for slot in range(self._horizon):
                self._add(
                    [
                        (one, slot, False),
                        (one, slot - 1, True),
                        (other, slot, False),
                        (other, slot - 1, True),
                    ]
                )

    def _is_behind(self, one: Op, other: Op) -> bool:
        """Whether the other op depends on this one, or on a later microbatch's like it."""
        placement = self._problem.placement
        chain = placement.chain_of_stage[one.stage]
        if chain != placement.chain_of_stage[other.stage] or one.microbatch > other.microbatch:
            return False
        if one.kind is OpKind.BACKWARD_WEIGHT:
            return False
        stages = placement.chains[chain]
        length = len(stages)

        def passage(op: Op) -> float:
            """Down the chain and up again; a W half a step after its I."""
            position = stages.index(op.stage)
            if op.kind is OpKind.FORWARD:
                return position
            return 2 * length - 1 - position + (op.kind is OpKind.BACKWARD_WEIGHT) / 2

        return passage(one) < passage(other)

    def _limit_memory(self, device: int) -> None:
        """Forbid every least way to hold too much: so many ops started, so few ended."""
        limit = room(self._problem, device)
        if limit is None:
            return
        rows: list[list[Op]] = []
        for op in self._ops_of[device]:
            if rows and (rows[-1][0].stage, rows[-1][0].kind) == (op.stage, op.kind):
                rows[-1].append(op)
            else:
                rows.append([op])
        changes = [self._problem.memory.of(row[0].kind)[row[0].stage] for row in rows]
        most = MOST_CLAUSES // self._horizon
        excesses = list(islice(_excesses(changes, [len(row) for row in rows], limit), most + 1))
        if len(excesses) > most:
            raise _too_many_clauses()
        for slot in range(self._horizon):
            for started, ended in excesses:
                self._add(
                    [
                        *(
                            (row[count - 1], slot, False)
                            for row, count in zip(rows, started, strict=True)
                            if count
                        ),
                        *(
                            (row[count], slot - 1, True)
                            for row, count in zip(rows, ended, strict=True)
                            if count < len(row)
                        ),
                    ]
                )

    def _limit_span(self, ops: Sequence[Op]) -> None:
        last_kind = _kinds(self._problem)[-1]
        if self._problem.backward is Backward.SPLIT:
            last_kind = OpKind.BACKWARD_WEIGHT
        firsts = [
            op
            for op in ops
            if op.kind is OpKind.FORWARD
            and op.microbatch == self._problem.microbatches_of_stage(op.stage)[0]
        ]
        lasts = [
            op
            for op in ops
            if op.kind is last_kind
            and op.microbatch == self._problem.microbatches_of_stage(op.stage)[-1]
        ]
        for first, last in product(firsts, lasts):
            for slot in range(self._horizon):
                self._add([(first, slot, False), (last, slot + self._most - 1, True)])


def _excesses(
    changes: Sequence[tuple[int, int]], sizes: Sequence[int], limit: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield in lexical order the least counts, started and ended, with which too much is held.

    Least: with one op less started, or one more ended, it fits. So once one of the counts chosen
    could give way by a step, what is held may pass the limit by no more than that step.
    """
    steps = [allocate for allocate, _ in changes] + [-free for _, free in changes]
    count = len(changes)

    def choices(index: int) -> range:
        size = sizes[index % count]
        if steps[index]:
            return range(size + 1)
        return range(1) if index < count else range(size, size + 1)

    def held_by(index: int) -> list[int]:
        return [steps[index] * number for number in choices(index)]

    highest = [sum(max(held_by(i)) for i in range(start, 2 * count)) for start in range(2 * count)]
    lowest = [sum(min(held_by(i)) for i in range(start, 2 * count)) for start in range(2 * count)]
    chosen: list[int] = []

    def extend(held: int, most: float) -> Iterator[tuple[list[int], list[int]]]:
        index = len(chosen)
        if index == 2 * count:
            if limit < held <= most:
                yield chosen[:count], chosen[count:]
            return
        if held + highest[index] <= limit or held + lowest[index] > most:
            return
        for number in choices(index):
            least = 0 if index < count else sizes[index - count]
            movable = bool(steps[index]) and number != least
            chosen.append(number)
            yield from extend(
                held + steps[index] * number,
                min(most, limit + abs(steps[index])) if movable else most,
            )
            chosen.pop()

    yield from extend(0, float("inf"))
