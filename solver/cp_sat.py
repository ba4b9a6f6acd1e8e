"""What the models for CP-SAT share: the limits of a search, and constraints for one case only."""

from ortools.sat.python import cp_model


def set_limits(solver: cp_model.CpSolver, *, time_limit_s: float, workers: int, seed: int) -> None:
    """Set a search's time, threads and seed; Ctrl-C is left to who waits for it."""
    parameters = solver.parameters
    parameters.max_time_in_seconds = time_limit_s
    parameters.num_workers = workers
    parameters.random_seed = seed
    parameters.catch_sigint_signal = False


def only_if(constraint: cp_model.Constraint, *literals: cp_model.LiteralT) -> None:
    """Let a constraint hold only where all literals are true."""
    if literals:
        constraint.only_enforce_if(*literals)  # pyright: ignore[reportUnknownMemberType]
