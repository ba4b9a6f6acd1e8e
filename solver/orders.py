"""Searches for better rules of list scheduling, and among the orders near the best so far."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from time import monotonic

from bubbleproof.schedules.ops import Row, has_pairs
from bubbleproof.schedules.periodic import unroll
from bubbleproof.schedules.periodic_search import periodic_of
from bubbleproof.solver.exact import search_windows
from bubbleproof.solver.scale import may_pair
from bubbleproof.solver.search import LEAST_S, Search

_TUNING_SHARE = 0.25
_PAIRING_SHARE = 0.6
_COMPILING_SHARE = 0.6
_ENDS_SHARE = 0.25
_SHORT_SHARE = 0.25
_TURN_SHARE = 0.15
_SOLVING_SHARE = 0.7

_FAMILIES = "family with W's in the gaps"
_RULES = "tuned list scheduling"
_FILLS = "search among orders with W's in the gaps"
_ENDS = "search near the ends, W's in the gaps"
_ORDERS = "search among orders"


def try_tuned(search: Search) -> None:
    """Search for better rules of list scheduling, then among orders near the best.

    All the time is theirs where the exact model is too large, else a share. Where pairs may
    help, ``try_paired`` is for that, but for large problems without a schedule with pairs.
    """
    left = search.deadline - monotonic()
    if search.closed or left < LEAST_S:
        return
    if may_pair(search.problem) and not search.too_large:
        return
    from bubbleproof.solver.fill import filled_families
    from bubbleproof.solver.tune import tuned

    problem, target = search.problem, search.found.bound
    # The first rounds may have to compile: that is not to eat into a share, nor to take all.
    compiled = monotonic() + _COMPILING_SHARE * left
    if not search.take_rounds(filled_families(problem), _FAMILIES, compiled):
        return
    rounds = tuned(problem, workers=search.workers, seed=search.seed, target=target)
    if not search.take_rounds(islice(rounds, 1), _RULES, compiled):
        return
    left = search.deadline - monotonic()
    if not search.take_rounds(rounds, _RULES, monotonic() + _TUNING_SHARE * left):
        return
    if not _try_ends(search, monotonic() + _ENDS_SHARE * (search.deadline - monotonic())):
        return
    _try_short(search, monotonic() + _SHORT_SHARE * (search.deadline - monotonic()))
    if search.closed or has_pairs(search.found.schedule().rows):
        return
    orders = monotonic() + (1.0 if search.too_large else _TUNING_SHARE) * left
    _take_turns(search, rounds, min(orders, search.deadline))


def _try_ends(search: Search, until: float) -> bool:
    """Search before and behind what the best order repeats; False if that does not stop."""
    from bubbleproof.solver.fill import refilled_ends

    best = search.found.schedule()
    if search.closed or has_pairs(best.rows):
        return True
    rounds = refilled_ends(search.problem, best.rows, workers=search.workers, seed=search.seed)
    return search.take_rounds(rounds, _ENDS, until)


def _take_turns(search: Search, rules: Iterator[tuple[Row, ...]], until: float) -> None:
    """Search for rules and among orders in turn until a time.

    Rules move whole schedules, F's and I's that take W's along move much of one, all ops polish
    it, and windows hold what no single move reaches; which of them still gains is not known
    beforehand. Turns become longer where none does.
    """
    from bubbleproof.solver.fill import refilled
    from bubbleproof.solver.reorder import reordered

    turn_s = _TURN_SHARE * (until - monotonic())
    fills: Iterator[tuple[Row, ...]] = iter(())
    for turn in count():
        before = search.found.objective
        for source in (_FILLS, _ORDERS, _RULES):
            best = search.found.schedule()
            rounds = rules
            if source != _RULES:
                start = reordered if source == _ORDERS else refilled
                rounds = start(
                    search.problem,
                    best.rows,
                    workers=search.workers,
                    seed=search.seed + turn,
                    target=search.found.bound,
                )
            if source == _FILLS:
                # Its own best order has rules for W's that rows do not tell.
                fills = rounds = fills if turn and best.source == _FILLS else rounds
            if not search.take_rounds(rounds, source, min(monotonic() + turn_s, until)):
                return
            if search.closed or monotonic() >= until:
                return
        search_windows(search, min(monotonic() + turn_s, until), turn=turn)
        if search.closed or monotonic() >= until:
            return
        if search.found.objective == before:
            turn_s *= 2


def _try_short(search: Search, until: float) -> None:
    """Solve the problem with fewer microbatches and repeat the middle of the answer."""
    problem = search.problem
    short = 2 * problem.devices + problem.total_microbatches % 2
    if search.closed or len(problem.microbatches) > 1 or problem.total_microbatches <= short:
        return

    def rounds() -> Iterator[tuple[Row, ...]]:
        left = max(0.0, _SOLVING_SHARE * (until - monotonic()))
        answer = search.solve(replace(problem, microbatches=(short,)), left)
        periodic = periodic_of(answer.schedule, most_step=2)
        if periodic is not None:
            yield unroll(periodic, problem.total_microbatches).rows

    search.take_rounds(rounds(), "the repeated middle of a shorter schedule", until)


def try_paired(search: Search) -> None:
    """Search among orders with pairs, near the best so far."""
    left = search.deadline - monotonic()
    if search.closed or left < LEAST_S or not may_pair(search.problem):
        return
    from bubbleproof.solver.paired_orders import paired_orders
    from bubbleproof.solver.tune import tuned

    problem, target = search.problem, search.found.bound
    until = monotonic() + _PAIRING_SHARE * left
    if not has_pairs(search.found.schedule().rows):
        # No family makes pairs here: rules of list scheduling may.
        rounds = tuned(problem, workers=search.workers, seed=search.seed, target=target)
        tuning_s = _TUNING_SHARE * (until - monotonic())
        if not search.take_rounds(rounds, _RULES, monotonic() + tuning_s):
            return
    rounds = paired_orders(
        problem,
        search.found.schedule().rows,
        workers=search.workers,
        seed=search.seed,
        target=target,
        asymmetric=search.asymmetric,
    )
    search.take_rounds(rounds, "search among orders with pairs", until)
