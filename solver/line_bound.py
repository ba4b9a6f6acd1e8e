"""A lower bound for every number of microbatches: so much for each round, and a constant.

A round is one microbatch of each chain. The bounds are those of ``bounds`` for work and memory x
time, taken where nothing of them changes any more but with the number of rounds: a device's
idle time before its first backward and after its last forward never grows with more microbatches,
and is the same for all numbers beyond those that its memory could hold.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.solver.limits import room
from bubbleproof.solver.times import LeastTimes


@dataclass(frozen=True, slots=True)
class Line:
    """A bound on the objective for every number of rounds from a first one on.

    Parameters
    ----------
    per_round, constant
        Ticks: no schedule for n rounds takes less than per_round x n + constant.
    first
        The least number of rounds that this holds for.
    name
        ``work`` or ``area``.
    device
        The device that it holds for.
    text
        The argument in words, with its numbers, in the problem's unit.
    """

    per_round: Fraction
    constant: Fraction
    first: int
    name: str
    device: int
    text: str


def least_line(problem: Problem) -> Line:
    """Return the strongest bound for many rounds.

    Parameters
    ----------
    problem
        A feasible problem. How many microbatches it has does not matter, but that one chain may
        have some more than another.
    """
    far = _Rounds(problem).settled()
    rounds = _Rounds(problem)
    devices = [device for device in range(problem.devices) if rounds.of(1).parts(device)]
    lines = [_work(rounds, far, device) for device in devices]
    lines += [_area(rounds, device) for device in devices if room(problem, device)]
    return max(lines, key=lambda line: (line.per_round, line.constant))


class _Rounds:
    """Least times of a problem with so many rounds, whatever it has itself."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        fewest = min(problem.microbatches)
        self._more = [number - fewest for number in problem.microbatches]
        self.of = cache(self._of)

    def _of(self, rounds: int) -> LeastTimes:
        return LeastTimes(
            replace(self.problem, microbatches=tuple(rounds + more for more in self._more))
        )

    def settled(self) -> int:
        """Return from how many rounds on no idle time of a device depends on their number.

        That is where each kind of op alone would fill the memory or, where it takes none, the
        longest wait that there is.
        """
        problem, times = self.problem, self.of(1)
        longest = max(
            times.turnaround(stage) + times.up(times.first_in_chain(stage), stage)
            for stage in range(problem.stages)
        )
        shortest = min(
            (
                ticks
                for kind in OpKind
                if problem.backward.allows(kind)
                for ticks in problem.cost.of(kind)
                if ticks
            ),
            default=1,
        )
        least = min(
            (
                amount
                for kind in OpKind
                for change in problem.memory.of(kind)
                for amount in change
                if amount
            ),
            default=1,
        )
        most = max((room(problem, device) or 0) for device in range(problem.devices))
        return max(2 * longest // shortest, most // least) + 2


def _work(rounds: _Rounds, far: int, device: int) -> Line:
    problem, one = rounds.problem, rounds.of(1)
    work = rounds.of(2).least_work(device) - one.least_work(device)
    terms = {
        "until the first input": _head(one, device),
        "work that no round repeats": one.least_work(device) - work,
        "way back": _back(one, device),
    }
    first = 1
    settled = rounds.of(far)
    warm, cool = settled.warm_idle(device), settled.cool_idle(device)
    if settled.all_forwards_fit(device):
        # There may be no forward behind the first backward; then only one of the two is idle.
        terms["idle before the first backward or after the last forward"] = max(warm, cool)
    else:
        # From so many rounds on, some forward follows the first backward.
        first = 1 + bisect_left(
            range(1, far), True, key=lambda n: not rounds.of(n).all_forwards_fit(device)
        )
        terms["idle before the first backward"] = warm
        terms["idle after the last forward"] = cool
    return _line(problem, device, "work", Fraction(work), terms, first)


def _area(rounds: _Rounds, device: int) -> Line:
    """Little's law: what a round holds x how long fits under the limit for each round's time."""
    one, two = (
        sum(part.microbatches * times.held(s) for part in times.parts(device) for s in part.stages)
        for times in (rounds.of(1), rounds.of(2))
    )
    limit = room(rounds.problem, device) or 1
    terms = {
        "until the first input": _head(rounds.of(1), device),
        "of what one chain has more": Fraction(2 * one - two, limit),
        "way back": _back(rounds.of(1), device),
    }
    return _line(rounds.problem, device, "area", Fraction(two - one, limit), terms, 1)


def _head(times: LeastTimes, device: int) -> int:
    """Return the least time before a device's first input, where that counts."""
    if times.problem.objective is Objective.SPAN:
        return 0
    firsts = [part.stages[0] for part in times.parts(device)]
    return min(times.up(times.first_in_chain(stage), stage) for stage in firsts)


def _back(times: LeastTimes, device: int) -> int:
    """Return the least time from a device's last op to the end of all, where that counts."""
    problem = times.problem
    if problem.objective is Objective.SPAN or problem.backward is not Backward.FUSED:
        return 0
    return min(times.way_back(part.stages[0], None) for part in times.parts(device))


def _line(
    problem: Problem,
    device: int,
    name: str,
    per_round: Fraction,
    terms: Mapping[str, Fraction | int],
    first: int,
) -> Line:
    constant = sum(map(Fraction, terms.values()), Fraction(0))
    what = {"work": "work", "area": "memory x time within the limit"}[name]
    per_unit = problem.cost.ticks_per_unit
    told = [f"rounds x {in_words(per_round / per_unit)} {what}"]
    told += [f"{in_words(Fraction(t) / per_unit)} {term}" for term, t in terms.items() if t]
    text = f"device {device}: {' + '.join(told)}"
    return Line(per_round, constant, first, name, device, text)


def in_words(number: Fraction) -> str:
    """Return a number as a reader wants it: whole, or with up to three decimals."""
    return f"{float(number):.3f}".rstrip("0").rstrip(".")
