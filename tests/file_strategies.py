"""Hypothesis strategies for everything that a file can hold: problems, schedules, junk."""

from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

from hypothesis import strategies as st

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import Block, Op, OpKind, Pair
from bubbleproof.schedules.placement import Placement, explicit, parse_placement
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Bound, Measured, Schedule, Status

AMOUNTS = st.one_of(
    st.integers(0, 50),
    st.decimals(0, 50, places=3, allow_nan=False),
    st.sampled_from([0.1, 0.29, 0.57, Fraction(1, 8)]),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Draw any placement that a file can name or list."""
    devices = draw(st.integers(1, 4))
    name = draw(st.sampled_from(["linear", "loop:3", "v", "wave:3", "bidirectional", ""]))
    if name:
        return parse_placement(name, devices)
    device_of_stage = draw(st.lists(st.integers(0, devices - 1), min_size=1, max_size=5))
    order = draw(st.permutations(range(len(device_of_stage))))
    cuts = draw(st.sets(st.integers(1, len(order) - 1))) if len(order) > 1 else set[int]()
    ends = [0, *sorted(cuts), len(order)]
    chains = [order[a:b] for a, b in pairwise(ends)]
    return explicit(devices, device_of_stage, chains)


def _each(draw: st.DrawFn, items: st.SearchStrategy[object], number: int) -> object:
    """Draw one item for all, or one for each."""
    alike = draw(st.booleans())
    return draw(items) if alike else draw(st.lists(items, min_size=number, max_size=number))


@st.composite
def problems(draw: st.DrawFn, *, nulls: bool = True) -> Problem:
    """Draw a problem with everything that a file can say; without nulls for TOML."""
    placement = draw(placements())
    devices, stages, chains = placement.devices, placement.stages, len(placement.chains)
    backward = draw(st.sampled_from(Backward))
    cost: dict[str, object] = {"F": _each(draw, AMOUNTS, stages)}
    if backward is not Backward.FUSED or draw(st.booleans()):
        cost |= {"I": _each(draw, AMOUNTS, stages), "W": _each(draw, AMOUNTS, stages)}
    if "I" not in cost or draw(st.booleans()):
        cost["B"] = _each(draw, AMOUNTS, stages)
    optional = st.one_of(st.none(), AMOUNTS) if nulls else AMOUNTS
    if draw(st.booleans()):
        cost["pair"] = _each(draw, optional, devices)
    row = st.lists(AMOUNTS, min_size=devices, max_size=devices)
    matrix = st.lists(row, min_size=devices, max_size=devices)
    cost["transfer"] = draw(st.one_of(AMOUNTS, matrix))
    first = [Decimal(str(float(draw(AMOUNTS)))) for _ in range(stages)]
    more = [draw(st.integers(0, 3)) for _ in range(stages)]
    memory: dict[str, object] = {
        "unit": draw(TEXTS),
        "F": [[amount, 0] for amount in first],
        "I": [[number, amount / 4] for number, amount in zip(more, first, strict=True)],
        "W": [-(n + a - a / 4) for n, a in zip(more, first, strict=True)],
        "static": _each(draw, AMOUNTS, stages),
        "limit": _each(draw, optional, devices),
    }
    counts = st.lists(st.integers(1, 4), min_size=chains, max_size=chains)
    return Problem(
        devices=devices,
        placement=placement,
        microbatches=draw(st.one_of(st.integers(1, 6), counts)),
        cost=cost,
        memory=draw(st.sampled_from([memory, None])),
        backward=backward,
        objective=draw(st.sampled_from(Objective)),
        name=draw(TEXTS),
        time_unit=draw(TEXTS),
    )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Draw a schedule of any ops, valid or not: a file holds what it is given."""
    problem = draw(problems())
    numbers = st.integers(0, 99)
    ops = st.builds(Op, numbers, st.sampled_from(OpKind), numbers)
    forwards = st.builds(Op, numbers, st.just(OpKind.FORWARD), numbers)
    backwards = st.builds(Op, numbers, st.just(OpKind.BACKWARD), numbers)
    blocks: st.SearchStrategy[Block] = st.one_of(ops, st.builds(Pair, forwards, backwards))
    rows = tuple(tuple(draw(st.lists(blocks, max_size=5))) for _ in range(problem.devices))
    ticks = st.integers(0, 2**40)
    starts = tuple(tuple(draw(ticks) for _ in row) for row in rows)
    bound, objective = sorted(draw(st.tuples(ticks, ticks)))
    device = st.one_of(st.none(), st.integers(0, problem.devices - 1))
    bounds = st.builds(
        Bound,
        name=TEXTS,
        ticks=ticks,
        text=TEXTS,
        device=device,
        terms=st.dictionaries(TEXTS, ticks, max_size=3),
    )
    claimed = draw(st.booleans())
    measured = Measured(
        starts=starts,
        ends=tuple(tuple(start + draw(st.integers(0, 99)) for start in row) for row in starts),
        ticks_per_unit=draw(st.sampled_from([1, 7, 10**9])),
        source=draw(TEXTS),
    )
    return Schedule(
        problem=problem,
        rows=rows,
        starts=draw(st.sampled_from([starts, None])),
        source=draw(TEXTS),
        objective=objective if claimed else None,
        bound=bound if claimed else None,
        status=draw(st.sampled_from([None, Status.FEASIBLE, Status.UNKNOWN])),
        proof=tuple(draw(st.lists(bounds, max_size=2))),
        measured=draw(st.sampled_from([None, measured])),
    )


JSON_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8),
        st.sampled_from(["linear", "loop:2", "v", "bubbleproof.problem/1", "0F0", "split"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["F", "I", "W", "B", "limit", "chains", "device_of_stage", "x"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=10,
)
