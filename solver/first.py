"""First schedules: published families, list scheduling, and pairs where neighbours may pair."""

from dataclasses import replace
from time import monotonic

from bubbleproof.schedules import families
from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import Row
from bubbleproof.schedules.simulate import DeadlockError
from bubbleproof.solver.construct import list_schedule, policies
from bubbleproof.solver.limits import within_limits
from bubbleproof.solver.pairing import variants
from bubbleproof.solver.result import Form, NoScheduleError
from bubbleproof.solver.scale import may_pair
from bubbleproof.solver.search import LEAST_S, Search

_LISTING_SHARE = 0.2
_LISTING_S = 2.0
"""Once there is a schedule; what compiled list scheduling does in that time is far more."""

_FORM_SHARE = 0.2
_FIRST_S = 1.5
_FAMILY_S = 5e-6
"""Seconds that each op of a family is expected to take before one was built."""


def try_families(search: Search) -> None:
    """Take every published family that applies and fits, those that hold least memory first.

    Small ones are built whatever the time limit, so that none is ever better than the answer.
    """
    slowest_s = _FAMILY_S * 3 * search.problem.stages * search.problem.total_microbatches
    for name in reversed(families.names()):
        began = monotonic()
        spare_s = search.deadline - began + (_FIRST_S if search.found.best is None else 0.0)
        if not search.quick and slowest_s > spare_s:
            return
        search.found.offer_family(name)
        slowest_s = max(slowest_s, monotonic() - began)


def try_forms(search: Search) -> None:
    """Where the backward is free, solve with all fused and with all split first.

    Each is a schedule to improve on by mixing them, and each has a proof of its own.
    """
    if search.problem.backward is not Backward.FREE or search.closed:
        return
    if may_pair(search.problem):
        return  # A pair's backward is fused, while others gain from the split.
    for backward in (Backward.FUSED, Backward.SPLIT):
        left = search.deadline - monotonic()
        if left < LEAST_S:
            return
        try:
            answer = search.solve(replace(search.problem, backward=backward), _FORM_SHARE * left)
        except NoScheduleError:
            continue  # This form alone does not fit; mixed with the other it may.
        form = Form(backward, answer.objective_ticks, answer.bound_ticks)
        search.forms = (*search.forms, form)
        source = f"{answer.source}, all backwards {backward.value}"
        search.found.offer(answer.schedule.rows, source, answer.schedule.starts)
        if answer.interrupted:
            raise KeyboardInterrupt


def try_lists(search: Search) -> None:
    """Take list schedules until the bound is met or their share of the time is spent.

    Large problems are left to compiled list scheduling where there is time for it.
    """
    now = monotonic()
    if not search.quick and search.deadline - now >= LEAST_S:
        return
    until = now + min(_LISTING_S, _LISTING_SHARE * (search.deadline - now))
    for policy in policies(search.problem):
        if search.closed or (monotonic() > until and search.found.best is not None):
            return
        schedule = list_schedule(search.problem, policy, until)
        if schedule is not None and within_limits(search.problem, schedule.rows):
            search.found.offer(schedule.rows, schedule.source)


def try_pairing(search: Search) -> None:
    """Where pairs may help, pair what stands together in the best order, and let W's wait."""
    if search.closed or not may_pair(search.problem) or not search.quick:
        return
    best = search.found.schedule()
    for rows in variants(search.problem, best.rows):
        if monotonic() > search.deadline:
            return
        _offer_if_it_runs(search, rows, f"{best.source}, paired")


def _offer_if_it_runs(search: Search, rows: tuple[Row, ...], source: str) -> None:
    if within_limits(search.problem, rows):
        try:
            search.found.offer(rows, source)
        except DeadlockError:
            return  # What was paired led to what its partner waits for.
