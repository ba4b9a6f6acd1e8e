"""Schedules of every family, with limits that they just keep, and the programs made of them."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from bubbleproof.schedules import families
from bubbleproof.schedules.lower import lower
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Program
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.simulate import simulate

PLACEMENTS = ("linear", "loop:2", "v", "wave:2", "wave:4", "bidirectional")
COST = {"F": 10, "I": 12, "W": 8, "B": 20, "pair": 25, "transfer": 1}
MEMORY = {"F": 2, "I": -1, "W": -1}


def family_schedule(family: str, devices: int, microbatches: int) -> Iterator[Schedule]:
    """Yield a family's schedule on each placement that it takes."""
    for placement in PLACEMENTS:
        problem = Problem(
            devices=devices,
            placement=placement,
            microbatches=microbatches,
            cost=COST,
            memory=MEMORY,
            backward="free",
        )
        try:
            yield families.build(family, problem)
        except ValueError:
            continue


def timed(schedule: Schedule) -> Schedule:
    """Return a schedule with its earliest starts, whose peaks are the limits of its devices."""
    timeline = simulate(schedule)
    problem = schedule.problem
    peaks = tuple(max(grains for _, grains in curve) for curve in timeline.memory)
    memory = replace(problem.memory, limit=peaks)
    return replace(schedule, problem=replace(problem, memory=memory), starts=timeline.starts)


@cache
def plans(family: str, sizes: tuple[tuple[int, int], ...]) -> tuple[Schedule | Program, ...]:
    """Return a family's schedules of some sizes, and their programs."""
    found: list[Schedule | Program] = []
    for devices, microbatches in sizes:
        for schedule in map(timed, family_schedule(family, devices, microbatches)):
            found += [schedule, lower(schedule)]
    return tuple(found)
