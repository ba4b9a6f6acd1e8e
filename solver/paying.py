"""What a state of a schedule in the making pays while time passes on a device, compiled."""
# pyright: basic
# numba compiles this function and has no types of its own.

import numpy as np

from bubbleproof.solver.compiled import compiled
from bubbleproof.solver.state_problem import ARRIVALS


@compiled
def passed(kinds, weights, prices, row, device, first, last, held, busy):
    """Return what is paid on a device from one time to another; one op at most is in progress."""
    x_count, p = len(kinds.device), len(prices.idle)
    end = prices.idle.shape[1] - 1
    last = min(last, end)
    if first >= last or prices.any[device, last] == prices.any[device, first]:
        return np.int64(0)
    paid = prices.unused[device, last] - prices.unused[device, first]
    paid *= prices.room[device] - held // prices.grain[device]
    if busy < 0:
        paid += prices.idle[device, last] - prices.idle[device, first]
    for x in range(x_count):
        if kinds.device[x] != device or row[x] == kinds.number[x]:
            continue
        paid += (kinds.number[x] - row[x]) * (prices.undone[x, last] - prices.undone[x, first])
        source = kinds.source[x]
        if source < 0:
            continue
        waiting = row[source] - row[x]
        if kinds.queue[x] < 0:
            if source == busy:
                waiting -= 1
            paid += waiting * (prices.waiting[x, last] - prices.waiting[x, first])
            continue
        if waiting > ARRIVALS:
            older = waiting - ARRIVALS
            paid += older * (prices.waiting[x, last] - prices.waiting[x, first])
            waiting = ARRIVALS
        for k in range(waiting):
            arrival = max(first, np.int64(row[kinds.queue[x] + ARRIVALS - 1 - k]))
            if arrival < last:
                paid += prices.waiting[x, last] - prices.waiting[x, arrival]
    for c in range(len(weights.device)):
        if weights.device[c] != device:
            continue
        started = -row[x_count + p + c]
        there = np.int64(0)
        number = np.int64(0)
        for x in range(x_count):
            if kinds.weight_class[x] == c:
                there += row[x]
                number += kinds.number[x]
                if x == busy:
                    there -= 1
        z = x_count + c
        paid += (number - started) * (prices.undone[z, last] - prices.undone[z, first])
        paid += (there - started) * (prices.waiting[z, last] - prices.waiting[z, first])
    return paid
