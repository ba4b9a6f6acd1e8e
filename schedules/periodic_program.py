"""A program for many numbers of microbatches: a periodic schedule with its messages written out.

Prologue, kernel and epilogue hold messages, groups and steps on weights between their blocks. All
microbatches are counted as in ``periodic``, those of a message as those of its stage.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from bubbleproof.schedules.periodic import Periodic, moved
from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Action, Group, Program, Step, blocks_of

Steps: TypeAlias = tuple[Step, ...]
"""A part of a device's row."""


@dataclass(frozen=True, slots=True)
class PeriodicProgram:
    """A program for each number of repetitions, 0 included.

    Parameters
    ----------
    problem, step, source
        As those of ``Periodic``.
    prologue, kernel, epilogue
        For each device its steps.

    Raises
    ------
    ValueError
        If there is not one step for each chain and one row of each part for each device.
    """

    problem: Problem
    step: tuple[int, ...]
    prologue: tuple[Steps, ...]
    kernel: tuple[Steps, ...]
    epilogue: tuple[Steps, ...]
    source: str = ""

    def __post_init__(self) -> None:
        """Check that all parts are there, as ``Periodic`` does."""
        _ = self.computing

    @property
    def computing(self) -> Periodic:
        """What is computed, without the steps between."""
        return Periodic(
            problem=self.problem,
            step=self.step,
            prologue=tuple(map(blocks_of, self.prologue)),
            kernel=tuple(map(blocks_of, self.kernel)),
            epilogue=tuple(map(blocks_of, self.epilogue)),
            source=self.source,
        )


def repeated_program(periodic: PeriodicProgram, repetitions: int) -> Program:
    """Return the program with the kernel repeated so often."""
    problem = replace(periodic.problem, microbatches=periodic.computing.microbatches(repetitions))
    firsts, placement = problem.first_microbatch, problem.placement

    def part(row: Steps, copy: int) -> Steps:
        by = [first + copy * step for first, step in zip(firsts, periodic.step, strict=False)]
        return moved_steps(row, placement, by)

    parts = zip(periodic.prologue, periodic.kernel, periodic.epilogue, strict=True)
    rows = tuple(
        (
            *part(before, 0),
            *(step for copy in range(repetitions) for step in part(kernel, copy)),
            *part(after, repetitions),
        )
        for before, kernel, after in parts
    )
    return Program(problem, rows, source=periodic.source)


def moved_steps(steps: Sequence[Step], placement: Placement, by: Sequence[int]) -> Steps:
    """Return steps with the microbatches of each chain raised by the chain's number."""

    def action(each: Action) -> Action:
        if each.microbatch is None or not 0 <= each.stage < placement.stages:
            return each
        raised = each.microbatch + by[placement.chain_of_stage[each.stage]]
        return Action(each.stage, each.kind, raised)

    def raised() -> Iterator[Step]:
        for step in steps:
            match step:
                case Action():
                    yield action(step)
                case Group():
                    yield Group(tuple(map(action, step.messages)))
                case _:
                    yield moved(step, placement, by)

    return tuple(raised())
