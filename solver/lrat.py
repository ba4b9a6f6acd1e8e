"""Machine-checkable proofs that clauses contradict each other: LRAT, by CP-SAT.

CP-SAT writes a proof only of a plain SAT problem: no presolve, no linear relaxation, no symmetry,
one worker. Its clauses are numbered in the order in which they are added.
"""

import os
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bubbleproof.solver.clauses import Clauses, Question

_PREFIX = Path("/tmp/lrat")
"""Where CP-SAT writes proofs. It has a flag for that, which Python cannot reach."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What CP-SAT found out about clauses.

    Parameters
    ----------
    satisfiable
        None where the time was too short.
    proof
        The LRAT proof where they are not satisfiable.
    """

    satisfiable: bool | None
    proof: str = ""


def answer(asked: Question, *, time_limit_s: float, seed: int = 0) -> Answer:
    """Search an assignment, or prove that there is none.

    Raises
    ------
    OSError
        If CP-SAT's proof cannot be written to or read from its fixed place.
    """
    if not asked.clauses:
        return Answer(satisfiable=True)
    contradiction = _propagated(asked.clauses)
    if contradiction is not None:
        used = " ".join(map(str, contradiction))
        return Answer(satisfiable=False, proof=f"{len(asked.clauses) + 1} 0 {used} 0\n")
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    true = [model.new_bool_var("") for _ in range(asked.variables)]
    literal: dict[int, cp_model.LiteralT] = {}
    for number, variable in enumerate(true, 1):
        literal[number], literal[-number] = variable, ~variable
    for clause in asked.clauses:
        model.add_bool_or([literal[number] for number in clause])
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.max_time_in_seconds = time_limit_s
    parameters.random_seed = seed
    parameters.num_workers = 1
    parameters.catch_sigint_signal = False
    parameters.cp_model_presolve = False
    parameters.linearization_level = 0
    parameters.symmetry_level = 0
    parameters.output_lrat_proof = True
    parameters.check_merged_lrat_proof = True
    with _proof_place() as merged, ThreadPoolExecutor(1) as pool:
        running = pool.submit(solver.solve, model)
        try:
            status = running.result()
        except KeyboardInterrupt:
            solver.stop_search()
            raise
        match status:
            case cp_model.INFEASIBLE:
                return Answer(satisfiable=False, proof=merged.read_text(encoding="ascii"))
            case cp_model.OPTIMAL | cp_model.FEASIBLE:
                return Answer(satisfiable=True)
            case cp_model.UNKNOWN:
                return Answer(satisfiable=None)
            case _:
                raise AssertionError(f"invalid model: {model.validate()}")


def _propagated(clauses: Clauses) -> list[int] | None:
    """Return the clauses by which unit propagation alone leads to a contradiction, if it does.

    Of what it finds that way before it searches, CP-SAT writes no proof.
    """
    containing: dict[int, list[int]] = {}
    for index, clause in enumerate(clauses):
        for literal in clause:
            containing.setdefault(literal, []).append(index)
    open_literals = [len(clause) for clause in clauses]
    true: set[int] = set()
    used: list[int] = []
    waiting = [index for index, count in enumerate(open_literals) if count <= 1]
    for index in waiting:
        left = [literal for literal in clauses[index] if -literal not in true]
        if not left:
            return [*used, index + 1]
        if left[0] in true:
            continue
        true.add(left[0])
        used.append(index + 1)
        for other in containing.get(-left[0], ()):
            open_literals[other] -= 1
            if open_literals[other] == 1:
                waiting.append(other)
    return None


@contextmanager
def _proof_place() -> Generator[Path, None, None]:
    """Keep CP-SAT's fixed place for one proof at a time, and clear it afterwards."""
    import fcntl

    merged = _PREFIX.with_suffix(".txt")
    parts = [_PREFIX.with_name(f"{_PREFIX.name}{worker}.bin") for worker in range(3)]
    lock = os.open(_PREFIX.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # CP-SAT ends the process where it cannot open one of them.
        for path in (*parts, merged):
            path.unlink(missing_ok=True)
        yield merged
    finally:
        for path in (*parts, merged):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        os.close(lock)
