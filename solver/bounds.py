"""Lower bounds on makespan and span, each with its argument in words.

Every bound is a necessary condition of any valid schedule, so the largest holds. The warm-up and
cool-down arguments follow the bubble analysis of Zero Bubble (arXiv 2401.10241, sec. 2.3) and the
area bound is Little's law; the forms here, with memory limits, unequal stages, transfers and
several stages per device, are our own. A makespan is never less than the span of any device, so
each bound on a span is one on the makespan too, with the way to the device before it.
"""

from collections.abc import Callable, Iterator, Sequence

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Bound
from bubbleproof.solver.limits import room
from bubbleproof.solver.times import LeastTimes, Part


def bounds(problem: Problem) -> tuple[Bound, ...]:
    """Return every bound on the problem's objective, the strongest first.

    The problem must be feasible: see ``solver.limits.shortages``.
    """
    times = LeastTimes(problem)
    found = [
        bound
        for device in range(problem.devices)
        if times.parts(device)
        for bound in _of_device(times, device)
    ]
    return tuple(sorted(found, key=lambda bound: (-bound.ticks, bound.name, bound.device or 0)))


def _of_device(times: LeastTimes, device: int) -> Iterator[Bound]:
    yield work(times, device)
    yield path(times, device)
    yield warm(times, device)
    yield cool(times, device)
    yield warm_and_cool(times, device)
    yield pass_through(times, device)
    behind = tail(times, device)
    if behind.terms:  # Where ops may pair, or a chain does not come from the device, none holds.
        yield behind
    yield turn(times, device)
    if room(times.problem, device):
        yield area(times, device)


def work(times: LeastTimes, device: int) -> Bound:
    """A device is busy for all its work; it cannot begin before its first input arrives."""
    return _local(times, device, "work", {"work": times.least_work(device)})


def warm(times: LeastTimes, device: int) -> Bound:
    """Before its first backward a device can only run forwards, as many as its memory holds.

    From the device's first start to its first backward at least one turnaround passes; what the
    forwards that fit cannot fill of it is idle.
    """
    terms = {"work": times.least_work(device), _WARM: times.warm_idle(device)}
    return _local(times, device, "warm", terms)


def cool(times: LeastTimes, device: int) -> Bound:
    """After its last forward a device can only run the backwards and W's that it still holds."""
    terms = {"work": times.least_work(device), _COOL: times.cool_idle(device)}
    return _local(times, device, "cool", terms)


def warm_and_cool(times: LeastTimes, device: int) -> Bound:
    """Warm-up and cool-down idle add up where some forward must follow the first backward."""
    terms = {"work": times.least_work(device), **_idle(times, device)}
    return _local(times, device, "sum", terms)


def path(times: LeastTimes, device: int) -> Bound:
    """The last microbatch waits for all others at the slowest forward, then goes on and back."""

    def way(first: int, microbatches: int) -> dict[str, int]:
        slowest = max(times.forward[stage] for stage in times.onward(first))
        return {
            "way forth and back": times.turnaround(first) + times.gradient[first],
            "W": times.weight[first],
            "waiting at the slowest forward": (microbatches - 1) * slowest,
        }

    ways = [way(part.stages[0], part.microbatches) for part in times.parts(device)]
    return _local(times, device, "path", max(ways, key=lambda terms: sum(terms.values())))


def pass_through(times: LeastTimes, device: int) -> Bound:
    """All forwards and backwards of a device lie between the ways to it and back.

    For the makespan those are the ways from and to the chain's first stage. For the span of a
    device they are the ways from its first stage through another device and back.
    """
    return _between(times, device, "pass-through", _through)


def tail(times: LeastTimes, device: int) -> Bound:
    """Behind a device's last forward its microbatch goes on and comes back.

    Before that forward ends the device has done all its work but what its memory holds then; so
    W's that are kept for the end do not make the gradients leave sooner. The ways to the device
    and back are as in ``pass_through``.
    """
    return _between(times, device, "tail", _behind)


def turn(times: LeastTimes, device: int) -> Bound:
    """From its first backward on a device runs all backwards, and the forwards that come late.

    The forwards before it fit in its memory. What a pair takes counts as its backward's time and,
    beyond that, its forward's. After the device's last backward those of the stages before follow;
    meanwhile it runs only W's, as many as its memory let wait.
    """
    way_back = 0
    if times.problem.objective is Objective.MAKESPAN:
        way_back = times.home_idle(device)
    terms = {
        "until the first backward": times.until_backward(device),
        "backwards": sum(
            part.microbatches * times.backward_or_pair[stage]
            for part in times.parts(device)
            for stage in part.stages
        ),
        "forwards that do not fit before it": times.late_forwards(device),
        "idle on the way back": way_back,
    }
    return _bound(times.problem, device, "turn", terms)


