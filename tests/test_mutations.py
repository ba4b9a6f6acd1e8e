"""Mutation testing over all families: one change each, refused by the right rule or harmless.

The operators are the two tables of ``mutations``. Harm is what an independent execution shows: it
hangs, computes something else, or runs out of memory.
"""

from collections.abc import Iterator
from random import Random

import pytest
from executor import Execution, replay_faults
from family_plans import plans
from mutations import ON_PROGRAMS, ON_SCHEDULES, Operator, Plan
from program_executor import faults
from verdicts import rules

import bubbleproof as bp
from bubbleproof.schedules import families
from bubbleproof.schedules.program import Program
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.verify.program_rules import verify_program

SMALL = ((2, 4), (3, 6))
MANY = ((2, 9), (3, 7), (4, 9), (6, 12))


def verdict(plan: Plan) -> bp.Report:
    """Return what verify says of a schedule or program."""
    return verify_program(plan) if isinstance(plan, Program) else bp.verify(plan)


def harm(plan: Plan, seed: int) -> list[str]:
    """Return what goes wrong when a plan is executed, programs under each transport."""
    if isinstance(plan, Program):
        return [fault for each in faults(plan, seed).values() for fault in each]
    return [*Execution(plan, seed).faults, *replay_faults(plan)]


def mutants(
    name: str, operator: Operator, kind: type[Plan], sizes: tuple[tuple[int, int], ...]
) -> Iterator[tuple[int, Plan]]:
    """Yield one mutant for each plan of a kind that has something to change, and its seed."""
    for family in families.names():
        for seed, plan in enumerate(plans(family, sizes)):
            if isinstance(plan, kind):
                tries = (
                    operator.mutant(name, plan, Random(f"{name} {family} {seed} {attempt}"))
                    for attempt in range(3)
                )
                mutant = next((found for found in tries if found is not None), None)
                if mutant is not None:
                    yield seed, mutant


def judge_mutants(
    name: str, operator: Operator, kind: type[Plan], sizes: tuple[tuple[int, int], ...]
) -> None:
    """Check every mutant's verdict against the operator's rules and an execution."""
    made = refused = 0
    for seed, mutant in mutants(name, operator, kind, sizes):
        report = verdict(mutant)
        broken = set(rules(report))
        made += 1
        if report.valid:
            assert not harm(mutant, seed), f"{name}: accepted\n{mutant}"
            continue
        refused += 1
        assert broken & operator.rules, f"{name}: {report.violations}\n{mutant}"
        assert broken <= operator.rules | operator.besides, f"{name}: {broken}\n{mutant}"
        assert operator.formal or harm(mutant, seed), f"{name}: {report.violations}\n{mutant}"
    assert made
    assert bool(refused) == bool(operator.rules)


@pytest.mark.parametrize("name", ON_SCHEDULES)
def test_a_spoiled_schedule_is_refused_by_the_right_rule_or_harmless(name: str) -> None:
    """What verify accepts runs to its end and computes the same; what it refuses does harm."""
    judge_mutants(name, ON_SCHEDULES[name], Schedule, SMALL)


@pytest.mark.parametrize("name", ON_PROGRAMS)
def test_a_spoiled_program_is_refused_by_the_right_rule_or_harmless(name: str) -> None:
    """The same for programs, each executed under all four transports."""
    judge_mutants(name, ON_PROGRAMS[name], Program, SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_SCHEDULES)
def test_spoiled_schedules_of_many_sizes_are_judged_right(name: str) -> None:
    """All families and operators, up to six devices."""
    judge_mutants(name, ON_SCHEDULES[name], Schedule, MANY)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_PROGRAMS)
def test_spoiled_programs_of_many_sizes_are_judged_right(name: str) -> None:
    """All families and operators, up to six devices."""
    judge_mutants(name, ON_PROGRAMS[name], Program, MANY)


@pytest.mark.parametrize("family", families.names())
def test_every_family_is_spoiled(family: str) -> None:
    """The small sizes already have a schedule and a program of each family, valid before."""
    found = plans(family, SMALL)
    assert {type(plan) for plan in found} == {Schedule, Program}
    assert all(verdict(plan).valid for plan in found)
    assert not any(harm(plan, 0) for plan in found)


def test_there_are_enough_operators() -> None:
    """Each table has at least 25 operators, so that no kind of fault is left out."""
    assert len(ON_SCHEDULES) >= 25
    assert len(ON_PROGRAMS) >= 25
