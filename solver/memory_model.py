"""Memory in the CP-SAT models of orders: what is held from its allocation to its freeing fits.

A cumulative constraint over those times, not a reservoir. What an op frees is what the ops of its
microbatch before it have allocated, the latest first.
"""

from collections.abc import Sequence
from math import gcd

from ortools.sat.python import cp_model

from bubbleproof.schedules.dependencies import output
from bubbleproof.schedules.ops import Op
from bubbleproof.schedules.problem import Problem
from bubbleproof.solver.cp_sat import only_if


def held(problem: Problem, ops: Sequence[Op]) -> list[tuple[Op, Op, int]]:
    """Return which output frees how much of what which output's op has allocated, in grains.

    Parameters
    ----------
    problem
        The problem.
    ops
        The ops of a microbatch on a stage, in order.
    """
    found: list[tuple[Op, Op, int]] = []
    waiting: list[tuple[Op, int]] = []
    for op in ops:
        allocate, free = problem.memory.of(op.kind)[op.stage]
        if allocate:
            waiting.append((output(op), allocate))
        while free:
            source, amount = waiting.pop()
            taken = min(amount, free)
            free -= taken
            if amount > taken:
                waiting.append((source, amount - taken))
            found.append((source, output(op), taken))
    return found


def between(
    model: cp_model.CpModel,
    since: cp_model.LinearExprT,
    until: cp_model.LinearExprT,
    *,
    within: tuple[int, int],
    when: cp_model.LiteralT | None,
) -> cp_model.IntervalVar:
    """Return all from one time to another, both within a first and a last tick, if there is any."""
    first, last = within
    length = model.new_int_var(0, last - first, "")
    end = model.new_int_var(first, last, "")
    ends = model.add(end == until)
    if when is None:
        return model.new_interval_var(since, length, end, "")
    only_if(ends, when)
    return model.new_optional_interval_var(since, length, end, when, "")


def add_room(
    model: cp_model.CpModel, demands: Sequence[tuple[cp_model.IntervalVar, int]], limit: int
) -> None:
    """What is held at once, each for its interval, fits the limit."""
    if demands:
        unit = gcd(*(amount for _, amount in demands))
        model.add_cumulative(
            [interval for interval, _ in demands],
            [amount // unit for _, amount in demands],
            limit // unit,
        )
