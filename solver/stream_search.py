"""Annealing over the orders of a shop's machines, compiled.

A move exchanges two neighbours on a machine that follow each other on a longest way without a
precedence between them; no other exchange of neighbours can shorten that way, and this one never
closes a cycle (van Laarhoven, Aarts and Lenstra, Operations Research 40(1), 1992). Most moves are
refused by the longest way through the two alone, from heads and tails (Taillard, ORSA Journal on
Computing 6(2), 1994), without timing the whole order. What breaks a memory limit is not taken.
"""
# pyright: basic
# numba compiles the inner loop and has no types of its own.

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import monotonic

import numpy as np

from bubbleproof.solver.compiled import compiled
from bubbleproof.solver.shop import Shop, makespan_of

_MOVES_AT_ONCE = 2_000
"""Moves between two looks at the clock."""

_HOT, _COLD = 0.4, 0.03
"""First and last temperature, in mean durations of a task."""

_COOLINGS = (1, 2, 4)
"""How long each cooling takes beside the others: a short one is enough for a small problem."""


def anneal(
    shop: Shop,
    starts: Sequence[int],
    *,
    until: float,
    seed: int,
    workers: int = 1,
    least: int = 0,
    on_starts: Callable[[tuple[int, ...]], None] | None = None,
) -> tuple[int, ...]:
    """Return starts that are at least as good as the given ones.

    Parameters
    ----------
    shop
        What is to be done.
    starts
        Starts that keep all constraints.
    until
        ``time.monotonic()`` at which to return.
    seed
        Of the random choices.
    workers
        Threads; each cools on its own, and the best of them is where the next cooling begins.
    least
        A makespan with which the search may end.
    on_starts
        Is told better starts, from any of the threads.
    """
    tables, stop = _tables(shop), Event()
    best, began = tuple(starts), monotonic()

    def cooled(seed: int, end: float) -> tuple[int, ...]:
        previous, following = _neighbours(shop, best)
        own, makespan = np.array(best, dtype=np.int64), makespan_of(shop, best)
        start = now = monotonic()
        while now < end and makespan > least and not stop.is_set():
            heat = _HOT * (_COLD / _HOT) ** ((now - start) / (end - start))
            temperature = heat * float(np.mean(tables[0]))
            found = _anneal(
                *tables, previous, following, own, makespan, temperature, seed, _MOVES_AT_ONCE
            )
            if found < makespan and on_starts is not None:
                on_starts(tuple(map(int, own)))
            makespan = found
            seed += workers
            now = monotonic()
        return tuple(map(int, own))

    for share in np.cumsum(_COOLINGS) / sum(_COOLINGS):
        end = began + float(share) * (until - began)
        with ThreadPoolExecutor(workers) as pool:
            # In threads of their own, so that Ctrl-C reaches this one.
            running = [pool.submit(cooled, seed + worker, end) for worker in range(workers)]
            try:
                found = [run.result() for run in running]
            except KeyboardInterrupt:
                stop.set()
                raise
        best = min(found, key=lambda each: makespan_of(shop, each))
    return best


def _tables(shop: Shop):
    """Return the shop as arrays: durations; then lists of lists as items and where each begins."""
    after = [list(task.after) for task in shop.tasks]
    behind: list[list[tuple[int, int]]] = [[] for _ in shop.tasks]
    for index, needs in enumerate(after):
        for earlier, lag in needs:
            behind[earlier].append((index, lag))
    by_device = [
        [hold for hold in shop.holds if hold.device == device and limit is not None]
        for device, limit in enumerate(shop.limits)
    ]
    limited = [hold for holds in by_device for hold in holds]

    def flat(lists):
        at = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum([len(each) for each in lists], out=at[1:])
        return np.array([item for each in lists for item in each], dtype=np.int64), at

    before, before_at = flat([[i for i, _ in each] for each in after])
    before_lag, _ = flat([[lag for _, lag in each] for each in after])
    next_, next_at = flat([[i for i, _ in each] for each in behind])
    next_lag, _ = flat([[lag for _, lag in each] for each in behind])
    first, first_at = flat([hold.first for hold in limited])
    last, last_at = flat([hold.last for hold in limited])
    limits = np.array([limit or 0 for limit in shop.limits], dtype=np.int64)
    amounts, device_at = flat([[hold.amount for hold in holds] for holds in by_device])
    ticks = np.array([task.ticks for task in shop.tasks], dtype=np.int64)
    return (
        ticks,
        (before, before_lag, before_at),
        (next_, next_lag, next_at),
        (first, first_at, last, last_at, amounts, device_at, limits),
    )


