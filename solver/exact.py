"""CP-SAT on all orders of a problem, on those that are their own image, or on the last ops."""

from queue import Queue
from time import monotonic

from bubbleproof.schedules.ops import Row
from bubbleproof.solver.mirror import Mirror, is_own_image, mirror_of
from bubbleproof.solver.scale import may_pair, model_size
from bubbleproof.solver.search import GRACE_S, LEAST_S, Found, Search
from bubbleproof.solver.times import LeastTimes

_DRAINING_SHARE = 0.7
_DRAINING_WAYS = 1.2
_DRAINING_REACH = 8
_MOST_DRAINING = 10_000
_MIRRORED_SHARE = 0.6
_SMALL_MODEL = 100
_SMALL_SHARE = 0.3


def try_small(search: Search) -> None:
    """Search all schedules with CP-SAT at once where there are few."""
    if model_size(search.problem) <= _SMALL_MODEL:
        now = monotonic()
        try_exact(search, until=now + _SMALL_SHARE * (search.deadline - now))


def try_exact(search: Search, *, until: float | None = None) -> None:
    """Search all schedules with CP-SAT, from the best so far."""
    search.retime()
    if search.closed or search.too_large or monotonic() >= search.deadline:
        return
    best = search.found.schedule()
    proven = _search_exactly(search, best.rows, None, until or search.deadline)
    search.retime()
    for bound in proven:
        search.found.prove_by_search(bound)


def try_mirrored(search: Search) -> None:
    """Search with CP-SAT among the orders that are their own image, where there are some."""
    mirror, left = mirror_of(search.problem), search.deadline - monotonic()
    if search.closed or search.asymmetric or left < LEAST_S or mirror is None:
        return
    if not may_pair(search.problem):
        return
    rows = search.found.schedule().rows
    if not search.too_large and is_own_image(search.problem, mirror, rows):
        until = monotonic() + _MIRRORED_SHARE * left
        _search_exactly(search, rows, mirror, until)


def try_draining(search: Search) -> None:
    """Search with CP-SAT how pairs come to an end: the last ops, with all before as they are.

    That is as long for any number of microbatches, a microbatch's way forth and back and a
    little more.
    """
    problem, left = search.problem, search.deadline - monotonic()
    ops = 3 * problem.stages * max(problem.microbatches)
    if search.closed or not may_pair(problem) or left < LEAST_S or ops > _MOST_DRAINING:
        return
    best, mirror = search.found.schedule(), None if search.asymmetric else mirror_of(problem)
    if mirror is not None and not is_own_image(problem, mirror, best.rows):
        mirror = None
    times = LeastTimes(problem)
    way = max(times.turnaround(chain[0]) for chain in problem.placement.chains)
    _search_exactly(
        search,
        best.rows,
        mirror,
        monotonic() + _DRAINING_SHARE * left,
        frozen=int(search.found.objective - _DRAINING_WAYS * way),
        reach=_DRAINING_REACH if search.too_large else None,
    )


def _search_exactly(
    search: Search,
    rows: tuple[Row, ...],
    mirror: Mirror | None,
    until: float,
    *,
    frozen: int = 0,
    reach: int | None = None,
) -> list[int]:
    """Search with CP-SAT until a time, and return what is proven of what was searched."""
    from bubbleproof.solver.model import Model

    try:
        model = Model(
            search.problem,
            rows,
            least=search.found.bound,
            mirror=mirror,
            frozen=frozen,
            reach=reach,
        )
    except OverflowError:
        return []  # The bound and the schedule found stand as they are.
    found: Queue[Found] = Queue()
    proven: list[int] = []
    source = "CP-SAT" if mirror is None else "CP-SAT among mirror-symmetric orders"

    def run() -> None:
        bound = model.solve(
            time_limit_s=max(0.01, until - monotonic()),
            workers=search.workers,
            seed=search.seed,
            on_rows=lambda rows, starts: found.put((rows, starts, source)),
        )
        proven.append(bound)

    search.run(run, found, model.stop, until + GRACE_S)
    return proven
