"""Unit-time problems as clauses: satisfiable exactly when a schedule stays below a bound.

SPEC.md, "Proofs by clauses", defines variables, clauses and their order, and shows why starts in
whole slots and microbatches in order lose nothing. This module restates that definition; the
file of clauses that a proof refers to is compared with it clause by clause.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import TypeAlias

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.memory import Change
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.verify.trips import room_of

Clause: TypeAlias = tuple[int, ...]
"""Literals, as in DIMACS: a variable's number, negative where it is negated."""

MOST_CLAUSES = 5_000_000
"""For the memory of one device, and as variables in all; what is larger is refused."""

_F, _I, _W, _B = OpKind.FORWARD, OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT, OpKind.BACKWARD


@dataclass(frozen=True, slots=True)
class Group:
    """The ops of one stage and kind, in the order of their microbatches.

    Parameters
    ----------
    stage, kind
        Which they are.
    first
        The number of the first op; the others follow.
    size
        How many there are.
    """

    stage: int
    kind: OpKind
    first: int
    size: int


@dataclass(frozen=True, slots=True)
class Slots:
    """A problem whose ops all take one slot, and the question whether it fits below a bound.

    Parameters
    ----------
    problem
        The problem.
    unit
        The ticks of one slot.
    most
        The largest objective below the bound, in slots.
    horizon
        Some schedule with at most that objective, if there is any, starts all its ops in the
        slots 0 to horizon - 1.
    groups
        By stage and kind; none of stages without microbatches.
    """

    problem: Problem
    unit: int
    most: int
    horizon: int
    groups: dict[tuple[int, OpKind], Group]

    @property
    def ops(self) -> int:
        """Number of ops."""
        return sum(group.size for group in self.groups.values())

    @property
    def variables(self) -> int:
        """Number of variables."""
        return self.ops * max(0, self.horizon - 1)