def _neighbours(shop: Shop, starts: Sequence[int]):
    """Return for each task the one before and the one behind it on its machine; -1 for none."""
    previous = np.full(len(starts), -1, dtype=np.int64)
    following = np.full(len(starts), -1, dtype=np.int64)
    latest: dict[int, int] = {}
    for index in sorted(range(len(starts)), key=lambda i: (starts[i], i)):
        machine = shop.tasks[index].machine
        if machine in latest:
            previous[index] = latest[machine]
            following[latest[machine]] = index
        latest[machine] = index
    return previous, following


@compiled
def _timed(ticks, before_at, behind, previous, following, starts, waiting, queue):
    """Write the earliest starts of an order and return its makespan."""
    next_, next_lag, next_at = behind
    tail = 0
    for i in range(len(ticks)):
        starts[i] = 0
        waiting[i] = before_at[i + 1] - before_at[i] + (previous[i] >= 0)
        if waiting[i] == 0:
            queue[tail] = i
            tail += 1
    head = makespan = 0
    while head < tail:
        i = queue[head]
        head += 1
        end = starts[i] + ticks[i]
        makespan = max(makespan, end)
        for at in range(next_at[i], next_at[i + 1]):
            j = next_[at]
            starts[j] = max(starts[j], end + next_lag[at])
            waiting[j] -= 1
            if waiting[j] == 0:
                queue[tail] = j
                tail += 1
        j = following[i]
        if j >= 0:
            starts[j] = max(starts[j], end)
            waiting[j] -= 1
            if waiting[j] == 0:
                queue[tail] = j
                tail += 1
    return makespan


@compiled
def _tails(ticks, behind, following, queue, tails):
    """Write for each task the longest way from its end to the end of all; queue as timed."""
    next_, next_lag, next_at = behind
    for position in range(len(ticks) - 1, -1, -1):
        i = queue[position]
        tails[i] = _tail(ticks, next_, next_lag, next_at, tails, i)
        j = following[i]
        if j >= 0:
            tails[i] = max(tails[i], ticks[j] + tails[j])


@compiled
def _tail(ticks, next_, next_lag, next_at, tails, i):
    """Return the longest way from a task's end by precedences alone."""
    tail = 0
    for at in range(next_at[i], next_at[i + 1]):
        j = next_[at]
        tail = max(tail, next_lag[at] + ticks[j] + tails[j])
    return tail


@compiled
def _head(ticks, before, starts, i):
    """Return the longest way to a task's start by precedences alone."""
    before_, before_lag, before_at = before
    head = 0
    for at in range(before_at[i], before_at[i + 1]):
        j = before_[at]
        head = max(head, starts[j] + ticks[j] + before_lag[at])
    return head


@compiled
def _way_through(ticks, before, behind, previous, following, starts, tails, earlier, later):
    """Return the longest way through two neighbours once they are exchanged."""
    next_, next_lag, next_at = behind
    first, last = previous[earlier], following[later]
    head_later = _head(ticks, before, starts, later)
    if first >= 0:
        head_later = max(head_later, starts[first] + ticks[first])
    head_earlier = max(head_later + ticks[later], _head(ticks, before, starts, earlier))
    tail_earlier = _tail(ticks, next_, next_lag, next_at, tails, earlier)
    if last >= 0:
        tail_earlier = max(tail_earlier, ticks[last] + tails[last])
    tail_later = max(
        tail_earlier + ticks[earlier], _tail(ticks, next_, next_lag, next_at, tails, later)
    )
    return max(head_later + ticks[later] + tail_later, head_earlier + ticks[earlier] + tail_earlier)


