"""Short forms for tests that judge programs written as text."""

import re
from collections.abc import Sequence

import bubbleproof as bp
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Program, parse_step
from bubbleproof.verify.deadlock import hangs
from bubbleproof.verify.mail import read_mail
from bubbleproof.verify.program_rules import verify_program
from bubbleproof.verify.reading import read
from bubbleproof.verify.transports import Transport

_STEP = re.compile(r"\{[^{}]*\}|[^\s{}]+")


def written(problem: Problem, *rows: str) -> Program:
    """Return the program whose rows are written with spaces between the steps."""
    return Program(
        problem, tuple(tuple(parse_step(text) for text in _STEP.findall(row)) for row in rows)
    )


def judged(problem: Problem, *rows: str) -> bp.Report:
    """Return the verdict on a program written as text, under all transports."""
    return verify_program(written(problem, *rows))


def hanging(program: Program) -> list[str]:
    """Return the transports under which a program hangs, each asked for alone."""
    mail = read_mail(read(program, program.problem))
    return [transport.value for transport in Transport if hangs(mail, (transport,))]


def problem_of(
    devices: int,
    microbatches: int | Sequence[int],
    placement: str = "linear",
    backward: str = "fused",
) -> Problem:
    """Return a problem with unit times, whose B takes 2."""
    return Problem(
        devices=devices,
        placement=placement,
        microbatches=microbatches,
        cost={"F": 1, "I": 1, "W": 1, "pair": None if backward == "split" else 2},
        backward=backward,
    )