def area(times: LeastTimes, device: int) -> Bound:
    """Little's law: what all microbatches hold x how long fits under the limit for the span."""
    held = sum(
        part.microbatches * times.held(stage)
        for part in times.parts(device)
        for stage in part.stages
    )
    limit = room(times.problem, device) or 1
    return _local(times, device, "area", {"of memory x time within the limit": -(-held // limit)})


_WARM = "idle before the first backward"
_COOL = "idle after the last forward"


def _idle(times: LeastTimes, device: int) -> dict[str, int]:
    warm_up, cool_down = times.warm_idle(device), times.cool_idle(device)
    if not times.all_forwards_fit(device):
        return {_WARM: warm_up, _COOL: cool_down}
    return {_WARM: warm_up} if warm_up >= cool_down else {_COOL: cool_down}


def _between(
    times: LeastTimes,
    device: int,
    name: str,
    terms_of: Callable[[LeastTimes, int, int | None], dict[str, int]],
) -> Bound:
    """Return the strongest bound that some device's ops give between the ways to it and back."""
    if times.problem.objective is Objective.MAKESPAN:
        return _bound(times.problem, device, name, terms_of(times, device, None))
    ways = {inner: terms_of(times, inner, device) for inner in range(times.problem.devices)}
    inner = max(ways, key=lambda inner: sum(ways[inner].values()))
    through = "" if inner == device else f" through device {inner}"
    return _bound(times.problem, device, name, ways[inner], through)


def _way_in(times: LeastTimes, parts: Sequence[Part], outer: int | None) -> int:
    """Return the least time to the first F of some parts, from the outer device or all before."""

    def way_in(stage: int) -> int:
        if outer is None:
            return times.up(times.first_in_chain(stage), stage)
        first = times.first_on(outer, times.problem.placement.chain_of_stage[stage])
        return times.up(stage if first is None else first, stage)

    return min(way_in(part.stages[0]) for part in parts)


def _behind(times: LeastTimes, inner: int, outer: int | None) -> dict[str, int]:
    """Return the terms of the bound; none where a chain does not pass the outer device first."""
    parts = times.parts(inner)
    if not parts or times.may_pair(inner):
        return {}
    if outer is not None and times.parts_after(inner, outer) != parts:
        return {}
    before, behind = min(
        (
            (
                times.until_last_forward(inner, part),
                times.from_last_forward(part) + times.way_back(part.stages[0], outer),
            )
            for part in parts
        ),
        key=sum,
    )
    return {
        "way to it": _way_in(times, parts, outer),
        **({} if times.all_forwards_fit(inner) else {_WARM: times.warm_idle(inner)}),
        "work until its last forward ends": before,
        "way on, back and home": behind,
    }


def _through(times: LeastTimes, inner: int, outer: int | None) -> dict[str, int]:
    """Return the terms of the bound; none where no stage is passed on the way."""
    parts = times.parts(inner) if outer is None else times.parts_after(inner, outer)
    if not parts:
        return {}
    firsts = [part.stages[0] for part in parts]
    return {
        "way to it": _way_in(times, parts, outer),
        "forwards and backwards": times.through_work(inner, parts),
        "W's that memory does not let wait": times.forced_weights(inner, parts),
        **(_idle(times, inner) if parts == times.parts(inner) else {}),
        "way back": min(times.way_back(stage, outer) for stage in firsts),
    }


def _local(times: LeastTimes, device: int, name: str, terms: dict[str, int]) -> Bound:
    """Make a bound on the device's own span one on the objective."""
    problem = times.problem
    if problem.objective is Objective.MAKESPAN:
        firsts = [part.stages[0] for part in times.parts(device)]
        terms = {
            "until the first input": min(
                times.up(times.first_in_chain(stage), stage) for stage in firsts
            ),
            **terms,
        }
        if problem.backward is Backward.FUSED:
            terms["way back"] = min(times.way_back(stage, None) for stage in firsts)
    return _bound(problem, device, name, terms)


def _bound(
    problem: Problem, device: int, name: str, terms: dict[str, int], through: str = ""
) -> Bound:
    terms = {term: ticks for term, ticks in terms.items() if ticks}
    told = " + ".join(f"{problem.time(ticks)} {term}" for term, ticks in terms.items())
    ticks = sum(terms.values())
    return Bound(
        name=name,
        ticks=ticks,
        text=f"device {device}{through}: {told or 'nothing to do'} = {problem.time(ticks)}",
        device=device,
        terms=terms,
    )
