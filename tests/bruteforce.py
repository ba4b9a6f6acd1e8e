"""The least objective of a tiny problem by trying every order, written from DESIGN 3 alone.

Nothing of the solver, the DAG or the simulator is used, and microbatches may overtake each other.
Devices get their orders one after the other; an order that cannot beat the best known value even
if the other devices had no order at all is dropped. Times are a system of differences
(x_v >= x_u + w), solved by relaxing until nothing changes; a positive cycle has no solution.
"""

from collections.abc import Iterator

from bubbleproof.schedules.ops import Op, OpKind
from bubbleproof.schedules.problem import Objective, Problem

Edge = tuple[Op, Op, int]
F, I, W, B = OpKind


def least_objective(problem: Problem) -> int | None:
    """Return the least makespan or span in ticks; None if no order keeps the memory limits."""
    best: int | None = None
    for forms in _forms(problem):
        best = _search(problem, forms, best)
    return best


def _forms(problem: Problem) -> Iterator[dict[tuple[int, int], bool]]:
    """Yield every choice of a fused backward for each (stage, microbatch)."""
    places = [(s, m) for s in range(problem.stages) for m in problem.microbatches_of_stage(s)]
    match problem.backward.value:
        case "split":
            yield dict.fromkeys(places, False)
        case "fused":
            yield dict.fromkeys(places, True)
        case _:
            for choice in range(2 ** len(places)):
                yield {place: bool(choice >> bit & 1) for bit, place in enumerate(places)}


def _search(
    problem: Problem, fused: dict[tuple[int, int], bool], best: int | None
) -> int | None:
    ops = [
        Op(stage, kind, microbatch)
        for (stage, microbatch), whole in fused.items()
        for kind in ((F, B) if whole else (F, I, W))
    ]
    needs = [edge for op in ops for edge in _needs(problem, op, fused)]
    rows: list[list[Op]] = [
        [op for op in ops if problem.placement.device_of_stage[op.stage] == device]
        for device in range(problem.devices)
    ]
    choices = [list(_orders(problem, device, row)) for device, row in enumerate(rows)]
    ceiling = 1 + sum(problem.duration(op) for op in ops) + sum(lag for *_, lag in needs)

    def descend(device: int, edges: list[Edge], best: int) -> int:
        if device == problem.devices:
            while best > 0 and _feasible(problem, rows, edges, best - 1):
                best -= 1
            return best
        for order in choices[device]:
            chosen = [*edges, *((a, b, problem.duration(a)) for a, b in zip(order, order[1:]))]
            if best > 0 and _feasible(problem, rows, chosen, best - 1):
                best = descend(device + 1, chosen, best)
        return best

    found = descend(0, needs, ceiling if best is None else best)
    if best is None and found == ceiling:
        return None
    return found


def _needs(problem: Problem, op: Op, fused: dict[tuple[int, int], bool]) -> Iterator[Edge]:
    chain = next(chain for chain in problem.placement.chains if op.stage in chain)
    position = chain.index(op.stage)
    sources: list[Op] = []
    if op.kind is F and position:
        sources.append(Op(chain[position - 1], F, op.microbatch))
    if op.kind in (I, B):
        sources.append(Op(op.stage, F, op.microbatch))
        if position + 1 < len(chain):
            later = chain[position + 1]
            kind = B if fused[later, op.microbatch] else I
            sources.append(Op(later, kind, op.microbatch))
    if op.kind is W:
        sources.append(Op(op.stage, I, op.microbatch))
    device_of = problem.placement.device_of_stage
    for source in sources:
        a, b = device_of[source.stage], device_of[op.stage]
        delay = problem.cost.transfer
        lag = 0 if a == b else delay if isinstance(delay, int) else delay[a][b]
        yield source, op, problem.duration(source) + lag


def _orders(problem: Problem, device: int, ops: list[Op]) -> Iterator[list[Op]]:
    """Yield every order of a device's ops that its memory and its own dependencies allow."""
    limit = problem.memory.limit[device]
    held = sum(
        problem.memory.static[stage]
        for stage in range(problem.stages)
        if problem.placement.device_of_stage[stage] == device
    )

    def before(op: Op) -> list[Op]:
        chain = next(chain for chain in problem.placement.chains if op.stage in chain)
        position = chain.index(op.stage)
        return [
            other
            for other in ops
            if other.microbatch == op.microbatch
            and other.stage in chain
            and (
                (op.kind is F and other.kind is F and chain.index(other.stage) < position)
                or (op.kind in (I, B) and other.kind is F)
                and chain.index(other.stage) >= 0
                or (
                    op.kind in (I, B)
                    and other.kind in (I, B)
                    and chain.index(other.stage) > position
                )
                or (op.kind is W and other.stage == op.stage and other.kind is I)
            )
        ]

    predecessors = {op: before(op) for op in ops}

    def extend(row: list[Op], held: int) -> Iterator[list[Op]]:
        if len(row) == len(ops):
            yield list(row)
            return
        for op in ops:
            if op in row or any(other not in row for other in predecessors[op]):
                continue
            allocate, free = problem.memory.of(op.kind)[op.stage]
            if limit is None or held + allocate <= limit:
                row.append(op)
                yield from extend(row, held + allocate - free)
                row.pop()

    yield from extend([], held)


def _feasible(problem: Problem, rows: list[list[Op]], edges: list[Edge], value: int) -> bool:
    """Whether times exist that keep all edges with an objective of at most ``value``."""
    time = {op: 0 for row in rows for op in row}
    limits: list[Edge] = []
    if problem.objective is Objective.SPAN:
        limits = [
            (last, first, problem.duration(last) - value)
            for row in rows
            for last in row
            for first in row
        ]
    for _ in range(len(time) + 2):
        changed = False
        for a, b, least in (*edges, *limits):
            if time[a] + least > time[b]:
                time[b] = time[a] + least
                changed = True
        if problem.objective is Objective.MAKESPAN and any(
            at + problem.duration(op) > value for op, at in time.items()
        ):
            return False
        if not changed:
            return True
    return False
