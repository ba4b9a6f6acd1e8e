"""All unrollings of a periodic program at once: its messages, too, by induction over the kernel.

The theorem and its proof are in SPEC.md, "For every n", under "Written messages".
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from bubbleproof.schedules.ops import Op, OpKind, Pair
from bubbleproof.schedules.periodic_program import PeriodicProgram
from bubbleproof.schedules.program import Action, ActionKind, Group, Program, Step
from bubbleproof.verify.every_n import (
    EveryN,
    Node,
    Wait,
    by_induction,
    copies_that_hold,
    enough,
    longest,
    neighbours,
    steps_of_stages,
)
from bubbleproof.verify.program_rules import verify_program
from bubbleproof.verify.report import Report

Message: TypeAlias = tuple[int, ActionKind, int]
"""One end of a message: stage, kind, and microbatch within the chain."""

Entry: TypeAlias = tuple[Message, ...]
"""What a device posts in one step."""

FEWEST = 2
"""Repetitions after which each device has its weights as before each further copy."""

FORWARD = (ActionKind.SEND_F, ActionKind.RECV_F)
OTHER_END = {
    ActionKind.SEND_F: ActionKind.RECV_F,
    ActionKind.RECV_F: ActionKind.SEND_F,
    ActionKind.SEND_B: ActionKind.RECV_B,
    ActionKind.RECV_B: ActionKind.SEND_B,
}


def verify_program_every_n(periodic: PeriodicProgram) -> EveryN:
    """Return whether all unrollings of a periodic program are valid, under all four transports.

    The rules are judged on the unrollings up to a number of repetitions from which on nothing new
    can happen; that there is such a number needs waits in the kernel that lead back only.

    Raises
    ------
    ValueError
        If an unrolling that has to be looked at is larger than a problem may be.
    """

    def judged(repetitions: int) -> tuple[Program, Report]:
        program = _unrolled(periodic, repetitions)
        return program, verify_program(program)

    def last() -> tuple[int, tuple[str, ...]]:
        computed, cycle = enough(periodic.computing)
        if cycle:
            return computed, cycle
        posted, cycle = _enough_messages(periodic)
        return max(FEWEST, computed, posted), cycle

    return by_induction(periodic.computing, judged, last)


def _unrolled(periodic: PeriodicProgram, repetitions: int) -> Program:
    """Write out prologue, copies of the kernel and epilogue, with global microbatch numbers."""
    problem = periodic.problem
    counts = [
        base + repetitions * step
        for base, step in zip(problem.microbatches, periodic.step, strict=True)
    ]
    chain_of = {s: c for c, chain in enumerate(problem.placement.chains) for s in chain}
    firsts = [sum(counts[:chain]) for chain in range(len(counts))]

    def raised(stage: int, microbatch: int, copy: int) -> int:
        chain = chain_of.get(stage)
        if chain is None:
            return microbatch
        return microbatch + firsts[chain] + copy * periodic.step[chain]

    def op(each: Op, copy: int) -> Op:
        return Op(each.stage, each.kind, raised(each.stage, each.microbatch, copy))

    def action(each: Action, copy: int) -> Action:
        if each.microbatch is None:
            return each
        return Action(each.stage, each.kind, raised(each.stage, each.microbatch, copy))

    def steps(row: Sequence[Step], copy: int) -> Iterator[Step]:
        for step in row:
            match step:
                case Op():
                    yield op(step, copy)
                case Pair():
                    yield Pair(op(step.forward, copy), op(step.backward, copy))
                case Action():
                    yield action(step, copy)
                case Group():
                    yield Group(tuple(action(message, copy) for message in step.messages))

    rows: list[tuple[Step, ...]] = []
    for device in range(problem.devices):
        row = list(steps(periodic.prologue[device], 0))
        for copy in range(repetitions):
            row.extend(steps(periodic.kernel[device], copy))
        row.extend(steps(periodic.epilogue[device], repetitions))
        rows.append(tuple(row))
    return Program(replace(problem, microbatches=counts), tuple(rows), source=periodic.source)


def _enough_messages(periodic: PeriodicProgram) -> tuple[int, tuple[str, ...]]:
    """Return how many repetitions show all that messages can do, and a cycle in the kernel."""
    kernel = KernelMail(periodic)
    climbs, closed = longest(len(kernel.entries), kernel.waits)
    if closed:
        entries = [kernel.entries[wait.block] for wait in closed]
        texts = (" ".join(str(Action(*message)) for message in entry) for entry in entries)
        return copies_that_hold(closed), tuple(texts)
    climb = max(climbs, default=0)
    reach = max(map(abs, kernel.distances), default=0)
    from_prologue = max(
        (
            kernel.partner(message)[1]
            for row in periodic.prologue
            for entry in _entries(row)
            for message in entry
        ),
        default=0,
    )
    return max(3 * reach + 1, max(0, from_prologue) + climb + max(1, reach)), ()


class KernelMail:
    """The entries of all kernels, and which of them wait for which how many copies on.

    Under rendezvous an entry is done when the entry before it in its row is, and those before its
    partners in theirs: then they are posted.
    """

    def __init__(self, periodic: PeriodicProgram) -> None:
        computing = periodic.computing
        self._step = steps_of_stages(computing)
        before, after = neighbours(periodic.problem.placement)
        self._other = {
            ActionKind.SEND_F: after,
            ActionKind.RECV_F: before,
            ActionKind.SEND_B: before,
            ActionKind.RECV_B: after,
        }
        self.entries: list[Entry] = []
        self._previous: list[tuple[Node, int]] = []
        for row in periodic.kernel:
            own = list(_entries(row))
            first, last = len(self.entries), len(self.entries) + len(own) - 1
            self._previous += [(node - 1, 0) for node in range(first, last + 1)]
            if own:
                self._previous[first] = last, -1
            self.entries += own
        self._place = {
            self._key(message): (node, message[2])
            for node, entry in enumerate(self.entries)
            for message in entry
        }
        made = {
            (op.stage, op.kind is OpKind.FORWARD, op.microbatch % self._step[op.stage]): op
            for row in computing.kernel
            for block in row
            for op in ((block.forward, block.backward) if isinstance(block, Pair) else (block,))
            if op.kind is not OpKind.BACKWARD_WEIGHT
        }
        self.waits: list[Wait] = []
        # How many copies on the other end of each message is, and the op that makes or uses it.
        self.distances: list[int] = []
        for node, entry in enumerate(self.entries):
            source, distance = self._previous[node]
            self.waits.append(Wait(node, source, distance))
            for message in entry:
                stage, kind, microbatch = message
                partner, copy = self.partner(message)
                source, distance = self._previous[partner]
                self.waits.append(Wait(node, source, copy + distance))
                step = self._step[stage]
                op = made[stage, kind in FORWARD, microbatch % step]
                self.distances += [copy, (microbatch - op.microbatch) // step]

    def partner(self, message: Message) -> tuple[Node, int]:
        """Return the entry with the other end of a message, and its copy.

        Below 0 it is the prologue's; from the number of repetitions on the epilogue's.
        """
        stage, kind, microbatch = message
        other = self._other[kind][stage]
        node, number = self._place[self._key((other, OTHER_END[kind], microbatch))]
        return node, (microbatch - number) // self._step[other]

    def _key(self, message: Message) -> Message:
        """Return a message's class: its microbatch modulo the step."""
        stage, kind, microbatch = message
        return stage, kind, microbatch % self._step[stage]


def _entries(row: Sequence[Step]) -> Iterator[Entry]:
    """Yield what a row posts, step by step."""
    for step in row:
        messages = step.messages if isinstance(step, Group) else (step,)
        entry = tuple(
            (message.stage, message.kind, message.microbatch)
            for message in messages
            if isinstance(message, Action) and message.microbatch is not None
        )
        if entry:
            yield entry
