"""Check that clauses and an LRAT proof show that no schedule is below a bound.

Nothing of the solver is trusted: the clauses are compared with those that the problem stands for,
and the proof is followed line by line.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bubbleproof.schedules.problem import Problem
from bubbleproof.verify.clauses import Clause, clauses_of, slots_of
from bubbleproof.verify.lrat import refute


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
    problem: Problem, bound: int, cnf: Iterable[str], lrat: Iterable[str]
) -> ClauseProof:
    """Judge whether a proof shows that no schedule's objective is below a bound.

    Parameters
    ----------
    problem
        A unit-time problem.
    bound
        In ticks.
    cnf, lrat
        The lines of the clauses (DIMACS) and of the proof.

    Raises
    ------
    ValueError
        If the problem has no proof by clauses, or a line of the proof is malformed; the message
        of the latter starts with ``line:column``.
    """
    slots = slots_of(problem, bound)
    expected: list[Clause] = []
    fault = ""
    lines = iter(cnf)
    header = next((line for line in lines if not line.startswith("c")), "")
    for number, (clause, line) in enumerate(_aligned(clauses_of(slots), lines), 1):
        if clause is not None:
            expected.append(clause)
        right = None if clause is None else " ".join(map(str, (*clause, 0)))
        given = None if line is None else line.rstrip("\n")
        if right != given:
            return ClauseProof(
                slots.variables,
                len(expected),
                0,
                f"clause {number} is {_shown(given)}; the problem stands for {_shown(right)}",
            )
    right = f"p cnf {slots.variables} {len(expected)}"
    if header.rstrip("\n") != right:
        fault = (
            f"the clauses start with {_shown(header.rstrip())}; the problem stands for {right!a}"
        )
        return ClauseProof(slots.variables, len(expected), 0, fault)
    refutation = refute(expected, lrat)
    if refutation.fault:
        fault = f"the proof proves nothing: {refutation.fault}"
    return ClauseProof(slots.variables, len(expected), refutation.steps, fault)


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
