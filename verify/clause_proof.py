"""Check that clauses and an LRAT proof show that no schedule is below a bound.

Nothing of the solver is trusted: the clauses are compared with those that the problem stands for,
and the proof is followed line by line.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bubbleproof.schedules.problem import Problem
from bubbleproof.verify.clauses import Clause, clauses_of, slots_of
from bubbleproof.verify.lrat import Step, refute


@dataclass(frozen=True, slots=True)
class ClauseProof:
    """The judgement on a proof by clauses.

    Parameters
    ----------
    variables, clauses, steps
        What was read: the size of the question, and the clauses that the proof derives.
    fault
        Why nothing is proven; empty where the bound is.
    """

    variables: int
    clauses: int
    steps: int
    fault: str = ""


def check_clause_proof(
    problem: Problem, bound: int, cnf: Iterable[str], proof: Iterable[Step]
) -> ClauseProof:
    """Judge whether a proof shows that no schedule's objective is below a bound.

    Parameters
    ----------
    problem
        A unit-time problem.
    bound
        In ticks.
    cnf
        The lines of the clauses, in DIMACS.
    proof
        What follows from them.

    Raises
    ------
    ValueError
        If the problem has no proof by clauses.
    """
    slots = slots_of(problem, bound)
    clauses: list[Clause] = []
    lines = (line for line in cnf if not line.startswith("c"))
    header = next(lines, None)
    fault = ""
    for clause, given in _aligned(clauses_of(slots), lines):
        right = None if clause is None else " ".join(map(str, (*clause, 0)))
        if clause is not None:
            clauses.append(clause)
        if right != given:
            number = len(clauses) + (clause is None)
            fault = f"clause {number} is {_shown(given)}; the problem stands for {_shown(right)}"
            return ClauseProof(slots.variables, len(clauses), 0, fault)
    right = f"p cnf {slots.variables} {len(clauses)}"
    if header != right:
        fault = f"the clauses start with {_shown(header)}; the problem stands for {right!a}"
        return ClauseProof(slots.variables, len(clauses), 0, fault)
    refutation = refute(clauses, proof)
    if refutation.fault:
        fault = f"the proof shows nothing: {refutation.fault}"
    return ClauseProof(slots.variables, len(clauses), refutation.steps, fault)


def _aligned(
    clauses: Iterator[Clause], lines: Iterator[str]
) -> Iterator[tuple[Clause | None, str | None]]:
    """Yield clauses and lines side by side, None where one has ended before the other."""
    for clause in clauses:
        yield clause, next(lines, None)
    rest = next(lines, None)
    if rest is not None:
        yield None, rest


def _shown(text: str | None) -> str:
    return "missing" if text is None else ascii(text if len(text) <= 60 else text[:57] + "...")
