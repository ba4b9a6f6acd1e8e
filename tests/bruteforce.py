"""The least objective of a tiny problem by trying every order, from verify/SPEC.md alone.

Nothing of the solver, the DAG or the simulator is used, and microbatches may overtake each other.
Every choice of fused backwards and of pairs is tried. Devices get their orders one after the
other; an order that cannot beat the best known value even if the other devices had no order at
all is dropped. Times are a system of differences (x_v >= x_u + w), solved by relaxing until
nothing changes; a cycle that grows has no solution.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise, product

from bubbleproof.schedules.ops import Op, OpKind
from bubbleproof.schedules.problem import Objective, Problem

Unit = tuple[Op, ...]
"""What a device runs as one: an op, or a pair's two."""

Edge = tuple[Unit, Unit, int]
F, I, W, B = OpKind  # noqa: E741


def least_objective(problem: Problem) -> int | None:
    """Return the least makespan or span in ticks; None if no order keeps the memory limits."""
    best: int | None = None
    for ops in _forms(problem):
        for units in _pairings(problem, ops):
            found = _search(problem, units, best)
            best = found if best is None or (found is not None and found < best) else best
    return best


def _forms(problem: Problem) -> Iterator[list[Op]]:
    """Yield the ops of every choice of a fused or a split backward."""
    places = [(s, m) for s in range(problem.stages) for m in problem.microbatches_of_stage(s)]
    forms = {"split": [(F, I, W)], "fused": [(F, B)], "free": [(F, I, W), (F, B)]}
    for choice in product(forms[problem.backward.value], repeat=len(places)):
        yield [
            Op(stage, kind, microbatch)
            for (stage, microbatch), kinds in zip(places, choice, strict=True)
            for kind in kinds
        ]


def _pairings(problem: Problem, ops: Sequence[Op]) -> Iterator[list[Unit]]:
    """Yield the ops as units, for every choice of pairs that the problem allows."""
    device_of = problem.placement.device_of_stage
    candidates = [
        (f, b)
        for f in ops
        for b in ops
        if f.kind is F
        and b.kind is B
        and f.microbatch != b.microbatch
        and device_of[f.stage] == device_of[b.stage]
        and problem.cost.pair[device_of[f.stage]] is not None
    ]
    for count in range(len(candidates) + 1):
        for pairs in combinations(candidates, count):
            paired = [op for pair in pairs for op in pair]
            if len(set(paired)) == len(paired):
                yield [*pairs, *((op,) for op in ops if op not in paired)]


def _search(problem: Problem, units: list[Unit], best: int | None) -> int | None:
    unit_of = {op: unit for unit in units for op in unit}
    needs = [
        (unit_of[source], unit, _ticks(problem, unit_of[source]) + lag)
        for unit in units
        for op in unit
        for source, lag in _inputs(problem, op, unit_of)
    ]
    device_of = problem.placement.device_of_stage
    rows = [
        [unit for unit in units if device_of[unit[0].stage] == device]
        for device in range(problem.devices)
    ]
    choices = [list(_orders(problem, device, row, needs)) for device, row in enumerate(rows)]
    ceiling = 1 + sum(_ticks(problem, unit) for unit in units) + sum(lag for *_, lag in needs)

    def descend(device: int, edges: list[Edge], best: int) -> int:
        if device == problem.devices:
            while best > 0 and _feasible(problem, rows, edges, best - 1):
                best -= 1
            return best
        for order in choices[device]:
            chosen = [*edges, *((a, b, _ticks(problem, a)) for a, b in pairwise(order))]
            if best > 0 and _feasible(problem, rows, chosen, best - 1):
                best = descend(device + 1, chosen, best)
        return best

    start = ceiling if best is None else best
    found = descend(0, needs, start)
    return found if found < start else None


def _ticks(problem: Problem, unit: Unit) -> int:
    if len(unit) == 1:
        return problem.cost.of(unit[0].kind)[unit[0].stage]
    ticks = problem.cost.pair[problem.placement.device_of_stage[unit[0].stage]]
    assert ticks is not None
    return ticks


def _inputs(problem: Problem, op: Op, unit_of: Mapping[Op, Unit]) -> Iterator[tuple[Op, int]]:
    chain = next(chain for chain in problem.placement.chains if op.stage in chain)
    position = chain.index(op.stage)
    sources: list[Op] = []
    if op.kind is F and position:
        sources.append(Op(chain[position - 1], F, op.microbatch))
    if op.kind in (I, B):
        sources.append(Op(op.stage, F, op.microbatch))
        if position + 1 < len(chain):
            later = (Op(chain[position + 1], kind, op.microbatch) for kind in (I, B))
            sources += [source for source in later if source in unit_of]
    if op.kind is W:
        sources.append(Op(op.stage, I, op.microbatch))
    device_of = problem.placement.device_of_stage
    for source in sources:
        a, b = device_of[source.stage], device_of[op.stage]
        delay = problem.cost.transfer
        yield source, 0 if a == b else delay if isinstance(delay, int) else delay[a][b]


def _orders(
    problem: Problem, device: int, units: list[Unit], needs: list[Edge]
) -> Iterator[list[Unit]]:
    """Yield every order of a device's units that its memory and its own dependencies allow."""
    limit = problem.memory.limit[device]
    static = sum(
        problem.memory.static[stage]
        for stage in range(problem.stages)
        if problem.placement.device_of_stage[stage] == device
    )
    before = {unit: [a for a, b, _ in needs if b == unit and a in units] for unit in units}

    def extend(row: list[Unit], held: int) -> Iterator[list[Unit]]:
        if len(row) == len(units):
            yield list(row)
            return
        for unit in units:
            if unit in row or any(other not in row for other in before[unit]):
                continue
            changes = [problem.memory.of(op.kind)[op.stage] for op in unit]
            allocated = held + sum(allocate for allocate, _ in changes)
            if limit is None or allocated <= limit:
                row.append(unit)
                yield from extend(row, allocated - sum(free for _, free in changes))
                row.pop()

    if limit is None or static <= limit:
        yield from extend([], static)


def _feasible(problem: Problem, rows: list[list[Unit]], edges: Sequence[Edge], value: int) -> bool:
    """Whether times exist that keep all edges with an objective of at most ``value``.

    Times are in grains of a tick, and every edge takes one grain more: so units of length zero
    are in an order too. A tick has more grains than all edges of a cycle can take together, and
    an objective may be as many grains too large as there are edges on a way through.
    """
    time = {unit: 0 for row in rows for unit in row}
    grains = len(time) ** 2 + 1
    steps = [(a, b, least * grains + 1) for a, b, least in edges]
    most = value * grains + len(time)
    if problem.objective is Objective.SPAN:
        steps += [
            (last, first, _ticks(problem, last) * grains - most)
            for row in rows
            for last in row
            for first in row
        ]
    for _ in range(len(time) + 2):
        changed = False
        for a, b, least in steps:
            if time[a] + least > time[b]:
                time[b] = time[a] + least
                changed = True
        if problem.objective is Objective.MAKESPAN and any(
            at + _ticks(problem, unit) * grains > most for unit, at in time.items()
        ):
            return False
        if not changed:
            return True
    return False
