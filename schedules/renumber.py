"""Renumbering: microbatches get the numbers of their order at the end of their chain.

Microbatches of a chain are alike, so only names change: the ops keep their places and their times,
and what a schedule claims of its length stays true. Torch's runtime finds losses by the order of
the last stage's forwards and needs these numbers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from bubbleproof.schedules.ops import Block, Op, OpKind, Pair, ops_of
from bubbleproof.schedules.program import Action, Group, Program, Step
from bubbleproof.schedules.schedule import Schedule

Plan = TypeVar("Plan", bound=Schedule | Program)


def renumbered(plan: Plan) -> Plan:
    """Return a schedule or program in which each chain's last stage runs F 0, 1, 2, ... in order.

    Parameters
    ----------
    plan
        Any rows. A microbatch whose last forward is missing comes after those that have one;
        what the problem does not have keeps its number.

    Returns
    -------
    Schedule or Program
        The same one with other numbers, in ops and in messages.
    """
    numbers = _numbers(plan)
    match plan:
        case Schedule():
            blocks = tuple(tuple(_block(block, numbers) for block in row) for row in plan.rows)
            return replace(plan, rows=blocks)
        case Program():
            steps = tuple(tuple(_step(step, numbers) for step in row) for row in plan.rows)
            return replace(plan, rows=steps)


def _numbers(plan: Schedule | Program) -> Mapping[int, int]:
    """Return for each microbatch of the problem its new number."""
    problem = plan.problem
    ends = {chain[-1]: index for index, chain in enumerate(problem.placement.chains)}
    order: list[dict[int, None]] = [{} for _ in problem.placement.chains]
    for row in plan.rows:
        for step in row:
            for op in () if isinstance(step, (Action, Group)) else ops_of(step):
                if op.kind is OpKind.FORWARD and op.stage in ends:
                    order[ends[op.stage]].setdefault(op.microbatch)
    numbers: dict[int, int] = {}
    for index, found in enumerate(order):
        own = range(problem.first_microbatch[index], problem.first_microbatch[index + 1])
        named = [microbatch for microbatch in found if microbatch in own]
        others = [microbatch for microbatch in own if microbatch not in found]
        numbers.update(zip([*named, *others], own, strict=True))
    return numbers


def _block(block: Block, numbers: Mapping[int, int]) -> Block:
    match block:
        case Op():
            return _op(block, numbers)
        case Pair():
            return Pair(_op(block.forward, numbers), _op(block.backward, numbers))


def _op(op: Op, numbers: Mapping[int, int]) -> Op:
    return replace(op, microbatch=numbers.get(op.microbatch, op.microbatch))


def _step(step: Step, numbers: Mapping[int, int]) -> Step:
    match step:
        case Action():
            return _action(step, numbers)
        case Group():
            return Group(tuple(_action(message, numbers) for message in step.messages))
        case _:
            return _block(step, numbers)


def _action(action: Action, numbers: Mapping[int, int]) -> Action:
    if action.microbatch is None:
        return action
    microbatch = numbers.get(action.microbatch, action.microbatch)
    return Action(action.stage, action.kind, microbatch)
