"""What ``bubbleproof export`` writes: judged as it will be executed, then as text."""

from dataclasses import dataclass
from enum import StrEnum

from bubbleproof.schedules import torch_target
from bubbleproof.schedules.io import program_text, schedule_text
from bubbleproof.schedules.lower import lower
from bubbleproof.schedules.program import Program, schedule_of
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.torch_comms import ungrouped
from bubbleproof.verify.program_rules import verify_program
from bubbleproof.verify.report import Report
from bubbleproof.verify.rules import verify
from bubbleproof.verify.target import verify_for_target


class Target(StrEnum):
    """Whom a file is written for."""

    COMPUTE_ONLY = "torch-compute-only"
    COMPUTE_COMMS = "torch-compute-comms"
    TORCHTITAN = "torchtitan"


@dataclass(frozen=True, slots=True)
class Export:
    """A schedule, or the program of one, and the verdict on it.

    Parameters
    ----------
    schedule
        What is computed.
    judged
        What the verdict is about: the program where messages are written, else the schedule.
    verdict
        Only what is valid has a text.
    """

    schedule: Schedule
    judged: Schedule | Program
    verdict: Report

    def text(self, target: Target) -> str:
        """Return the text of the file.

        Raises
        ------
        ValueError
            If the target cannot express it, with the reason.
        """
        for violation in verify_for_target(self.schedule).violations:
            raise ValueError(violation.message)
        if target is Target.TORCHTITAN:
            torch_target.require_torchtitan(self.schedule)
        if isinstance(self.judged, Program):
            return program_text(self.judged, ".csv")
        return schedule_text(self.judged, ".csv")


def prepare(loaded: Schedule | Program, target: Target) -> Export:
    """Return what a target gets.

    Where messages are written they are those of the program that was loaded, without groups, which
    torch does not have; a schedule that is valid is lowered, and the result is judged, too.
    """
    schedule = schedule_of(loaded) if isinstance(loaded, Program) else loaded
    if target is not Target.COMPUTE_COMMS:
        return Export(schedule, schedule, verify(schedule))
    if isinstance(loaded, Program):
        program = ungrouped(loaded)
    else:
        verdict = verify(schedule)
        if not verdict.valid:
            return Export(schedule, schedule, verdict)
        program = lower(schedule, grouped=False)
    return Export(schedule, program, verify_program(program))
