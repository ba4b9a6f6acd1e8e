"""What ``bubbleproof verify`` and ``repair`` decide: verdicts with messages, and messages anew."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bubbleproof.schedules.lower import lower
from bubbleproof.schedules.program import Program, schedule_of
from bubbleproof.schedules.repair import repair
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.verify.program_rules import verify_program
from bubbleproof.verify.report import Report, Violation
from bubbleproof.verify.rules import verify
from bubbleproof.verify.target import Target, verify_for_target
from bubbleproof.verify.transports import Transport


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict.

    Parameters
    ----------
    verdict
        The verdict.
    judged
        What its positions count in.
    transports
        Under which messages were moved; none where a schedule is not even lowered.
    notes
        What a runtime needs from its user; None where none was asked for.
    """

    verdict: Report
    judged: Schedule | Program
    transports: tuple[Transport, ...]
    notes: tuple[Violation, ...] | None = None

    @property
    def messages(self) -> RenderableType:
        """One line on the messages."""
        names = ", ".join(transport.value for transport in self.transports)
        if not names:
            line = "not looked at, since what is computed is not valid"
        elif self.verdict.deadlock is not None:
            line = f"a deadlock under {self.verdict.deadlock['transport']}"
        else:
            made = "as lowered, " if isinstance(self.judged, Schedule) else ""
            line = f"{made}all arrive under {names}"
        return Text.assemble(("messages", "bold"), f"     {line}")

    @property
    def needs(self) -> RenderableType:
        """The notes, a line or two each."""
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", min_width=len("peak memory"))
        for index, note in enumerate(self.notes or ()):
            table.add_row("" if index else "target", note.message)
        return table


def judge(
    loaded: Schedule | Program,
    transports: Sequence[Transport],
    target: Target | None = None,
    torch_version: str | None = None,
) -> Judgement:
    """Return the verdict on a program as it is, or on a schedule and the program it becomes.

    Where there is a target, its needs are judged, too.
    """
    judgement = _judge(loaded, tuple(transports), grouped=target is not Target.TORCH)
    if target is None:
        return judgement
    fitness = verify_for_target(loaded, target, torch_version=torch_version)
    verdict = judgement.verdict
    return replace(
        judgement,
        verdict=replace(verdict, violations=(*verdict.violations, *fitness.violations)),
        notes=fitness.notes,
    )


def _judge(loaded: Schedule | Program, asked: tuple[Transport, ...], *, grouped: bool) -> Judgement:
    if isinstance(loaded, Program):
        return Judgement(verify_program(loaded, transports=asked), loaded, asked)
    verdict = verify(loaded)
    if not verdict.valid:
        return Judgement(verdict, loaded, ())
    program = lower(loaded, grouped=grouped)
    moved = verify_program(program, transports=asked)
    if not moved.valid:
        return Judgement(moved, program, asked)
    return Judgement(verdict, loaded, asked)


@dataclass(frozen=True, slots=True)
class Repair:
    """A program with new messages, or why there is none.

    Parameters
    ----------
    before
        The verdict on the program as it was.
    program
        With its messages rewritten; as it was where nothing was wrong; None where no messages
        help.
    after
        The verdict on that, or on what the ops compute where no messages help.
    judged
        What ``after`` is about.
    """

    before: Report
    program: Program | None
    after: Report
    judged: Schedule | Program


def repaired(program: Program, *, grouped: bool) -> Repair:
    """Return a program with messages that are safe under every transport.

    Its ops and its steps on weights keep their order.
    """
    before = verify_program(program)
    if before.valid:
        return Repair(before, program, before, program)
    schedule = schedule_of(program)
    computed = verify(schedule)
    if {violation.rule for violation in computed.violations} - {"memory"}:
        return Repair(before, None, computed, schedule)
    fixed = repair(program, grouped=grouped)
    return Repair(before, fixed, verify_program(fixed), fixed)
