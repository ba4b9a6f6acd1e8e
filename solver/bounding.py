"""Bounds that take a search of their own, beside the search for schedules."""

from collections.abc import Iterator
from time import monotonic

from bubbleproof.schedules.schedule import Bound
from bubbleproof.solver.background import Stop
from bubbleproof.solver.deciding import FEW_STATES, MOST_STATES, decidable, decided
from bubbleproof.solver.fluid import fluid_bounds
from bubbleproof.solver.relaxation import device_bound
from bubbleproof.solver.search import LEAST_S, Found, Search

_DEVICES_SHARE = 0.15
_STATES_SHARE = 0.05


def start_states(search: Search) -> None:
    """Search among states beside what follows; what has few of them is closed at once.

    One worker stops where most problems that can be closed like this are.
    """
    now = monotonic()
    left = search.deadline - now
    if search.closed or left < LEAST_S or not decidable(search.problem):
        return
    search.found.schedule()  # There is something to improve on, if only one by one.
    most = FEW_STATES if search.workers == 1 else MOST_STATES

    def rounds(stop: Stop) -> Iterator[Bound | Found]:
        def stopped() -> bool:
            return stop.asked or search.closed or monotonic() > search.deadline

        return decided(search.problem, search.found, stopped, most=most, stop=stop)

    search.bound_beside(rounds)
    search.wait_for_bounds(until=now + _STATES_SHARE * left)


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
