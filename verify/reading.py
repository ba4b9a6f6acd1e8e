"""A schedule or a program as plain numbers, read once for all rules.

An op is a whole number, its code: ``(4 x stage + kind) x n + microbatch``, with n microbatches
in all and the kinds F, I, W, B as 0 to 3; ``4 x stage + kind`` is its group. A block is a whole
number, too: blocks are counted through all rows. What a program does beside computing is a block
without ops that takes no time. Only the first copy of an op counts, one on its own device before
one elsewhere; ops that do not belong to the problem do not count at all.
"""

from bisect import bisect_right
from dataclasses import dataclass
from math import lcm
from typing import TypeAlias

from bubbleproof.schedules.ops import Op, OpKind, Pair
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Action, ActionKind, Program, Step
from bubbleproof.schedules.quantity import Number, in_unit
from bubbleproof.schedules.schedule import Schedule, Starts
from bubbleproof.verify.layout import Layout, layout_as_given, layout_of_name, stages_of_name

KINDS = (OpKind.FORWARD, OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT, OpKind.BACKWARD)
F, I, W, B = range(4)  # noqa: E741
ON_WEIGHTS = frozenset({ActionKind.UNSHARD, ActionKind.RESHARD, ActionKind.REDUCE_GRAD})
FARTHEST_START = 2**53

Need: TypeAlias = tuple[int, int, int]
"""An input: two code differences of which either op gives it, and the delay in ticks."""


@dataclass(frozen=True, slots=True)
class Found:
    """An op at a place of the rows that does not count."""

    device: int
    position: int
    op: Op


