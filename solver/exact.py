"""CP-SAT on all orders of a problem, on those that are their own image, or on windows."""

from queue import Queue
from time import monotonic

from bubbleproof.schedules.ops import Row, has_pairs
from bubbleproof.solver.background import Stop
from bubbleproof.solver.mirror import Mirror, is_own_image, mirror_of
from bubbleproof.solver.scale import may_pair, model_size
from bubbleproof.solver.search import GRACE_S, LEAST_S, Found, Search

_WINDOWS_SHARE = 0.35
_WINDOW_SHARE = 0.1
_MOST_IN_WINDOWS = 30_000
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


def try_windows(search: Search) -> None:
    """Search with CP-SAT on one part of the best schedule after the other, where pairs may help.

    Where no pairs are in it yet, it is left to other searches to find some first.
    """
    _try_windows(search, _WINDOWS_SHARE)


def try_more_windows(search: Search) -> None:
    """Search on windows again, from what other searches have found since.

    All the time is theirs where the exact model is too large.
    """
    _try_windows(search, 1.0 if search.too_large else _WINDOWS_SHARE)


def _try_windows(search: Search, share: float) -> None:
    left = search.deadline - monotonic()
    if search.closed or not may_pair(search.problem) or left < LEAST_S:
        return
    if has_pairs(search.found.schedule().rows):
        search_windows(search, monotonic() + share * left)


def search_windows(search: Search, until: float, *, turn: int = 0) -> None:
    """Search on windows of the best schedule until a time; each turn draws other windows."""
    problem, left = search.problem, search.deadline - monotonic()
    if 3 * problem.stages * max(problem.microbatches) > _MOST_IN_WINDOWS:
        return
    from bubbleproof.solver.windows import WINDOW_S, improved

    best = search.found.schedule()
    found: Queue[Found] = Queue()
    stop = Stop()

    def run() -> None:
        for better in improved(
            problem,
            best.rows,
            starts=best.starts,
            workers=search.workers,
            seed=search.seed + turn,
            target=search.found.bound,
            stop=stop,
            asymmetric=search.asymmetric,
            window_s=min(WINDOW_S, _WINDOW_SHARE * left),
        ):
            if better is not None:
                found.put((*better, "CP-SAT on windows"))

    search.run(run, found, stop.ask, until)


def _search_exactly(
    search: Search,
    rows: tuple[Row, ...],
    mirror: Mirror | None,
    until: float,
) -> list[int]:
    """Search with CP-SAT until a time, and return what is proven of what was searched."""
    from bubbleproof.solver.model import Model

    try:
        model = Model(
            search.problem,
            rows,
            least=search.found.bound,
            mirror=mirror,
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
