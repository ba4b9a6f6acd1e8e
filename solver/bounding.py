"""Bounds that take a search of their own, beside the search for schedules."""

from collections.abc import Iterator
from time import monotonic

from bubbleproof.schedules.schedule import Bound
from bubbleproof.solver.fluid import fluid_bounds
from bubbleproof.solver.linear import Stop
from bubbleproof.solver.relaxation import device_bound
from bubbleproof.solver.search import LEAST_S, Search

_DEVICES_SHARE = 0.15


def start_bounds(search: Search) -> None:
    """Bound the objective by single devices, then by several together, beside what follows."""
    left = search.deadline - monotonic()
    if search.closed or search.found.best is None or left < LEAST_S:
        return
    search.bound_beside(lambda stop: _bounds(search, stop))


def _bounds(search: Search, stop: Stop) -> Iterator[Bound]:
    problem, found = search.problem, search.found
    now = monotonic()
    until = now + _DEVICES_SHARE * (search.deadline - now)
    known = found.bound
    for device in range(problem.devices):
        if stop.asked or monotonic() > until:
            break
        bound = device_bound(problem, device, found.objective, until)
        if bound is not None:
            known = max(known, bound.ticks)
            yield bound
    yield from fluid_bounds(problem, found.objective, known, search.deadline, stop)