@dataclass(frozen=True, slots=True)
class Reading:
    """A schedule or a program and its problem in numbers.

    Parameters
    ----------
    problem, rows, layout
        What is judged, and where the problem's stages are.
    given_starts
        The schedule's starts as they stand; None where there are none.
    microbatches
        All microbatches, n.
    window
        For each stage the microbatches that pass it.
    offsets
        For each row its first block; then the number of all blocks.
    codes
        For each block the codes of its ops that count.
    ticks
        For each block its duration.
    place
        For each code its block.
    needs
        For each group what its ops wait for.
    pairs, messages, on_weights
        For each row the positions of pairs, of messages and groups, and of steps on weights.
    strangers
        Ops outside the problem.
    copies
        Ops that are there before.
    starts
        For each block its start; None where there are none or they do not fit the rows.
    ticks_per_unit
        Ticks of this reading in one unit of the problem's time.
    """

    problem: Problem
    rows: tuple[tuple[Step, ...], ...]
    layout: Layout
    given_starts: Starts | None
    microbatches: int
    window: tuple[range, ...]
    offsets: tuple[int, ...]
    codes: list[tuple[int, ...]]
    ticks: list[int]
    place: dict[int, int]
    needs: tuple[tuple[Need, ...], ...]
    pairs: list[list[int]]
    messages: list[list[int]]
    on_weights: list[list[int]]
    strangers: list[Found]
    copies: list[Found]
    starts: list[int] | None
    ticks_per_unit: int

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.layout.device_of_stage)

    def code(self, stage: int, kind: int, microbatch: int) -> int:
        """Return the code of an op."""
        return (4 * stage + kind) * self.microbatches + microbatch

    def op(self, code: int) -> Op:
        """Return the op that a code stands for."""
        group, microbatch = divmod(code, self.microbatches)
        return Op(group // 4, KINDS[group % 4], microbatch)

    def where(self, block: int) -> tuple[int, int]:
        """Return the device and the position of a block."""
        device = bisect_right(self.offsets, block) - 1
        return device, block - self.offsets[device]

    def block(self, number: int) -> Step:
        """Return the block of a number."""
        device, position = self.where(number)
        return self.rows[device][position]

    def sources(self, code: int) -> list[tuple[int, int | None, int]]:
        """Return for each input of an op the giver's code, its block (None: missing), the delay."""
        found: list[tuple[int, int | None, int]] = []
        for one, other, lag in self.needs[code // self.microbatches]:
            giver = code + (one if code + one in self.place else other)
            found.append((giver, self.place.get(giver), lag))
        return found

    def time(self, ticks: int) -> Number:
        """Return ticks of this reading in the problem's unit."""
        return in_unit(ticks, self.ticks_per_unit)

    def time_text(self, ticks: int) -> str:
        """Return ticks as text, in the problem's unit."""
        return f"{self.time(ticks)} {self.problem.time_unit}".rstrip()

    def amount_text(self, grains: int) -> str:
        """Return an amount of memory as text, in the problem's unit."""
        memory = self.problem.memory
        return f"{in_unit(grains, memory.grains_per_unit)} {memory.unit}".rstrip()


def read(plan: Schedule | Program, problem: Problem) -> Reading:
    """Number the ops and blocks of a schedule or program, as the problem sees them.

    Starts are ticks of the schedule's own problem; a program has none. Where the other problem's
    ticks are longer or shorter, both are brought to the longest tick that makes all times whole.
    """
    per_unit = lcm(problem.cost.ticks_per_unit, plan.problem.cost.ticks_per_unit)
    finer = per_unit // problem.cost.ticks_per_unit
    layout = _layout(problem)
    first = [0]
    for number in problem.microbatches:
        first.append(first[-1] + number)
    window = [range(0)] * len(layout.device_of_stage)
    for index, chain in enumerate(layout.chains):
        for stage in chain:
            window[stage] = range(first[index], first[index + 1])
    offsets = [0]
    for row in plan.rows:
        offsets.append(offsets[-1] + len(row))
    starts = plan.starts if isinstance(plan, Schedule) else None
    reading = Reading(
        problem=problem,
        rows=plan.rows,
        layout=layout,
        given_starts=starts,
        microbatches=first[-1],
        window=tuple(window),
        offsets=tuple(offsets),
        codes=[],
        ticks=[],
        place={},
        needs=_needs(problem, layout, first[-1], finer),
        pairs=[[] for _ in plan.rows],
        messages=[[] for _ in plan.rows],
        on_weights=[[] for _ in plan.rows],
        strangers=[],
        copies=[],
        starts=_flat(starts, plan.rows, per_unit // plan.problem.cost.ticks_per_unit),
        ticks_per_unit=per_unit,
    )
    _number_ops(reading, finer)
    return reading


def _layout(problem: Problem) -> Layout:
    """Return what the placement's name stands for; its tables where the name decides nothing."""
    given = layout_as_given(problem.placement)
    if stages_of_name(problem.placement.name, problem.devices) != len(given.device_of_stage):
        return given
    named = layout_of_name(problem.placement.name, problem.devices)
    return named if len(named.chains) == len(given.chains) else given


def _flat(
    starts: Starts | None, rows: tuple[tuple[Step, ...], ...], finer: int
) -> list[int] | None:
    if starts is None or list(map(len, starts)) != list(map(len, rows)):
        return None
    flat = [start * finer for row in starts for start in row]
    if flat and not -FARTHEST_START * finer < min(flat) <= max(flat) < FARTHEST_START * finer:
        return None
    return flat


def _needs(
    problem: Problem, layout: Layout, microbatches: int, finer: int
) -> tuple[tuple[Need, ...], ...]:
    needs: list[tuple[Need, ...]] = [()] * (4 * len(layout.device_of_stage))

    def lag(source: int, target: int) -> int:
        one, other = layout.device_of_stage[source], layout.device_of_stage[target]
        delay = problem.cost.transfer
        if one == other:
            return 0
        return finer * (delay if isinstance(delay, int) else delay[one][other])

    def away(group: int, stage: int, kind: int) -> int:
        return (4 * stage + kind - group) * microbatches

    for chain in layout.chains:
        for position, stage in enumerate(chain):
            group = 4 * stage
            if position:
                before = chain[position - 1]
                step = away(group, before, F)
                needs[group] = ((step, step, lag(before, stage)),)
            for kind in (I, B):
                own = away(group + kind, stage, F)
                inputs: list[Need] = [(own, own, 0)]
                if position + 1 < len(chain):
                    after = chain[position + 1]
                    inputs.append(
                        (
                            away(group + kind, after, I),
                            away(group + kind, after, B),
                            lag(after, stage),
                        )
                    )
                needs[group + kind] = tuple(inputs)
            gradient = away(group + W, stage, I)
            needs[group + W] = ((gradient, gradient, 0),)
    return tuple(needs)


def _number_ops(reading: Reading, finer: int) -> None:
    """Fill in codes, ticks, place, pairs, messages, steps on weights, strangers, copies."""
    problem, place, codes, window = reading.problem, reading.place, reading.codes, reading.window
    cost, ticks = problem.cost, reading.ticks
    ticks_of = [
        finer * ticks for each in zip(cost.F, cost.I, cost.W, cost.B, strict=True) for ticks in each
    ]
    number_of = {kind: index for index, kind in enumerate(KINDS)}
    stages, microbatches = reading.stages, reading.microbatches
    holder = reading.layout.device_of_stage
    for device, row in enumerate(reading.rows):
        pair_ticks = cost.pair[device] if device < problem.devices else None
        messages, on_weights = reading.messages[device], reading.on_weights[device]
        number = reading.offsets[device] - 1
        for position, block in enumerate(row):
            number += 1
            if isinstance(block, Op):
                ops: tuple[Op, ...] = (block,)
            elif isinstance(block, Pair):
                ops = (block.forward, block.backward)
                reading.pairs[device].append(position)
            else:
                codes.append(())
                ticks.append(0)
                if isinstance(block, Action) and block.kind in ON_WEIGHTS:
                    on_weights.append(position)
                else:
                    messages.append(position)
                continue
            counted: tuple[int, ...] = ()
            duration = 0
            for op in ops:
                stage = op.stage
                if not 0 <= stage < stages or op.microbatch not in window[stage]:
                    reading.strangers.append(Found(device, position, op))
                    continue
                group = 4 * stage + number_of[op.kind]
                duration += ticks_of[group]
                code = group * microbatches + op.microbatch
                earlier = place.setdefault(code, number)
                if earlier == number and code not in counted:
                    counted = (*counted, code)
                elif (
                    earlier < number
                    and device == holder[stage]
                    and (reading.where(earlier)[0] != device)
                ):
                    reading.copies.append(Found(*reading.where(earlier), op))
                    codes[earlier] = tuple(other for other in codes[earlier] if other != code)
                    place[code] = number
                    counted = (*counted, code)
                else:
                    reading.copies.append(Found(device, position, op))
            if len(ops) > 1 and pair_ticks is not None:
                duration = finer * pair_ticks
            codes.append(counted)
            ticks.append(duration)
