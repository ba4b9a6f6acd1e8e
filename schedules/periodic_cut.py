"""The repeating middle of a program: that of its blocks, where its messages repeat with them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from bubbleproof.schedules.periodic import unroll
from bubbleproof.schedules.periodic_program import PeriodicProgram, Steps, moved_steps
from bubbleproof.schedules.periodic_search import periodic_of
from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.program import Action, Group, Program, schedule_of

MOST_LEFT = 3
"""Fewer copies than this are left in the prologue, and in the epilogue, where messages may differ
from those of the middle."""

MOST_TURNS = 4
"""How many copies of what the blocks repeat the messages may take to repeat."""


def periodic_programs_of(program: Program) -> Iterator[PeriodicProgram]:
    """Yield a program as prologue, kernel and epilogue, those with the shortest kernels first.

    Each gives the program again with its own number of microbatches. With fewer it may break a
    rule; ``verify_program_every_n`` tells.

    Raises
    ------
    DeadlockError
        If the order of its ops cannot run.
    ValueError
        If its rows do not fit its problem.
    """
    schedule = schedule_of(program)
    found = periodic_of(schedule)
    problem = program.problem
    if found is None or unroll(found, problem.total_microbatches).rows != schedule.rows:
        return
    down = [-first for first in problem.first_microbatch]
    rows = [moved_steps(row, problem.placement, down) for row in program.rows]
    repetitions = (problem.total_microbatches - found.first) // found.period
    for turns, before, behind in product(range(1, MOST_TURNS + 1), *[range(MOST_LEFT)] * 2):
        step = [turns * each for each in found.step]
        copies = (repetitions - before - behind) // turns
        if copies < 2:
            continue
        parts = [
            _parts(
                row,
                problem.placement,
                step,
                first=len(prologue) + before * len(kernel),
                length=turns * len(kernel),
                copies=copies,
            )
            for row, prologue, kernel in zip(rows, found.prologue, found.kernel, strict=True)
        ]
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts):
            continue
        counts = zip(problem.microbatches, step, strict=True)
        yield PeriodicProgram(
            problem=replace(problem, microbatches=[n - copies * each for n, each in counts]),
            step=tuple(step),
            prologue=tuple(prologue for prologue, _, _ in whole),
            kernel=tuple(kernel for _, kernel, _ in whole),
            epilogue=tuple(epilogue for _, _, epilogue in whole),
            source=program.source,
        )


def _parts(
    row: Steps, placement: Placement, step: Sequence[int], *, first: int, length: int, copies: int
) -> tuple[Steps, Steps, Steps] | None:
    """Return a row in three parts; None where its steps do not repeat as its blocks do.

    Parameters
    ----------
    row
        The steps, with microbatches counted within their chain.
    first, length
        The block with which the kernel begins, and how many it has.
    copies
        How often it stands there.
    """
    # A part begins with a block, or behind all steps.
    starts = [at for at, each in enumerate(row) if not isinstance(each, (Action, Group))]
    starts.append(len(row))
    if not length:
        return row, (), ()
    kernel = row[starts[first] : starts[first + length]]
    for copy in range(1, copies):
        at = first + copy * length
        raised = moved_steps(kernel, placement, [copy * each for each in step])
        if row[starts[at] : starts[at + length]] != raised:
            return None
    down = [-copies * each for each in step]
    epilogue = moved_steps(row[starts[first + copies * length] :], placement, down)
    return row[: starts[first]], kernel, epilogue
