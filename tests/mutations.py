"""Every way in which tests spoil a plan, and what verify may then say: two tables.

A plan is a schedule of a family, with starts and with limits that it just keeps, or the program
that it was lowered to. An operator changes one thing in it. A mutant that is refused breaks rules
of the operator's set and no others; where the set is empty, every mutant is harmless. Nothing here
calls the code under test.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeAlias

import random_programs
import row_mutations as on
from row_mutations import RowMutation, any_of

from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.program import Group, Program, Step
from bubbleproof.schedules.schedule import Schedule

Plan: TypeAlias = Schedule | Program


Change: TypeAlias = Callable[[Plan, Random], Plan]
"""Returns a mutant; the plan itself where there is nothing to change."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One way to spoil a plan.

    Parameters
    ----------
    rules
        What is wrong with a mutant: one of these rules is broken if any is. Nothing: all mutants
        are harmless.
    besides
        Rules that may then be broken, too.
    formal
        Whether a refused mutant may run all the same: what is said of it is wrong, or the executor
        does not know the rule.
    change
        What it does; None for the change that ``random_programs`` has under the same name.
    """

    rules: frozenset[str]
    besides: frozenset[str]
    formal: bool
    change: Change | None

    def mutant(self, name: str, plan: Plan, random: Random) -> Plan | None:
        """Return a mutant; None where there is nothing to change."""
        change = self.change or _of_random_programs(name)
        mutant = change(plan, random)
        return None if mutant == plan else mutant


def _operator(
    change: Change | None, rules: str, *, besides: str = "", formal: bool = False
) -> Operator:
    return Operator(frozenset(rules.split()), frozenset(besides.split()), formal, change)


def _op(
    mutation: RowMutation, rules: str = "", *, besides: str = "", formal: bool = False
) -> Operator:
    """Return an operator on the rows of schedules, which are then judged without starts."""

    def change(plan: Plan, random: Random) -> Plan:
        if not isinstance(plan, Schedule):
            return plan
        rows = [list(row) for row in plan.rows]
        mutation(rows, random)
        changed = tuple(map(tuple, rows))
        return plan if changed == plan.rows else replace(plan, rows=changed, starts=None)

    return _operator(change, rules, besides=besides, formal=formal)


def _starts(
    mutation: Callable[[list[list[int]], Random], None], rules: str, *, formal: bool = False
) -> Operator:
    """Return an operator on the starts of schedules."""

    def change(plan: Plan, random: Random) -> Plan:
        if not isinstance(plan, Schedule) or plan.starts is None:
            return plan
        starts = [list(row) for row in plan.starts]
        mutation(starts, random)
        return replace(plan, starts=tuple(map(tuple, starts)))

    return _operator(change, rules, formal=formal)


def _asked(
    mutation: Callable[[Schedule, Random], Schedule], rules: str, *, formal: bool = False
) -> Operator:
    """Return an operator on what a schedule is for: tables, limits and microbatches."""

    def change(plan: Plan, random: Random) -> Plan:
        return mutation(plan, random) if isinstance(plan, Schedule) else plan

    return _operator(change, rules, formal=formal)


def _step(rules: str = "", *, besides: str = "") -> Operator:
    """Return an operator on a program's steps, to be found by its name."""
    return _operator(None, rules, besides=besides)


def _every_group(rules: str) -> Operator:
    """Return the operator that writes all groups out, on both sides the sends first."""

    def change(plan: Plan, random: Random) -> Plan:
        if not isinstance(plan, Program):
            return plan
        return replace(plan, rows=tuple(tuple(_sends_first(row)) for row in plan.rows))

    return _operator(change, rules)


def _sends_first(row: Sequence[Step]) -> Iterator[Step]:
    for step in row:
        if isinstance(step, Group):
            sends = random_programs.SEND.values()
            yield from sorted(step.messages, key=lambda message: message.kind not in sends)
        else:
            yield step


