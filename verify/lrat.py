"""A checker for LRAT proofs: each line is followed, nothing is searched.

The format is that of Cruz-Filipe, Heule, Hunt, Kaufmann and Schneider-Kamp, "Efficient certified
RAT verification" (CADE 2017): a line adds a clause, with the clauses from which unit propagation
derives it, or deletes clauses. The time is linear in the proof and the clauses that it names.
Steps by resolution asymmetric tautology (RAT) are refused: unit propagation alone is enough to
prove whatever follows.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

_NAME = "[1-9][0-9]{0,17}"
_ADDITION = re.compile(f"({_NAME}) ((?:-?{_NAME} )*)0 ((?:-?{_NAME} )*)0 ?")
_DELETION = re.compile(f"{_NAME} d ((?:{_NAME} )*)0 ?")


@dataclass(frozen=True, slots=True)
class Addition:
    """A derived clause: its number, its literals, and the clauses that unit propagation uses."""

    name: int
    clause: tuple[int, ...]
    hints: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Deletion:
    """Clauses that the rest of the proof does not use."""

    names: tuple[int, ...]


Step: TypeAlias = Addition | Deletion


@dataclass(frozen=True, slots=True)
class Refutation:
    """Whether a proof shows that clauses contradict each other.

    Parameters
    ----------
    steps
        How many clauses were derived.
    fault
        Why it is no proof, with the step; empty where it is one.
    """

    steps: int
    fault: str = ""


def read_steps(lines: Iterable[str]) -> list[Step]:
    """Read the lines of a proof.

    Raises
    ------
    ValueError
        If a line is no LRAT step; the message starts with ``line:column``.
    """
    steps: list[Step] = []
    for number, line in enumerate(lines, 1):
        deletion, addition = _DELETION.fullmatch(line), _ADDITION.fullmatch(line)
        if deletion is not None:
            steps.append(Deletion(_numbers(deletion[1])))
        elif addition is not None:
            name, clause, hints = addition.groups()
            steps.append(Addition(int(name), _numbers(clause), _numbers(hints)))
        else:
            raise ValueError(
                f"{number}:1: {line[:40]!a} is no step; a clause's number, literals, 0, the "
                "clauses used, 0 is one, as 4 -1 0 2 3 0"
            )
    return steps


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


def refute(clauses: Iterable[Sequence[int]], steps: Iterable[Step]) -> Refutation:
    """Follow a proof to the empty clause; what comes after it does not matter.

    Parameters
    ----------
    clauses
        What is to be contradicted; the first has the number 1.
    steps
        The proof.
    """
    known = dict(enumerate(clauses, 1))
    derived = 0
    for number, step in enumerate(steps, 1):
        if isinstance(step, Deletion):
            for name in step.names:
                if known.pop(name, None) is None:
                    return Refutation(
                        derived, f"step {number} deletes clause {name}, which is not there"
                    )
            continue
        if step.name in known:
            return Refutation(derived, f"step {number} derives clause {step.name} a second time")
        fault = _underived(known, step)
        if fault:
            return Refutation(derived, f"step {number} {fault}")
        known[step.name] = step.clause
        derived += 1
        if not step.clause:
            return Refutation(derived)
    return Refutation(derived, "it ends without the empty clause")


def _underived(known: Mapping[int, Sequence[int]], step: Addition) -> str:
    """Return why a clause does not follow; empty where the hints lead to a contradiction.

    Assume that all its literals are false. Each hint must name a clause of which all literals but
    one are false, and so that one is true, until one is false altogether.
    """
    true = {-literal for literal in step.clause}
    for hint in step.hints:
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
