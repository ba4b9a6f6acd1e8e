"""The least memory of V schedules in their steady state, exactly, for any number of devices.

    python benchmarks/v_memory.py

prints, in Markdown, how little memory does without any idle time at F = I = W, for 1 to 36
devices, and how little for longer periods on 8 devices, also at F : I : W = 10 : 12 : 8.

What is exact: schedules that repeat every op each period for the next microbatch, on a V placement
with equal stages, each holding one unit from the start of its F to the end of its W. The argument:

Device d has stages d and 2p-1-d. Let a, b and c be the times from its first F to its second, from
there to the second stage's I, and from there to the first stage's I. These three say all that a
device needs: modulo the period they fix which of its ops run when, and for every whole period
longer its memory grows by 1, 2 and 1. And they say all that its neighbour needs: two F's and two
I's pass between device d and device d+1, one place deeper in the V, and each starts at least a
forward or backward and a transfer after its input. If those four delays are u, v, w, x, then a
shrinks by u + v, c shrinks by w + x, and b grows by v + w. So which states can be continued to the
tip of the V follows device by device, along two axes and two diagonals; nothing is searched.
Starts need only be multiples of the greatest common divisor of all times, since rounding down
keeps every order.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from math import gcd

import numpy as np
from numpy.typing import NDArray

import bubbleproof as bp

States = NDArray[np.bool_]
"""Whether a device's (a, b, c) can be kept, in ticks."""


@dataclass(frozen=True, slots=True)
class Steady:
    """The times of a stage, in ticks, and after how many every op comes again."""

    forward: int
    backward: int
    weight: int
    transfer: int
    period: int

    @property
    def work(self) -> int:
        """What a device does in one period: two stages."""
        return 2 * (self.forward + self.backward + self.weight)


def least_memory(steady: Steady, most_devices: int) -> list[int]:
    """Return the least memory for 1 device, for 2, and so on, in stage-microbatches.

    Raises
    ------
    ValueError
        If the period is shorter than the work.
    """
    if steady.period < steady.work:
        raise ValueError(f"period: {steady.period} is too short for {steady.work} of work")
    base = _base(steady)
    found: list[int] = []
    memory = 1
    while len(found) < most_devices:
        devices = _deepest(steady, base, memory, most_devices)
        found += [memory] * (devices - len(found))
        memory += 1
    return found


def _deepest(steady: Steady, base: NDArray[np.int64], memory: int, most: int) -> int:
    """Return with how many devices a memory does: the deeper the V, the more it takes."""
    kept = _kept(steady, base, memory)
    # At the tip both F's, and both I's, follow each other on the same device.
    states = kept.copy()
    states[: steady.forward] = False
    states[:, :, : steady.backward] = False
    for devices in range(most):
        # The last stage's I follows its own F, so outside its device b is at least a forward.
        if not states[:, steady.forward :].any():
            return devices
        states = _outward(steady, states) & kept
    return most