def _of_random_programs(name: str) -> Change:
    mutation = random_programs.MUTATIONS[name]

    def change(plan: Plan, random: Random) -> Plan:
        if not isinstance(plan, Program):
            return plan
        rows = [list(row) for row in plan.rows]
        mutation(rows, random)
        return replace(plan, rows=tuple(map(tuple, rows)))

    return change


def shift_start(starts: list[list[int]], random: Random) -> None:
    """Start a block at another time."""
    row = random.choice([row for row in starts if row])
    row[random.randrange(len(row))] += random.choice([-25, -1, 1, 25])


def shift_row(starts: list[list[int]], random: Random) -> None:
    """Start a whole row at another time."""
    row = random.choice([row for row in starts if row])
    by = random.choice([-5, -1, 1, 5])
    row[:] = [start + by for start in row]


def exchange_starts(starts: list[list[int]], random: Random) -> None:
    """Exchange the starts of two blocks of a row."""
    row = random.choice([row for row in starts if len(row) > 1])
    one, other = random.sample(range(len(row)), 2)
    row[one], row[other] = row[other], row[one]


def drop_start(starts: list[list[int]], random: Random) -> None:
    """Leave a start out."""
    row = random.choice([row for row in starts if row])
    del row[random.randrange(len(row))]


def tighten(schedule: Schedule, random: Random) -> Schedule:
    """Take a grain from the limit of a device that its row reaches."""
    problem = schedule.problem
    limits = list(problem.memory.limit)
    device = random.choice([d for d, limit in enumerate(limits) if limit])
    limits[device] = (limits[device] or 0) - 1
    memory = replace(problem.memory, limit=tuple(limits))
    return replace(schedule, problem=replace(problem, memory=memory))


def ask_for_more(schedule: Schedule, random: Random) -> Schedule:
    """Ask for one more microbatch than the rows were made for."""
    counts = list(schedule.problem.microbatches)
    counts[-1] += 1
    return replace(schedule, problem=replace(schedule.problem, microbatches=tuple(counts)))


def reverse_chain(schedule: Schedule, random: Random) -> Schedule:
    """Let a chain pass its stages from the end, against what the placement's name says."""
    placement = schedule.problem.placement
    chains = list(placement.chains)
    at = random.randrange(len(chains))
    chains[at] = chains[at][::-1]
    return _placed(schedule, replace(placement, chains=tuple(chains)))


def exchange_stages(schedule: Schedule, random: Random) -> Schedule:
    """Exchange the devices of two stages in the table, against the placement's name."""
    placement = schedule.problem.placement
    devices = list(placement.device_of_stage)
    one, other = random.sample(range(len(devices)), 2)
    devices[one], devices[other] = devices[other], devices[one]
    return _placed(schedule, replace(placement, device_of_stage=tuple(devices)))


def break_replicas(schedule: Schedule, random: Random) -> Schedule:
    """Exchange whose weights two replicas hold."""
    placement = schedule.problem.placement
    replicas = list(placement.replica_of)
    copies = [stage for stage, original in enumerate(replicas) if stage != original]
    if len(copies) > 1:
        one, other = random.sample(copies, 2)
        replicas[one], replicas[other] = replicas[other], replicas[one]
    return _placed(schedule, replace(placement, replica_of=tuple(replicas)))


def forget_replica(schedule: Schedule, random: Random) -> Schedule:
    """Give a replica weights of its own."""
    placement = schedule.problem.placement
    replicas = list(placement.replica_of)
    copies = [stage for stage, original in enumerate(replicas) if stage != original]
    for stage in any_of(copies, random):
        replicas[stage] = stage
    return _placed(schedule, replace(placement, replica_of=tuple(replicas)))


def _placed(schedule: Schedule, placement: Placement) -> Schedule:
    return replace(schedule, problem=replace(schedule.problem, placement=placement))


