"""Pipeline-parallel training schedules: synthesized, bounded, verified, drawn and exported.

>>> import bubbleproof as bp
>>> problem = bp.Problem(devices=2, microbatches=2, cost={"F": 1, "I": 1, "W": 1})
>>> schedule = bp.families.one_f_one_b(problem)
>>> bp.verify(schedule).valid
True
"""

from importlib import import_module
from typing import TYPE_CHECKING

# Bound at once: the import of the subpackage bubbleproof.verify would else take the name.
from bubbleproof.verify.rules import verify

if TYPE_CHECKING:
    from bubbleproof.schedules import families
    from bubbleproof.schedules.cost import Backward, Cost
    from bubbleproof.schedules.curve import Frontier
    from bubbleproof.schedules.graph import dependency_graph
    from bubbleproof.schedules.io import load_problem, load_program, load_schedule, save
    from bubbleproof.schedules.lower import lower
    from bubbleproof.schedules.memory import Memory
    from bubbleproof.schedules.ops import Op, OpKind, Pair
    from bubbleproof.schedules.periodic_words import load_periodic
    from bubbleproof.schedules.placement import Placement
    from bubbleproof.schedules.plot import plot
    from bubbleproof.schedules.plot_curve import plot_frontier
    from bubbleproof.schedules.problem import Objective, Problem
    from bubbleproof.schedules.program import Program
    from bubbleproof.schedules.schedule import Bound, Schedule, Status
    from bubbleproof.schedules.simulate import Timeline, simulate
    from bubbleproof.solver.frontier import frontier
    from bubbleproof.solver.portfolio import solve
    from bubbleproof.solver.result import NoScheduleError, Result
    from bubbleproof.verify.certificate import certify
    from bubbleproof.verify.every_n import verify_every_n
    from bubbleproof.verify.program_rules import verify_program
    from bubbleproof.verify.report import Report, Violation

__version__ = "0.1.0"

_HOME = {
    "Backward": "schedules.cost",
    "Bound": "schedules.schedule",
    "Cost": "schedules.cost",
    "Frontier": "schedules.curve",
    "Memory": "schedules.memory",
    "NoScheduleError": "solver.result",
    "Objective": "schedules.problem",
    "Op": "schedules.ops",
    "OpKind": "schedules.ops",
    "Pair": "schedules.ops",
    "Placement": "schedules.placement",
    "Problem": "schedules.problem",
    "Program": "schedules.program",
    "Report": "verify.report",
    "Result": "solver.result",
    "Schedule": "schedules.schedule",
    "Status": "schedules.schedule",
    "Timeline": "schedules.simulate",
    "Violation": "verify.report",
    "certify": "verify.certificate",
    "dependency_graph": "schedules.graph",
    "frontier": "solver.frontier",
    "load_periodic": "schedules.periodic_words",
    "load_problem": "schedules.io",
    "load_program": "schedules.io",
    "load_schedule": "schedules.io",
    "lower": "schedules.lower",
    "plot": "schedules.plot",
    "plot_frontier": "schedules.plot_curve",
    "save": "schedules.io",
    "simulate": "schedules.simulate",
    "solve": "solver.portfolio",
    "verify_every_n": "verify.every_n",
    "verify_program": "verify.program_rules",
}

__all__ = [
    "Backward",
    "Bound",
    "Cost",
    "Frontier",
    "Memory",
    "NoScheduleError",
    "Objective",
    "Op",
    "OpKind",
    "Pair",
    "Placement",
    "Problem",
    "Program",
    "Report",
    "Result",
    "Schedule",
    "Status",
    "Timeline",
    "Violation",
    "certify",
    "dependency_graph",
    "families",
    "frontier",
    "load_periodic",
    "load_problem",
    "load_program",
    "load_schedule",
    "lower",
    "plot",
    "plot_frontier",
    "save",
    "simulate",
    "solve",
    "verify",
    "verify_every_n",
    "verify_program",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that the command line starts at once."""
    if name == "families":
        value: object = import_module("bubbleproof.schedules.families")
    elif name in _HOME:
        value = getattr(import_module(f"bubbleproof.{_HOME[name]}"), name)
    else:
        raise AttributeError(f"module 'bubbleproof' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*globals(), *__all__])