def _kept(steady: Steady, base: NDArray[np.int64], memory: int) -> States:
    """Return the states of one device that keep the memory."""
    period = steady.period
    longest = memory * period  # What all lifetimes of a period come to at most.
    a, b, c = np.ogrid[: longest + 1, : longest // 2 + 1, : longest + 1]
    held = base[a % period, b % period, c % period] + a // period + 2 * (b // period) + c // period
    return held <= memory


def _outward(steady: Steady, inner: States) -> States:
    """Return the states of a device that have one of these next to it, deeper in the V."""
    forth, back = steady.forward + steady.transfer, steady.backward + steady.transfer
    first = np.zeros_like(inner)
    first[forth:] = np.logical_or.accumulate(inner, axis=0)[:-forth]
    last = np.zeros_like(inner)
    last[:, :, back:] = np.logical_or.accumulate(first, axis=2)[:, :, :-back]
    down = np.zeros_like(inner)
    for a in range(forth, len(inner)):
        down[a, :-forth] = last[a - forth, forth:]
        down[a, :-1] |= down[a - 1, 1:]
    up = np.zeros_like(inner)
    for c in range(back, inner.shape[2]):
        up[:, :-back, c] = down[:, back:, c - back]
        up[:, :-1, c] |= up[:, 1:, c - 1]
    return up


def _base(steady: Steady) -> NDArray[np.int64]:
    """Return the least memory of a device for each (a, b, c) below one period."""
    period = steady.period
    base = np.full((period,) * 3, np.iinfo(np.int64).max // 2)
    for second, inner, outer, inner_weight, outer_weight in _places(steady):
        a, b, c = second, (inner - second) % period, (outer - inner) % period
        held = a + b + c + _wait(steady, outer, outer_weight) + steady.weight
        held_second = b + _wait(steady, inner, inner_weight) + steady.weight
        # The most is held when an F starts: at 0 or at a. Of a stage, those that started at
        # most ``held`` ago, one each period.
        at_first = _alive(held, 0, period) + _alive(held_second, -a % period, period)
        at_second = _alive(held, a, period) + _alive(held_second, 0, period)
        base[a, b, c] = min(base[a, b, c], max(at_first, at_second))
    return base


def _wait(steady: Steady, start: int, weight: int) -> int:
    """Return the least time from the start of an I to that of its W at a place in the period."""
    return steady.backward + (weight - start - steady.backward) % steady.period


def _alive(held: int, ago: int, period: int) -> int:
    return max(0, -(-(held - ago) // period))


def _places(steady: Steady) -> Iterator[tuple[int, ...]]:
    """Yield where in the period the other ops can run beside the first F, which starts it."""
    lengths = [steady.forward, steady.backward, steady.backward, steady.weight, steady.weight]

    def place(free: tuple[bool, ...], rest: list[int]) -> Iterator[tuple[int, ...]]:
        if not rest:
            yield ()
            return
        length = rest[0]
        for start in range(len(free) - length + 1):
            end = start + length
            if all(free[start:end]):
                for others in place((*free[:start], *(False,) * length, *free[end:]), rest[1:]):
                    yield (start, *others)

    first = (False,) * steady.forward + (True,) * (steady.period - steady.forward)
    return place(first, lengths)


def _steady_of(times: tuple[int, int, int], period: int) -> Steady:
    unit = gcd(*times, period)
    forward, backward, weight = (each // unit for each in times)
    return Steady(forward, backward, weight, 0, period // unit)


def _print_no_bubble(most_devices: int) -> None:
    least = least_memory(Steady(1, 1, 1, 0, 6), most_devices)
    print("| devices | least, chunks | V-Min, chunks | Little's law, chunks |\n|---|---|---|---|")
    for devices, chunks in enumerate(least, 1):
        little = -(-(4 * devices + 4) // 6)
        print(f"| {devices} | {chunks} | {2 * ((devices + 4) // 3)} | {little} |")
    same = [d for d, chunks in enumerate(least, 1) if chunks == 2 * ((d + 4) // 3)]
    print(f"\nV-Min has the least memory for {len(same)} of {most_devices} numbers of devices")


def _print_periods(times: tuple[int, int, int], devices: int, step: int) -> None:
    work = 2 * sum(times)
    print(f"\nF, I, W = {times}, {devices} devices:\n")
    print("| period | idle % | least, chunks |\n|---|---|---|")
    before = 0
    for period in range(work, work + work // 4 + 1, step):
        least = least_memory(_steady_of(times, period), devices)[-1]
        if least != before:
            print(f"| {period} | {100 * (1 - work / period):.1f} | {least} |", flush=True)
        before = least
    print("\n| family | period | peak, chunks |\n|---|---|---|")
    for name in ("v_min", "v_half", "zb_v"):
        shorter, longer = (
            bp.simulate(bp.families.build(name, _problem(times, devices, microbatches)))
            for microbatches in (6 * devices, 7 * devices)
        )
        period = (longer.makespan_ticks - shorter.makespan_ticks) / devices
        print(f"| {name} | {period:g} | {max(longer.peak_memory)} |")


def _problem(times: tuple[int, int, int], devices: int, microbatches: int) -> bp.Problem:
    forward, backward, weight = times
    return bp.Problem(
        devices=devices,
        placement="v",
        microbatches=microbatches,
        cost={"F": forward, "I": backward, "W": weight},
        memory={"F": 1, "W": -1},
    )


def main() -> None:
    """Print both tables."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    began = time.perf_counter()
    print(f"{date.today():%d %B %Y}\n")
    _print_no_bubble(36)
    _print_periods((1, 1, 1), 8, 1)
    _print_periods((10, 12, 8), 8, 2)
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
