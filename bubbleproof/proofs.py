"""Folders with a schedule and a machine-checkable proof of its bound: written, read, checked.

``schedule.json`` claims the bound, ``proof.cnf`` says that some schedule is below it, and
``proof.lrat`` derives a contradiction from that.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bubbleproof.schedules.files import read_source, write_file
from bubbleproof.schedules.io import load_schedule, schedule_text
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.verify.certificate import Certificate, Standing, certify
from bubbleproof.verify.clause_proof import ClauseProof, check_clause_proof
from bubbleproof.verify.lrat import read_steps
from bubbleproof.verify.report import Report
from bubbleproof.verify.rules import verify

if TYPE_CHECKING:
    from bubbleproof.answers import Json

SCHEDULE, CLAUSES, PROOF = "schedule.json", "proof.cnf", "proof.lrat"


@dataclass(frozen=True, slots=True)
class Checked:
    """What the files of a folder are worth.

    Parameters
    ----------
    schedule, bound
        The schedule, and the bound that it claims, in ticks.
    verdict, certificate, clause_proof
        The judgement on its rows, on its claims, and on the proof.
    """

    schedule: Schedule
    bound: int
    verdict: Report
    certificate: Certificate
    clause_proof: ClauseProof

    @property
    def proven(self) -> bool:
        """Whether the schedule is valid, its claims hold, and so does its bound."""
        refused = self.certificate.standing is Standing.REFUSED
        return self.verdict.valid and not refused and not self.clause_proof.fault


def require_certifiable(problem: Problem) -> None:
    """Refuse a problem that has no proof by clauses.

    Raises
    ------
    ValueError
        With what would do.
    """
    from bubbleproof.solver.clauses import unit_time

    unit_time(problem)


def write_proof(schedule: Schedule, folder: Path, *, time_limit_s: float, seed: int) -> bool:
    """Prove a schedule's bound and write both; return whether the time was enough for it.

    Raises
    ------
    ValueError
        If the problem has no proof by clauses, or nothing can be written.
    """
    from bubbleproof.solver.clauses import question
    from bubbleproof.solver.lrat import answer

    asked = question(schedule.problem, schedule.bound or 0)
    try:
        found = answer(asked, time_limit_s=time_limit_s, seed=seed)
    except OSError as error:
        raise ValueError(f"{error.filename}: no place for a proof: {error.strerror}") from error
    if found.satisfiable is None:
        return False
    if found.satisfiable:
        raise AssertionError(f"the bound is wrong: {asked.variables} variables have a solution")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder}: no such folder can be made: {error.strerror}") from error
    write_file(folder / SCHEDULE, schedule_text(schedule).encode())
    write_file(folder / CLAUSES, str(asked).encode())
    write_file(folder / PROOF, found.proof.encode())
    return True


def check_folder(folder: Path) -> Checked:
    """Judge the files of a folder, from the problem in it alone.

    Raises
    ------
    ValueError
        If a file cannot be read, claims no bound, or is malformed; with its name and the place.
    """
    path = folder / SCHEDULE
    schedule = load_schedule(path)
    if schedule.bound is None:
        raise ValueError(f"{path}: bound is missing; a proof is about a bound, as 55")
    source = read_source(folder / PROOF)
    try:
        steps = read_steps(_lines(source.text))
    except ValueError as error:
        raise ValueError(f"{source.name}:{error}") from None
    cnf = _lines(read_source(folder / CLAUSES).text)
    try:
        clause_proof = check_clause_proof(schedule.problem, schedule.bound, cnf, steps)
    except ValueError as error:
        raise ValueError(f"{path}: in problem: {error}") from None
    return Checked(schedule, schedule.bound, verify(schedule), certify(schedule), clause_proof)


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


def summary(checked: Checked) -> RenderableType:
    """Return what was checked, line by line, for people."""
    proof, claims = checked.clause_proof, checked.certificate
    lines = [
        ("schedule", "valid" if checked.verdict.valid else "not valid"),
        ("claims", "hold" if claims.standing is not Standing.REFUSED else claims.reason),
        ("clauses", f"{proof.clauses} over {proof.variables} variables"),
        ("proof", f"{proof.steps} steps"),
        ("verdict", _conclusion(checked)),
    ]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    for name, value in lines:
        table.add_row(name, Text(value))
    found = [*checked.verdict.violations, *claims.violations]
    return Group(table, *(Text(f"{each.rule}: {each.message}") for each in found))


def answer_of(checked: Checked) -> "Json":
    """Return the same as one object."""
    problem, objective = checked.schedule.problem, checked.certificate.objective
    found = [*checked.verdict.violations, *checked.certificate.violations]
    return {
        "proven": checked.proven,
        "objective": None if objective is None else problem.time(objective),
        "bound": problem.time(checked.bound),
        "variables": checked.clause_proof.variables,
        "clauses": checked.clause_proof.clauses,
        "steps": checked.clause_proof.steps,
        "fault": checked.clause_proof.fault or None,
        "violations": [{"rule": each.rule, "message": each.message} for each in found],
    }


def with_rows(claims: Certificate, verdict: Report) -> Certificate:
    """Return what the claims are worth together with the rows that they are about."""
    if claims.standing is Standing.NOTHING or verdict.valid:
        return claims
    reason = "a schedule that is not valid proves nothing"
    return replace(claims, standing=Standing.REFUSED, reason=reason)


def worth(claims: Certificate) -> RenderableType:
    """Return one line on what a schedule's objective, bound and proof are worth."""
    return Text.assemble(("certificate", "bold"), f"  {claims.standing}: {claims.reason}")


def _conclusion(checked: Checked) -> str:
    problem, objective = checked.schedule.problem, checked.certificate.objective
    if checked.clause_proof.fault:
        return f"refused: {checked.clause_proof.fault}"
    name = problem.objective.value
    proven = f"no schedule has a {name} below {problem.time(checked.bound)}"
    if not checked.proven:
        return f"{proven}, but the schedule is refused"
    if objective == checked.bound:
        return f"{proven}: this one is proven optimal"
    return f"{proven}; this one has {'' if objective is None else problem.time(objective)}"