ON_SCHEDULES: dict[str, Operator] = {
    "drop an op": _op(on.drop, "complete"),
    "drop a microbatch of a device": _op(on.drop_microbatch, "complete"),
    "double an op": _op(on.duplicate, "complete", besides="causal"),
    "double an op elsewhere": _op(on.duplicate_elsewhere, "complete"),
    "an op to another device": _op(on.move_away, "placement", besides="causal"),
    "exchange two ops": _op(on.exchange, "causal memory"),
    "exchange neighbours": _op(on.exchange_neighbours, "causal memory"),
    "exchange two rows": _op(on.exchange_rows, "placement", besides="causal"),
    "exchange two microbatches": _op(on.exchange_microbatches, "causal"),
    "reverse a stage's microbatches": _op(on.reverse_microbatches, "causal"),
    "reverse a row": _op(on.reverse_row, "causal", besides="memory"),
    "an op first": _op(on.hurry, "causal memory"),
    "an op last": _op(on.postpone, "causal memory"),
    "another microbatch": _op(on.rename_microbatch, "complete", besides="causal"),
    "another stage": _op(on.rename_stage, "complete", besides="placement causal"),
    "another kind": _op(on.change_kind, "complete", besides="causal"),
    "split a backward": _op(on.split_backward),
    "merge a backward": _op(on.merge_backward),
    "merge a backward late": _op(on.merge_backward_late, "causal memory"),
    "a backward in both forms": _op(on.fuse_twice, "complete"),
    "split a pair": _op(on.split_pair),
    "turn a pair": _op(on.turn_pair, "pair", formal=True),
    "pair a microbatch with itself": _op(on.pair_with_itself, "pair", besides="causal memory"),
    "pair neighbours": _op(on.pair_neighbours, "pair causal memory", formal=True),
    "drop a row": _op(on.drop_row, "complete", besides="placement causal"),
    "add a row": _op(on.add_row, "complete", besides="placement causal"),
    "shift a start": _starts(shift_start, "timing exclusive"),
    "shift a row's starts": _starts(shift_row, "timing"),
    "exchange two starts": _starts(exchange_starts, "timing exclusive"),
    "drop a start": _starts(drop_start, "timing", formal=True),
    "a grain less of memory": _asked(tighten, "memory"),
    "a microbatch more": _asked(ask_for_more, "complete"),
    "reverse a chain": _asked(reverse_chain, "placement"),
    "exchange two stages' devices": _asked(exchange_stages, "placement"),
    "break a replica pairing": _asked(break_replicas, "placement", formal=True),
    "forget a replica": _asked(forget_replica, "placement", formal=True),
}

_FLOW = "order produced received deadlock"

ON_PROGRAMS: dict[str, Operator] = {
    "drop a message": _step("matched", besides="deadlock"),
    "double a message": _step("matched", besides="deadlock"),
    "move a message": _step(_FLOW),
    "swap a message with its neighbour": _step(_FLOW),
    "flip a message's direction": _step("matched", besides=f"peer direction {_FLOW}"),
    "make a send a receive": _step("matched", besides=f"peer direction {_FLOW}"),
    "another microbatch": _step("matched", besides=f"peer {_FLOW}"),
    "another stage": _step("matched", besides=f"peer direction {_FLOW}"),
    "swap two sends": _step("order produced deadlock"),
    "swap two receives": _step("order received deadlock"),
    # One side of an exchange may post one message after the other: the other side has both open.
    "ungroup": _step(),
    "sends, then receives": _step(),
    "shuffle a group": _step(),
    "every group's sends first": _every_group("deadlock"),
    "drop from a group": _step("matched", besides="deadlock"),
    # What is posted together waits for no more than one after the other would under rendezvous.
    "join two": _step(),
    "an empty group": _step("group"),
    "a message to another device": _step("peer", besides="matched deadlock"),
    "an op to another device": _step("placement", besides="causal weights"),
    "drop an op": _step("complete"),
    "double an op": _step("complete"),
    "move an op": _step("causal memory produced received weights"),
    "swap an op with its neighbour": _step("causal memory produced received weights"),
    "drop a reduction": _step("weights"),
    "double a reduction": _step("weights"),
    "move a reduction": _step("weights replicas"),
    "drop a fetch": _step("weights"),
    "double a fetch": _step("weights"),
    "move a fetch": _step("weights"),
}