@compiled
def _fits(ticks, memory, starts, begins, ends):
    """Whether no device holds more than its limit when something is allocated."""
    first, first_at, last, last_at, amounts, device_at, limits = memory
    for h in range(len(amounts)):
        begins[h] = starts[first[first_at[h]]]
        for at in range(first_at[h], first_at[h + 1]):
            begins[h] = min(begins[h], starts[first[at]])
        ends[h] = 0
        for at in range(last_at[h], last_at[h + 1]):
            ends[h] = max(ends[h], starts[last[at]] + ticks[last[at]])
    for device in range(len(limits)):
        holds = range(device_at[device], device_at[device + 1])
        for h in holds:
            held = 0
            for other in holds:
                if begins[other] <= begins[h] < ends[other]:
                    held += amounts[other]
            if held > limits[device]:
                return False
    return True


@compiled
def _critical(ticks, before, previous, starts, makespan, found):
    """Write what may be exchanged with its predecessor on one longest way; return how many."""
    before_, before_lag, before_at = before
    count = 0
    i = np.random.randint(len(ticks))
    while starts[i] + ticks[i] != makespan:
        i = (i + 1) % len(ticks)
    while starts[i] > 0:
        earlier = -1
        for at in range(before_at[i], before_at[i + 1]):
            j = before_[at]
            if starts[j] + ticks[j] + before_lag[at] == starts[i]:
                earlier = j
        on_machine = previous[i]
        if on_machine >= 0 and starts[on_machine] + ticks[on_machine] == starts[i]:
            needed = False
            for at in range(before_at[i], before_at[i + 1]):
                needed = needed or before_[at] == on_machine
            if not needed:
                found[count] = i
                count += 1
            if earlier < 0 or np.random.random() < 0.5:
                earlier = on_machine
        if earlier < 0:
            break
        i = earlier
    return count


@compiled
def _exchange(previous, following, later):
    """Put a task before its predecessor on the machine."""
    earlier = previous[later]
    a, b = previous[earlier], following[later]
    previous[later], following[later] = a, earlier
    previous[earlier], following[earlier] = later, b
    if a >= 0:
        following[a] = later
    if b >= 0:
        previous[b] = earlier


@compiled
def _anneal(
    ticks, before, behind, memory, previous, following, best, makespan, temperature, seed, moves
):
    """Make moves; a better order's starts go to ``best``; return the best makespan."""
    np.random.seed(seed)
    n = len(ticks)
    starts, tried = np.empty(n, np.int64), np.empty(n, np.int64)
    waiting, queue, found = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    begins, ends = np.empty(len(memory[4]), np.int64), np.empty(len(memory[4]), np.int64)
    tails = np.empty(n, np.int64)
    current = _timed(ticks, before[2], behind, previous, following, starts, waiting, queue)
    _tails(ticks, behind, following, queue, tails)
    if current < makespan and _fits(ticks, memory, starts, begins, ends):
        makespan = current
        best[:] = starts
    for _ in range(moves):
        count = _critical(ticks, before, previous, starts, current, found)
        if count == 0:
            break
        later = found[np.random.randint(count)]
        earlier = previous[later]
        most = current - temperature * np.log(1 - np.random.random())
        if most < _way_through(
            ticks, before, behind, previous, following, starts, tails, earlier, later
        ):
            continue
        _exchange(previous, following, later)
        length = _timed(ticks, before[2], behind, previous, following, tried, waiting, queue)
        if length <= most and _fits(ticks, memory, tried, begins, ends):
            current = length
            starts[:] = tried
            _tails(ticks, behind, following, queue, tails)
            if current < makespan:
                makespan = current
                best[:] = starts
        else:
            _exchange(previous, following, earlier)
    return makespan
