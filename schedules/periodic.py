"""A schedule for many numbers of microbatches: a prologue, a kernel that repeats, an epilogue.

Each device's row is its prologue, its kernel again and again, its epilogue. Every repetition
brings ``step`` more microbatches to each chain: copy j of the kernel has its microbatch numbers
raised by j x step, and the epilogue behind R copies by R x step. Numbers count within a chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bubbleproof.schedules.ops import Block, Op, Pair, Row
from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Periodic:
    """Rows for each number of repetitions, 0 included.

    Parameters
    ----------
    problem
        What the schedule is for when nothing is repeated: its microbatches are those of the
        prologue and epilogue alone.
    step
        For each chain how many microbatches a repetition adds, 1 or more.
    prologue, kernel, epilogue
        For each device its blocks. A microbatch is counted within its chain, from 0; those of
        the kernel are of its first copy, those of the epilogue of no repetition.
    source
        How it was made.

    Raises
    ------
    ValueError
        If there is not one step for each chain and one row of each part for each device.
    """

    problem: Problem
    step: tuple[int, ...]
    prologue: tuple[Row, ...]
    kernel: tuple[Row, ...]
    epilogue: tuple[Row, ...]
    source: str = ""

    def __post_init__(self) -> None:
        """Check that all parts are there."""
        chains = len(self.problem.placement.chains)
        if len(self.step) != chains:
            raise ValueError(
                f"step: {len(self.step)} numbers for {chains} chains; one for each is right"
            )
        for chain, number in enumerate(self.step):
            if number < 1:
                raise ValueError(f"step[{chain}]: {number}; at least 1 is needed")
        for name, rows in (
            ("prologue", self.prologue),
            ("kernel", self.kernel),
            ("epilogue", self.epilogue),
        ):
            if len(rows) != self.problem.devices:
                raise ValueError(
                    f"{name}: {len(rows)} rows for {self.problem.devices} devices; one for each "
                    "is right"
                )

    @property
    def first(self) -> int:
        """The least number of microbatches, that of no repetition."""
        return self.problem.total_microbatches

    @property
    def period(self) -> int:
        """How many microbatches a repetition adds, over all chains."""
        return sum(self.step)

    def microbatches(self, repetitions: int) -> tuple[int, ...]:
        """Return for each chain its microbatches with so many repetitions."""
        each = zip(self.problem.microbatches, self.step, strict=True)
        return tuple(base + repetitions * step for base, step in each)


def unroll(periodic: Periodic, microbatches: int) -> Schedule:
    """Return the schedule for a number of microbatches, over all chains.

    Raises
    ------
    ValueError
        If it is none that whole repetitions reach, with the next one that is.
    """
    more = microbatches - periodic.first
    repetitions, rest = divmod(more, periodic.period)
    if more < 0 or rest:
        accepted = periodic.first if more < 0 else microbatches - rest + periodic.period
        raise ValueError(
            f"microbatches: {microbatches} is not {periodic.first} and whole steps of "
            f"{periodic.period} more; {accepted} is"
        )
    return repeated(periodic, repetitions)


def repeated(periodic: Periodic, repetitions: int) -> Schedule:
    """Return the schedule with the kernel repeated so often."""
    problem = replace(periodic.problem, microbatches=periodic.microbatches(repetitions))
    firsts = problem.first_microbatch
    placement = problem.placement

    def part(row: Row, copy: int) -> Row:
        raised = tuple(
            first + copy * step for first, step in zip(firsts, periodic.step, strict=False)
        )
        return tuple(moved(block, placement, raised) for block in row)

    parts = zip(periodic.prologue, periodic.kernel, periodic.epilogue, strict=True)
    rows = tuple(
        (
            *part(before, 0),
            *(block for copy in range(repetitions) for block in part(kernel, copy)),
            *part(after, repetitions),
        )
        for before, kernel, after in parts
    )
    return Schedule(problem, rows, source=periodic.source)


def moved(block: Block, placement: Placement, by: Sequence[int]) -> Block:
    """Return a block with the microbatches of each chain raised by the chain's number.

    An op of a stage that the placement does not have stays as it is.
    """
    if isinstance(block, Pair):
        return Pair(_moved(block.forward, placement, by), _moved(block.backward, placement, by))
    return _moved(block, placement, by)


def _moved(op: Op, placement: Placement, by: Sequence[int]) -> Op:
    if not 0 <= op.stage < placement.stages:
        return op
    return Op(op.stage, op.kind, op.microbatch + by[placement.chain_of_stage[op.stage]])