def slots_of(problem: Problem, bound: int) -> Slots:
    """Return a problem in slots, with the question whether an objective below a bound exists.

    Parameters
    ----------
    problem
        A problem whose ops all take the same time, transfers a whole number of it, and whose
        backward is split, or fused without pairs.
    bound
        In ticks.

    Raises
    ------
    ValueError
        If the problem is of another kind, with what does not fit.
    """
    unit = _unit(problem)
    most = max(0, -(-bound // unit) - 1)
    kinds = (_F, _B) if problem.backward is Backward.FUSED else (_F, _I, _W)
    groups: dict[tuple[int, OpKind], Group] = {}
    number = 0
    for stage in range(problem.placement.stages):
        size = problem.microbatches[problem.placement.chain_of_stage[stage]]
        for kind in kinds if size else ():
            groups[stage, kind] = Group(stage, kind, number, size)
            number += size
    horizon = most
    if problem.objective is Objective.SPAN:
        horizon *= 2 * sum(1 for count in problem.microbatches if count)
    slots = Slots(problem, unit, most, horizon, groups)
    if slots.variables > MOST_CLAUSES:
        raise ValueError(
            f"the question has {slots.variables} variables; a proof by clauses is for at most "
            f"{MOST_CLAUSES}"
        )
    return slots


def _unit(problem: Problem) -> int:
    cost = problem.cost
    if problem.backward is Backward.FREE:
        raise ValueError(
            'backward: "free" has no proof by clauses; "split" and "fused" problems do'
        )
    fused = problem.backward is Backward.FUSED
    if fused and any(ticks is not None for ticks in cost.pair):
        raise ValueError("cost.pair: a problem with pairs has no proof by clauses; null does")
    times = {(k.value, t) for k in ((_F, _B) if fused else (_F, _I, _W)) for t in cost.of(k)}
    (kind, unit), *others = sorted(times)
    for other, ticks in others:
        if ticks != unit:
            raise ValueError(
                f"cost: {kind} takes {problem.time(unit)} and {other} {problem.time(ticks)}; a "
                "proof by clauses is for problems whose ops all take the same time"
            )
    if not unit:
        raise ValueError("cost: the ops take no time; a proof by clauses needs a time above 0")
    delays = [cost.transfer] if isinstance(cost.transfer, int) else sum(cost.transfer, ())
    for delay in delays:
        if delay % unit:
            raise ValueError(
                f"cost.transfer: {problem.time(delay)} is no multiple of the ops' time "
                f"{problem.time(unit)}, as a proof by clauses needs it"
            )
    return unit


def clauses_of(slots: Slots) -> Iterator[Clause]:
    """Yield all clauses in the order of SPEC.md."""
    if slots.horizon < 1:
        yield ()
        return
    encoding = _Encoding(slots)
    yield from encoding.monotone()
    yield from encoding.dependencies()
    yield from encoding.exclusive()
    yield from encoding.memory()
    if slots.problem.objective is Objective.SPAN:
        yield from encoding.spans()


Literal: TypeAlias = "int | bool"
"""A literal, or its value where the slots decide it."""


def _clause(literals: Sequence[Literal]) -> Iterator[Clause]:
    """Yield a clause without its false literals; none if a literal is true."""
    if not any(literal is True for literal in literals):
        yield tuple(literal for literal in literals if literal is not False)


class _Encoding:
    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._problem = slots.problem
        self._chain_of = slots.problem.placement.chain_of_stage
        self._position = {
            stage: position
            for chain in slots.problem.placement.chains
            for position, stage in enumerate(chain)
        }
        self._groups_of: list[list[Group]] = [[] for _ in range(slots.problem.devices)]
        for group in slots.groups.values():
            device = slots.problem.placement.device_of_stage[group.stage]
            self._groups_of[device].append(group)

    def _by(self, op: int, slot: int) -> Literal:
        """Op starts in this slot or before."""
        if slot < 0:
            return False
        if slot >= self._slots.horizon - 1:
            return True
        return op * (self._slots.horizon - 1) + slot + 1

    def _after(self, op: int, slot: int) -> Literal:
        """Op starts after this slot."""
        by = self._by(op, slot)
        return not by if isinstance(by, bool) else -by

    def monotone(self) -> Iterator[Clause]:
        """What starts by a slot starts by the next."""
        for op in range(self._slots.ops):
            for slot in range(self._slots.horizon - 1):
                yield from _clause([self._after(op, slot), self._by(op, slot + 1)])

    def dependencies(self) -> Iterator[Clause]:
        """Inputs first, and each group in the order of its microbatches."""
        for group in self._slots.groups.values():
            givers = list(self._givers(group))
            for index in range(group.size):
                op = group.first + index
                for giver, lag in givers:
                    yield from self._before(giver.first + index, op, 1 + lag)
                if index:
                    yield from self._before(op - 1, op, 1)

    def _givers(self, group: Group) -> Iterator[tuple[Group, int]]:
        """Yield the groups that a group waits for, with the transfer in slots."""
        stage, groups = group.stage, self._slots.groups
        chain = self._problem.placement.chains[self._chain_of[stage]]
        position = self._position[stage]
        match group.kind:
            case OpKind.FORWARD:
                if position:
                    before = chain[position - 1]
                    yield groups[before, _F], self._lag(before, stage)
            case OpKind.BACKWARD_WEIGHT:
                yield groups[stage, _I], 0
            case OpKind.BACKWARD_INPUT | OpKind.BACKWARD:
                yield groups[stage, _F], 0
                if position + 1 < len(chain):
                    after = chain[position + 1]
                    yield groups[after, group.kind], self._lag(after, stage)

    def _lag(self, source: int, target: int) -> int:
        return self._problem.lag(source, target) // self._slots.unit

    def _before(self, op: int, later: int, slots: int) -> Iterator[Clause]:
        """The later op starts at least so many slots after the other."""
        for slot in range(self._slots.horizon):
            yield from _clause([self._after(later, slot), self._by(op, slot - slots)])

    def exclusive(self) -> Iterator[Clause]:
        """No two ops of a device start in one slot, where the dependencies leave it open."""
        for groups in self._groups_of:
            members = [(group, index) for group in groups for index in range(group.size)]
            for (one, i), (other, k) in combinations(members, 2):
                if one is other or self._in_order(one, i, other, k):
                    continue
                if self._in_order(other, k, one, i):
                    continue
                a, b = one.first + i, other.first + k
                for slot in range(self._slots.horizon):
                    yield from _clause(
                        [
                            self._after(a, slot),
                            self._by(a, slot - 1),
                            self._after(b, slot),
                            self._by(b, slot - 1),
                        ]
                    )

    def _in_order(self, one: Group, i: int, other: Group, k: int) -> bool:
        """Whether a way of dependencies and of the microbatches' order leads from one to other."""
        if i > k or self._chain_of[one.stage] != self._chain_of[other.stage]:
            return False
        position, end = self._position[one.stage], self._position[other.stage]
        match one.kind:
            case OpKind.FORWARD:
                return other.kind is not _F or position < end
            case OpKind.BACKWARD_INPUT | OpKind.BACKWARD:
                if other.kind is _W:
                    return position >= end
                return other.kind is not _F and position > end
            case OpKind.BACKWARD_WEIGHT:
                return False

    def memory(self) -> Iterator[Clause]:
        """In no slot have so many ops started and so few ended that a device holds too much."""
        for device, groups in enumerate(self._groups_of):
            room = room_of(self._problem, device)
            if room is None:
                continue
            changes = [self._problem.memory.of(group.kind)[group.stage] for group in groups]
            sizes = [group.size for group in groups]
            most = MOST_CLAUSES // self._slots.horizon
            excesses = list(islice(_least_excesses(changes, sizes, room), most + 1))
            if len(excesses) > most:
                raise ValueError(
                    f"memory: what device {device} may not hold takes more than {MOST_CLAUSES} "
                    "clauses; fewer microbatches or stages per device take less"
                )
            for slot in range(self._slots.horizon):
                for started, ended in excesses:
                    literals: list[Literal] = [
                        self._after(group.first + count - 1, slot)
                        for group, count in zip(groups, started, strict=True)
                        if count
                    ]
                    literals += [
                        self._by(group.first + count, slot - 1)
                        for group, count in zip(groups, ended, strict=True)
                        if count < group.size
                    ]
                    yield from _clause(literals)

    def spans(self) -> Iterator[Clause]:
        """On each device every last op starts soon enough after every first one."""
        last_kind = _B if self._problem.backward is Backward.FUSED else _W
        for groups in self._groups_of:
            for one in groups:
                for other in groups:
                    if one.kind is not _F or other.kind is not last_kind:
                        continue
                    last = other.first + other.size - 1
                    for slot in range(self._slots.horizon):
                        until = slot + self._slots.most - 1
                        yield from _clause([self._after(one.first, slot), self._by(last, until)])


def _least_excesses(
    changes: Sequence[Change], sizes: Sequence[int], room: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the states (started, ended) of a device's groups that hold too much, the least ones.

    A group without allocation counts as started 0, one that frees nothing as ended in full. What
    is held is the sum of what the started allocate less what the ended free. In a least state
    one less started, or one more ended, of any group would fit. In lexical order.
    """
    amounts = [allocate for allocate, _ in changes] + [-free for _, free in changes]
    ranges = [
        *(range(size + 1 if a else 1) for (a, _), size in zip(changes, sizes, strict=True)),
        *(range(0 if f else size, size + 1) for (_, f), size in zip(changes, sizes, strict=True)),
    ]
    most_after, least_after = [0], [0]
    for amount, span in zip(reversed(amounts), reversed(ranges), strict=True):
        ends = amount * span[0], amount * span[-1]
        most_after.append(most_after[-1] + max(ends))
        least_after.append(least_after[-1] + min(ends))

    def extend(counts: list[int], held: int, step: int | None) -> Iterator[tuple[int, ...]]:
        """Choose further counts; ``step`` is the least amount by which the chosen could sink."""
        left = len(amounts) - len(counts)
        if held + most_after[left] <= room:
            return
        if step is not None and held + least_after[left] - step > room:
            return
        if not left:
            yield tuple(counts)
            return
        amount, span = amounts[len(counts)], ranges[len(counts)]
        for count in span:
            can_sink = count > span[0] if amount > 0 else count < span[-1]
            sinks = [each for each in (step, abs(amount) if can_sink else None) if each is not None]
            yield from extend([*counts, count], held + amount * count, min(sinks, default=None))

    for state in extend([], 0, None):
        yield state[: len(changes)], state[len(changes) :]
