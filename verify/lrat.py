"""A checker for LRAT proofs: each line is followed, nothing is searched.

The format is that of Cruz-Filipe, Heule, Hunt, Kaufmann and Schneider-Kamp, "Efficient certified
RAT verification" (CADE 2017): a line adds a clause, with the clauses from which unit propagation
derives it, or deletes clauses. The time is linear in the proof and the clauses that it names.
Steps by resolution asymmetric tautology (RAT) are refused: unit propagation alone is enough to
prove whatever follows.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_NAME = "[1-9][0-9]{0,17}"
_STEP = re.compile(f"({_NAME}) ((?:-?{_NAME} )*)0 ((?:-?{_NAME} )*)0 ?")
_DELETION = re.compile(f"{_NAME} d ((?:{_NAME} )*)0 ?")


@dataclass(frozen=True, slots=True)
class Refutation:
    """Whether a proof shows that clauses contradict each other.

    Parameters
    ----------
    steps
        How many clauses were derived.
    fault
        Why it is no proof, with the line; empty where it is one.
    """

    steps: int
    fault: str = ""


def refute(clauses: Iterable[Sequence[int]], lines: Iterable[str]) -> Refutation:
    """Follow a proof to the empty clause.

    Parameters
    ----------
    clauses
        What is to be contradicted; the first has the number 1.
    lines
        The proof. What follows the empty clause is not read.

    Raises
    ------
    ValueError
        If a line is no LRAT step, with its number.
    """
    known = dict(enumerate(clauses, 1))
    steps = 0
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\n")
        deletion = _DELETION.fullmatch(text)
        if deletion:
            for name in map(int, deletion[1].split()):
                if known.pop(name, None) is None:
                    return Refutation(
                        steps, f"line {number} deletes clause {name}, which is not there"
                    )
            continue
        step = _STEP.fullmatch(text)
        if step is None:
            raise ValueError(
                f"{number}:1: {text[:40]!a} is no step; a clause's number, literals, 0, the "
                "clauses used, 0 is one, as 4 -1 0 2 3 0"
            )
        name, clause = int(step[1]), tuple(map(int, step[2].split()))
        if name in known:
            return Refutation(steps, f"line {number} derives clause {name} a second time")
        fault = _underived(known, clause, map(int, step[3].split()))
        if fault:
            return Refutation(steps, f"line {number} {fault}")
        known[name] = clause
        steps += 1
        if not clause:
            return Refutation(steps)
    return Refutation(steps, "it ends without the empty clause")


def _underived(known: dict[int, Sequence[int]], clause: Sequence[int], hints: Iterable[int]) -> str:
    """Return why a clause does not follow; empty where the hints lead to a contradiction.

    Assume that all its literals are false. Each hint must name a clause of which all literals but
    one are false, and so that one is true, until one is false altogether.
    """
    true = {-literal for literal in clause}
    for hint in hints:
        if hint < 0:
            return "is a RAT step, which is not accepted"
        used = known.get(hint)
        if used is None:
            return f"uses clause {hint}, which is not there"
        left = [literal for literal in used if -literal not in true]
        if not left:
            return ""
        if len(left) > 1:
            return f"uses clause {hint}, which leaves {len(left)} literals open"
        true.add(left[0])
    return "ends without a contradiction"
