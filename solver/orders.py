"""Searches for better rules of list scheduling, and among the orders near the best so far."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from time import monotonic

from bubbleproof.schedules.ops import Pair, Row
from bubbleproof.schedules.periodic import unroll
from bubbleproof.schedules.periodic_search import periodic_of
from bubbleproof.solver.scale import may_pair
from bubbleproof.solver.search import LEAST_S, Search

_TUNING_SHARE = 0.25
_TUNING_SHARE_ALONE = 0.6
_PAIRING_SHARE = 0.6
_COMPILING_SHARE = 0.6
_SHORT_SHARE = 0.4
_TURN_SHARE = 0.15
_SOLVING_SHARE = 0.7


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
    from bubbleproof.solver.reorder import reordered
    from bubbleproof.solver.tune import tuned

    problem, target = search.problem, search.found.bound
    rounds = tuned(problem, workers=search.workers, seed=search.seed, target=target)
    # The first round may have to compile: that is not to eat into the share, nor to take all.
    compiled = monotonic() + _COMPILING_SHARE * left
    if not search.take_rounds(islice(rounds, 1), "tuned list scheduling", compiled):
        return
    left = search.deadline - monotonic()
    share = _TUNING_SHARE_ALONE if search.too_large else _TUNING_SHARE
    if not search.take_rounds(rounds, "tuned list scheduling", monotonic() + share * left):
        return
    _try_short(search, monotonic() + _SHORT_SHARE * (search.deadline - monotonic()))
    best = search.found.schedule()
    if search.closed or any(isinstance(block, Pair) for row in best.rows for block in row):
        return
    if search.too_large:
        _take_turns(search, rounds)
        return
    until = monotonic() + share * left
    orders = reordered(problem, best.rows, workers=search.workers, seed=search.seed, target=target)
    search.take_rounds(orders, "search among orders", until)


def _take_turns(search: Search, rules: Iterator[tuple[Row, ...]]) -> None:
    """Search for rules and among orders in turn until the time is over.

    Rules move whole schedules and orders polish one; which of them still gains is not known
    beforehand. Turns become longer where neither does.
    """
    from bubbleproof.solver.reorder import reordered

    turn_s = _TURN_SHARE * (search.deadline - monotonic())
    for turn in count():
        before = search.found.objective
        orders = reordered(
            search.problem,
            search.found.schedule().rows,
            workers=search.workers,
            seed=search.seed + turn,
            target=search.found.bound,
        )
        for rounds, source in ((orders, "search among orders"), (rules, "tuned list scheduling")):
            until = min(monotonic() + turn_s, search.deadline)
            if not search.take_rounds(rounds, source, until):
                return
            if search.closed or monotonic() >= search.deadline:
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
    from bubbleproof.solver.pair_search import paired_orders
    from bubbleproof.solver.tune import tuned

    problem, target = search.problem, search.found.bound
    until = monotonic() + (1.0 if search.too_large else _PAIRING_SHARE) * left
    if not any(isinstance(block, Pair) for row in search.found.schedule().rows for block in row):
        # No family makes pairs here: rules of list scheduling may.
        rounds = tuned(problem, workers=search.workers, seed=search.seed, target=target)
        tuning_s = _TUNING_SHARE * (until - monotonic())
        if not search.take_rounds(rounds, "tuned list scheduling", monotonic() + tuning_s):
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
