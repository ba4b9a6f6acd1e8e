"""Judge a program by every rule of SPEC.md: what it computes, its messages and its weights."""

from collections.abc import Sequence
from dataclasses import replace

from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Program
from bubbleproof.verify.causal import RULE as CAUSAL
from bubbleproof.verify.deadlock import deadlocks, hangs
from bubbleproof.verify.mail import read_mail
from bubbleproof.verify.messages import (
    direction,
    group,
    matched,
    order,
    peer,
    produced,
    received,
)
from bubbleproof.verify.reading import read
from bubbleproof.verify.replicas import met_early, replicas
from bubbleproof.verify.report import Report
from bubbleproof.verify.rules import judged
from bubbleproof.verify.transports import Transport
from bubbleproof.verify.weights import left_open, weights


def verify_program(
    program: Program,
    problem: Problem | None = None,
    transports: Sequence[Transport] = tuple(Transport),
) -> Report:
    """Return the verdict on a program; whatever its rows are, nothing is raised.

    Parameters
    ----------
    program
        The program. Positions in the report count all its steps.
    problem
        What it is judged against; its own problem where None.
    transports
        The transports under which it must come to its end.

    Returns
    -------
    Report
        All violations, rule by rule: those of the ops that it computes, as ``verify`` has them,
        then those of its messages and weights. The times are those of the ops alone.
    """
    reading = read(program, program.problem if problem is None else problem)
    report = judged(reading)
    mail = read_mail(reading)
    hung = hangs(mail, transports)
    # Where the ops alone cannot run no order of messages helps, and rule causal has said so.
    stuck = any(violation.rule == CAUSAL for violation in report.violations)
    return replace(
        report,
        violations=(
            *report.violations,
            *peer(mail),
            *direction(mail),
            *group(mail),
            *matched(mail),
            *order(mail),
            *produced(mail),
            *received(mail),
            *weights(reading),
            *replicas(reading),
            *(() if stuck else deadlocks(hung)),
        ),
        deadlock=hung[0].deadlock if hung else None,
        warnings=(*report.warnings, *left_open(reading), *met_early(reading)),
    )
