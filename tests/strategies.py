"""Hypothesis strategies for problems and schedules, and a few schedules written by rule.

Nothing here calls the code under test: orders are built from the definition of a valid order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import strategies as st

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import Block, Op, OpKind, Pair, Row
from bubbleproof.schedules.placement import Placement, explicit, parse_placement
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Schedule

F, I, W, B = OpKind.FORWARD, OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT, OpKind.BACKWARD  # noqa: E741

TIMES = st.one_of(st.integers(0, 5), st.sampled_from([0.5, 0.29, 1.25]))


@st.composite
def placements(draw: st.DrawFn, *, max_devices: int = 3) -> Placement:
    """Draw a named or an explicit placement, the explicit ones with one or two chains."""
    devices = draw(st.integers(1, max_devices))
    name = draw(
        st.sampled_from(["linear", "loop:2", "v", "wave:2", "wave:3", "bidirectional", "explicit"])
    )
    if name != "explicit":
        return parse_placement(name, devices)
    device_of_stage = draw(st.lists(st.integers(0, devices - 1), min_size=1, max_size=4))
    order = draw(st.permutations(range(len(device_of_stage))))
    cut = draw(st.integers(0, len(order) - 1))
    chains = [order[:cut], order[cut:]] if cut else [order]
    return explicit(devices, device_of_stage, chains)


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    max_devices: int = 3,
    max_microbatches: int = 4,
    backwards: Sequence[Backward] = tuple(Backward),
) -> Problem:
    """Draw a problem without memory limits: any placement, times per stage (0 too), transfers."""
    placement = draw(placements(max_devices=max_devices))
    devices, stages = placement.devices, placement.stages
    backward = draw(st.sampled_from(backwards))
    allocated = draw(st.integers(0, 4))
    more = draw(st.integers(0, 2))
    freed = draw(st.integers(0, allocated + more))
    one_or_each = st.one_of(TIMES, st.lists(TIMES, min_size=stages, max_size=stages))
    matrix = st.lists(
        st.lists(TIMES, min_size=devices, max_size=devices), min_size=devices, max_size=devices
    )
    chains = len(placement.chains)
    return Problem(
        devices=devices,
        placement=placement,
        microbatches=draw(st.integers(1, max_microbatches))
        if chains == 1
        else draw(st.lists(st.integers(1, max_microbatches), min_size=chains, max_size=chains)),
        cost={
            "F": draw(one_or_each),
            "I": draw(one_or_each),
            "W": draw(one_or_each),
            "pair": None if backward is Backward.SPLIT else draw(st.one_of(st.none(), TIMES)),
            "transfer": draw(st.one_of(TIMES, matrix)),
        },
        memory={
            "F": allocated,
            "I": [[more, freed]] * stages,
            "W": [[0, allocated + more - freed]] * stages,
            "static": draw(st.integers(0, 3)),
        },
        backward=backward,
        time_unit=draw(st.sampled_from(["", "us"])),
    )


@st.composite
def schedules(draw: st.DrawFn, *, timed: bool | None = None, max_devices: int = 3) -> Schedule:
    """Draw a valid schedule in any order that can run, with pairs where they are allowed.

    timed: with starts (earliest ones, some delayed), without (False), or either (None).
    """
    problem = draw(problems(max_devices=max_devices))
    built = any_order(problem, draw(st.randoms(use_true_random=False)))
    with_starts = draw(st.booleans()) if timed is None else timed
    return built if with_starts else replace(built, starts=None)


@st.composite
def reordered_schedules(draw: st.DrawFn) -> Schedule:
    """Draw a schedule with all ops in place and some exchanged within their rows: it may hang."""
    schedule = draw(schedules(timed=False))
    rows = [list(row) for row in schedule.rows]
    for _ in range(draw(st.integers(0, 4))):
        row = rows[draw(st.integers(0, len(rows) - 1))]
        if row:
            one, other = draw(st.tuples(*[st.integers(0, len(row) - 1)] * 2))
            row[one], row[other] = row[other], row[one]
    return replace(schedule, rows=tuple(map(tuple, rows)))


@st.composite
def garbage_schedules(draw: st.DrawFn) -> Schedule:
    """Draw rows and starts without any sense: wrong counts, strange numbers, impossible pairs."""
    problem = draw(problems())
    number = st.one_of(st.integers(-1, 6), st.sampled_from([10**9, -(10**30), 10**30]))
    ops = st.builds(Op, number, st.sampled_from(OpKind), number)
    blocks = st.one_of(ops, st.builds(Pair, ops, ops))
    rows = draw(st.lists(st.lists(blocks, max_size=6).map(tuple), max_size=5).map(tuple))
    instant = st.one_of(st.integers(-3, 30), st.sampled_from([2**53, -(10**400), 10**400]))
    fitting = st.tuples(
        *(st.lists(instant, min_size=len(row), max_size=len(row)).map(tuple) for row in rows)
    )
    senseless = st.lists(st.lists(instant, max_size=6).map(tuple), max_size=5).map(tuple)
    return Schedule(problem, rows, draw(st.one_of(st.none(), fitting, senseless)))


@dataclass(slots=True)
class _Making:
    """A schedule in the making: what has been placed so far."""

    problem: Problem
    rows: list[list[Block]]
    starts: list[list[int]]
    free: list[int]
    end: dict[tuple[int, str, int], int] = field(default_factory=dict[tuple[int, str, int], int])

    def put(self, block: Block, device: int, inputs_at: int, ticks: int) -> None:
        start = max(self.free[device], inputs_at)
        self.rows[device].append(block)
        self.starts[device].append(start)
        self.free[device] = start + ticks
        for op in (block.forward, block.backward) if isinstance(block, Pair) else (block,):
            self.end[op.stage, "I" if op.kind is B else op.kind.value, op.microbatch] = (
                start + ticks
            )


def any_order(problem: Problem, random: Random) -> Schedule:
    """Place, again and again, one of the ops whose inputs are there; delay some of them."""
    making = _Making(
        problem,
        rows=[[] for _ in range(problem.devices)],
        starts=[[] for _ in range(problem.devices)],
        free=[0] * problem.devices,
    )
    device_of, cost = problem.placement.device_of_stage, problem.cost
    fused = {
        (stage, m): problem.backward is Backward.FUSED
        or (problem.backward is Backward.FREE and random.random() < 0.5)
        for stage in range(problem.stages)
        for m in problem.microbatches_of_stage(stage)
    }
    while True:
        ready = list(_ready(making, fused))
        if not ready:
            break
        op, at = random.choice(ready)
        device = device_of[op.stage]
        delay = random.choice([0, 0, 0, 1, 3])
        partners = [
            (other, other_at)
            for other, other_at in ready
            if device_of[other.stage] == device
            and {op.kind, other.kind} == {F, B}
            and op.microbatch != other.microbatch
        ]
        together = cost.pair[device]
        if partners and together is not None and random.random() < 0.5:
            other, other_at = random.choice(partners)
            pair = Pair(op, other) if op.kind is F else Pair(other, op)
            making.put(pair, device, max(at, other_at) + delay, together)
        else:
            making.put(op, device, at + delay, cost.of(op.kind)[op.stage])
    return Schedule(
        problem,
        rows=tuple(map(tuple, making.rows)),
        starts=tuple(map(tuple, making.starts)),
        source="any order",
    )


def _ready(making: _Making, fused: dict[tuple[int, int], bool]) -> Iterator[tuple[Op, int]]:
    """Yield the ops that are not placed and whose inputs are, with when these are there."""
    problem, end = making.problem, making.end
    device_of, delay = problem.placement.device_of_stage, problem.cost.transfer

    def arrival(source: int, kind: str, stage: int, m: int) -> int | None:
        ended = end.get((source, kind, m))
        one, other = device_of[source], device_of[stage]
        if ended is None or one == other:
            return ended
        return ended + (delay if isinstance(delay, int) else delay[one][other])

    for chain, numbers in zip(problem.placement.chains, _numbers(problem), strict=True):
        for position, stage in enumerate(chain):
            for m in numbers:
                if (stage, "F", m) not in end:
                    at = arrival(chain[position - 1], "F", stage, m) if position else 0
                    if at is not None:
                        yield Op(stage, F, m), at
                elif (stage, "I", m) not in end:
                    last = position + 1 == len(chain)
                    at = 0 if last else arrival(chain[position + 1], "I", stage, m)
                    if at is not None:
                        kind = B if fused[stage, m] else I
                        yield Op(stage, kind, m), max(at, end[stage, "F", m])
                elif not fused[stage, m] and (stage, "W", m) not in end:
                    yield Op(stage, W, m), end[stage, "I", m]


def _numbers(problem: Problem) -> Iterator[range]:
    first = 0
    for count in problem.microbatches:
        yield range(first, first + count)
        first += count


def backward_ops(problem: Problem, stage: int, microbatch: int) -> list[Op]:
    """Return I and W, or B where the problem allows it."""
    kinds = (I, W) if problem.backward is Backward.SPLIT else (B,)
    return [Op(stage, kind, microbatch) for kind in kinds]


def one_at_a_time(problem: Problem) -> Schedule:
    """Run each microbatch alone, forward through its chain and backward again."""
    rows: list[list[Block]] = [[] for _ in range(problem.devices)]
    device_of = problem.placement.device_of_stage
    for chain, numbers in zip(problem.placement.chains, _numbers(problem), strict=True):
        for m in numbers:
            for stage in chain:
                rows[device_of[stage]].append(Op(stage, F, m))
            for stage in reversed(chain):
                rows[device_of[stage]].extend(backward_ops(problem, stage, m))
    return Schedule(problem, tuple(map(tuple, rows)), source="one at a time")


def one_f_one_b(problem: Problem) -> Schedule:
    """Run 1F1B on a linear placement: p - s forwards ahead on stage s, then one and one."""
    rows: list[Row] = []
    n = problem.total_microbatches
    for stage in range(problem.devices):
        ahead = min(n, problem.devices - stage)
        row = [Op(stage, F, m) for m in range(ahead)]
        for m in range(n):
            row.extend(backward_ops(problem, stage, m))
            if m + ahead < n:
                row.append(Op(stage, F, m + ahead))
        rows.append(tuple(row))
    return Schedule(problem, tuple(rows), source="1F1B")
