"""Bounds that take a search of their own: of single devices, and of several together."""

from time import monotonic

from bubbleproof.solver.fluid import fluid_bounds
from bubbleproof.solver.relaxation import device_bound
from bubbleproof.solver.search import LEAST_S, Search

_BOUNDING_SHARE = 0.15


def try_device_bounds(search: Search) -> None:
    """Bound the objective by the best order of single devices."""
    if search.closed or search.found.best is None:
        return
    now = monotonic()
    until = now + _BOUNDING_SHARE * (search.deadline - now)
    for device in range(search.problem.devices):
        bound = device_bound(search.problem, device, search.found.objective, until)
        if bound is not None:
            search.found.prove(bound)
        if monotonic() > until:
            return


def start_fluid_bounds(search: Search) -> None:
    """Bound the objective by several devices together, beside the searches that follow."""
    left = search.deadline - monotonic()
    if search.closed or search.found.best is None or left < LEAST_S:
        return
    best, known = search.found.objective, search.found.bound
    search.bound_beside(
        lambda stop: fluid_bounds(search.problem, best, known, search.deadline, stop)
    )
