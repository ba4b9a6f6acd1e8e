"""Random programs, valid ones and broken ones, from a seed.

A program begins as a valid schedule in a random order, with its messages put in by rule: one line
of all ops and transfers, from which each device takes its part. Then messages drift, some are
posted together, and mutations change what is left. Nothing here calls the code under test.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TypeAlias

from msgspec import structs
from strategies import any_order

from bubbleproof.schedules.ops import Op, OpKind, Pair
from bubbleproof.schedules.placement import explicit, parse_placement
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Action, ActionKind, Group, Program, Step
from bubbleproof.schedules.schedule import Schedule

Rows: TypeAlias = list[list[Step]]

SEND = {"F": ActionKind.SEND_F, "B": ActionKind.SEND_B}
RECV = {"F": ActionKind.RECV_F, "B": ActionKind.RECV_B}
OTHER_DIRECTION = {
    ActionKind.SEND_F: ActionKind.SEND_B,
    ActionKind.SEND_B: ActionKind.SEND_F,
    ActionKind.RECV_F: ActionKind.RECV_B,
    ActionKind.RECV_B: ActionKind.RECV_F,
}
OTHER_END = {
    ActionKind.SEND_F: ActionKind.RECV_F,
    ActionKind.RECV_F: ActionKind.SEND_F,
    ActionKind.SEND_B: ActionKind.RECV_B,
    ActionKind.RECV_B: ActionKind.SEND_B,
}


def random_problem(random: Random) -> Problem:
    """Return a small problem on any placement, with and without pairs and memory limits."""
    devices = random.randint(1, 4)
    name = random.choice(["linear", "loop:2", "v", "wave:2", "bidirectional", "explicit"])
    if name == "explicit":
        stages = random.randint(devices, 2 * devices)
        placement = explicit(devices, [random.randrange(devices) for _ in range(stages)])
    else:
        placement = parse_placement(name, devices)
    backward = random.choice(["split", "fused", "free"])
    return Problem(
        devices=devices,
        placement=placement,
        microbatches=[random.randint(1, 4) for _ in placement.chains],
        cost={"F": 1, "I": 1, "W": 1, "pair": None if backward == "split" else 2},
        memory={"F": 2, "I": -1, "W": -1, "limit": random.choice([None] * 5 + [6])},
        backward=backward,
    )


def transfers(problem: Problem, op: Op) -> list[tuple[Action, Action, int]]:
    """Return the SEND and RECV of what an op hands to another device, and that device."""
    letter = {OpKind.FORWARD: "F", OpKind.BACKWARD_INPUT: "B", OpKind.BACKWARD: "B"}.get(op.kind)
    if letter is None:
        return []
    placement = problem.placement
    chain = next(chain for chain in placement.chains if op.stage in chain)
    at = chain.index(op.stage) + (1 if letter == "F" else -1)
    if not 0 <= at < len(chain):
        return []
    other = chain[at]
    target = placement.device_of_stage[other]
    if target == placement.device_of_stage[op.stage]:
        return []
    send = Action(op.stage, SEND[letter], op.microbatch)
    return [(send, Action(other, RECV[letter], op.microbatch), target)]


def lowered(schedule: Schedule) -> Program:
    """Put each message in where its op ends: a SEND behind it, the RECV at once on the other side.

    All ends of all messages are then in one line, so that no transport can block.
    """
    problem = schedule.problem
    made: set[tuple[str, int, int]] = set()
    rows: Rows = [[] for _ in schedule.rows]
    left = [list(reversed(row)) for row in schedule.rows]
    moved = True
    while moved:
        moved = False
        for device, row in enumerate(left):
            needs = [need for op in ops_of(row[-1]) for need in inputs(problem, op)] if row else []
            if row and made.issuperset(needs):
                block = row.pop()
                moved = True
                rows[device].append(block)
                for op in ops_of(block):
                    made.add(output(op))
                    for send, receive, target in transfers(problem, op):
                        rows[device].append(send)
                        rows[target].append(receive)
    if any(left):
        raise ValueError("the order of the ops cannot run")
    return Program(problem, tuple(map(tuple, rows)), source="one line")


def drifted(program: Program, random: Random, moves: int) -> Program:
    """Exchange neighbours in rows again and again, so that nothing breaks but perhaps the flow.

    A SEND stays behind its op and a RECV ahead of it, and the messages from one device to another
    keep their order.
    """
    rows: Rows = [list(row) for row in program.rows]
    device_of = program.problem.placement.device_of_stage
    joined = {
        (op, end)
        for row in rows
        for step in row
        for op in ops_of(step)
        for end, _, _ in transfers(program.problem, op)
    }
    for row in rows:
        for step in row:
            for op in ops_of(step):
                for letter, stage, m in inputs(program.problem, op):
                    if device_of[stage] != device_of[op.stage]:
                        kind = RECV["F" if letter == "F" else "B"]
                        joined.add((op, Action(op.stage, kind, m)))

    def fixed(one: Step, other: Step) -> bool:
        if isinstance(one, Action) and isinstance(other, Action):
            return channel(program.problem, one) == channel(program.problem, other)
        ends = [step for step in (one, other) if isinstance(step, Action)]
        return not ends or any(
            (op, end) in joined for step in (one, other) for op in ops_of(step) for end in ends
        )

    for _ in range(moves):
        row = random.choice(rows)
        if len(row) > 1:
            at = random.randrange(len(row) - 1)
            # Some go far, for most single exchanges change little.
            for here in range(at, min(len(row) - 1, at + random.choice([1, 1, 4]))):
                if fixed(row[here], row[here + 1]):
                    break
                row[here], row[here + 1] = row[here + 1], row[here]
    return replace(program, rows=tuple(map(tuple, rows)), source="drifted")


def channel(problem: Problem, message: Action) -> tuple[int, int]:
    """Return the devices that a message goes from and to; -1 where there is none."""
    chain = next(chain for chain in problem.placement.chains if message.stage in chain)
    forth = message.kind in (ActionKind.SEND_F, ActionKind.RECV_B)
    at = chain.index(message.stage) + (1 if forth else -1)
    own = problem.placement.device_of_stage[message.stage]
    peer = problem.placement.device_of_stage[chain[at]] if 0 <= at < len(chain) else -1
    return (own, peer) if message.kind in SEND.values() else (peer, own)


def with_groups(program: Program, random: Random) -> Program:
    """Post some neighbouring messages together."""
    rows: Rows = []
    for row in program.rows:
        grouped: list[Step] = []
        for step in row:
            last = grouped[-1] if grouped else None
            if is_message(step) and random.random() < 0.5:
                if isinstance(last, Group):
                    grouped[-1] = Group((*last.messages, *messages_of(step)))
                    continue
                if is_message(last):
                    grouped[-1] = Group((*messages_of(last), *messages_of(step)))
                    continue
            grouped.append(step)
        rows.append(grouped)
    return replace(program, rows=tuple(map(tuple, rows)))


def with_weights(program: Program) -> Program:
    """Fetch each stage before its first op, let it go after its last and reduce it before that.

    Copies are reduced at the end, in the order of their originals.
    """
    original = program.problem.placement.replica_of
    copied = {each for copy, each in enumerate(original) if copy != each}
    rows: Rows = []
    for row in program.rows:
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for at, step in enumerate(row):
            for op in ops_of(step):
                first.setdefault(op.stage, at)
                last[op.stage] = at
        shared = sorted((s for s in last if original[s] in copied), key=lambda s: original[s])
        last.update(dict.fromkeys(shared, len(row) - 1))
        woven: list[Step] = []
        for at, step in enumerate(row):
            woven += [Action(s, ActionKind.UNSHARD) for s in sorted(first) if first[s] == at]
            woven.append(step)
            over = [s for s in sorted(last) if last[s] == at and s not in shared]
            for s in (*over, *(s for s in shared if last[s] == at)):
                woven += [Action(s, ActionKind.REDUCE_GRAD), Action(s, ActionKind.RESHARD)]
        rows.append(woven)
    return replace(program, rows=tuple(map(tuple, rows)))


def is_message(step: Step | None) -> bool:
    """Whether a step is a single message."""
    return isinstance(step, Action) and step.kind.is_message


def messages_of(step: Step | None) -> tuple[Action, ...]:
    """Return the messages of a step."""
    if isinstance(step, Group):
        return step.messages
    return (step,) if isinstance(step, Action) and step.kind.is_message else ()


def ops_of(step: Step) -> tuple[Op, ...]:
    """Return the ops of a step, none for messages and weights."""
    if isinstance(step, Pair):
        return step.forward, step.backward
    return (step,) if isinstance(step, Op) else ()


def output(op: Op) -> tuple[str, int, int]:
    """Return the name of what an op makes."""
    letter = "I" if op.kind is OpKind.BACKWARD else op.kind.value
    return letter, op.stage, op.microbatch


def inputs(problem: Problem, op: Op) -> list[tuple[str, int, int]]:
    """Return the names of what an op uses."""
    chain = next(chain for chain in problem.placement.chains if op.stage in chain)
    at, m = chain.index(op.stage), op.microbatch
    match op.kind:
        case OpKind.FORWARD:
            return [("F", chain[at - 1], m)] if at else []
        case OpKind.BACKWARD_WEIGHT:
            return [("I", op.stage, m)]
        case OpKind.BACKWARD_INPUT | OpKind.BACKWARD:
            later = [("I", chain[at + 1], m)] if at + 1 < len(chain) else []
            return [("F", op.stage, m), *later]


Mutation: TypeAlias = Callable[[Rows, Random], None]
"""Changes rows in place; leaves them as they are where it finds nothing to change."""


def random_program(random: Random, *, most_mutations: int = 2) -> tuple[Program, list[str]]:
    """Return a program and the names of the mutations that it went through."""
    problem = random_problem(random)
    program = lowered(any_order(problem, random))
    if random.random() < 0.7:
        program = drifted(program, random, random.choice([1, 3, 10, 40]))
    if random.random() < 0.5:
        program = with_groups(program, random)
    if random.random() < 0.4:
        program = with_weights(program)
    rows: Rows = [list(row) for row in program.rows]
    names = [
        random.choice(sorted(MUTATIONS)) for _ in range(random.choice(range(most_mutations + 1)))
    ]
    for name in names:
        MUTATIONS[name](rows, random)
    return replace(program, rows=tuple(map(tuple, rows)), source="random"), names


def places(rows: Rows, wanted: Callable[[Step], bool]) -> list[tuple[int, int]]:
    """Return the device and position of each step that is wanted."""
    return [(d, i) for d, row in enumerate(rows) for i, step in enumerate(row) if wanted(step)]


def _on(
    wanted: Callable[[Step], bool], change: Callable[[list[Step], int, Random], None]
) -> Mutation:
    """Return the mutation that changes a random step of those that are wanted."""

    def mutate(rows: Rows, random: Random) -> None:
        found = places(rows, wanted)
        if found:
            device, position = random.choice(found)
            change(rows[device], position, random)

    return mutate


def _drop(row: list[Step], at: int, random: Random) -> None:
    del row[at]


def _double(row: list[Step], at: int, random: Random) -> None:
    row.insert(random.randint(at + 1, len(row)), row[at])


def _move(row: list[Step], at: int, random: Random) -> None:
    step = row.pop(at)
    row.insert(random.randint(0, len(row)), step)


def _swap_with_next(row: list[Step], at: int, random: Random) -> None:
    if at + 1 < len(row):
        row[at], row[at + 1] = row[at + 1], row[at]


def _renamed(
    change: Callable[[Action, Random], Action],
) -> Callable[[list[Step], int, Random], None]:
    """Return the change of one message, in a group or alone."""

    def rename(row: list[Step], at: int, random: Random) -> None:
        step = row[at]
        messages = list(messages_of(step))
        if messages:
            which = random.randrange(len(messages))
            messages[which] = change(messages[which], random)
            row[at] = Group(tuple(messages)) if isinstance(step, Group) else messages[0]

    return rename


def _other_microbatch(message: Action, random: Random) -> Action:
    microbatch = (message.microbatch or 0) + random.choice([-1, 1, 7])
    return structs.replace(message, microbatch=microbatch)


def _other_stage(message: Action, by: int) -> Action:
    return structs.replace(message, stage=message.stage + by)


def _ungroup(row: list[Step], at: int, random: Random) -> None:
    row[at : at + 1] = messages_of(row[at])


def _sends_first(row: list[Step], at: int, random: Random) -> None:
    messages = messages_of(row[at])
    sends = [message for message in messages if message.kind in SEND.values()]
    row[at : at + 1] = [*sends, *(message for message in messages if message not in sends)]


def _shuffle_group(row: list[Step], at: int, random: Random) -> None:
    messages = list(messages_of(row[at]))
    random.shuffle(messages)
    row[at] = Group(tuple(messages))


def _drop_from_group(row: list[Step], at: int, random: Random) -> None:
    messages = list(messages_of(row[at]))
    if messages:
        messages.pop(random.randrange(len(messages)))
    row[at] = Group(tuple(messages))


def _join_next(row: list[Step], at: int, random: Random) -> None:
    if at + 1 < len(row) and messages_of(row[at + 1]):
        row[at : at + 2] = [Group((*messages_of(row[at]), *messages_of(row[at + 1])))]


def _post_nothing(row: list[Step], at: int, random: Random) -> None:
    row.insert(at, Group(()))


def _to_other_device(wanted: Callable[[Step], bool]) -> Mutation:
    """Return the mutation that puts one of the wanted steps somewhere into another row."""

    def mutate(rows: Rows, random: Random) -> None:
        found = places(rows, wanted)
        if found and len(rows) > 1:
            device, position = random.choice(found)
            row = random.choice([row for other, row in enumerate(rows) if other != device])
            row.insert(random.randint(0, len(row)), rows[device].pop(position))

    return mutate


def _swap_two(kinds: tuple[ActionKind, ...]) -> Mutation:
    """Return the mutation that exchanges two messages of one device and of these kinds."""

    def mutate(rows: Rows, random: Random) -> None:
        found = places(rows, lambda step: isinstance(step, Action) and step.kind in kinds)
        if found:
            device, one = random.choice(found)
            other = random.choice([at for where, at in found if where == device])
            row = rows[device]
            row[one], row[other] = row[other], row[one]

    return mutate


def _of_kind(*kinds: ActionKind) -> Callable[[Step], bool]:
    return lambda step: isinstance(step, Action) and step.kind in kinds


def _is_group(step: Step) -> bool:
    return isinstance(step, Group)


def _has_messages(step: Step) -> bool:
    return bool(messages_of(step))


def _is_block(step: Step) -> bool:
    return bool(ops_of(step))


MUTATIONS: dict[str, Mutation] = {
    "drop a message": _on(is_message, _drop),
    "double a message": _on(is_message, _double),
    "move a message": _on(_has_messages, _move),
    "swap a message with its neighbour": _on(_has_messages, _swap_with_next),
    "flip a message's direction": _on(
        _has_messages,
        _renamed(lambda each, _: structs.replace(each, kind=OTHER_DIRECTION[each.kind])),
    ),
    "make a send a receive": _on(
        _has_messages, _renamed(lambda each, _: structs.replace(each, kind=OTHER_END[each.kind]))
    ),
    "another microbatch": _on(_has_messages, _renamed(_other_microbatch)),
    "another stage": _on(
        _has_messages,
        _renamed(lambda each, random: _other_stage(each, random.choice([-1, 1]))),
    ),
    "swap two sends": _swap_two((ActionKind.SEND_F, ActionKind.SEND_B)),
    "swap two receives": _swap_two((ActionKind.RECV_F, ActionKind.RECV_B)),
    "ungroup": _on(_is_group, _ungroup),
    "sends, then receives": _on(_is_group, _sends_first),
    "shuffle a group": _on(_is_group, _shuffle_group),
    "drop from a group": _on(_is_group, _drop_from_group),
    "join two": _on(_has_messages, _join_next),
    "an empty group": _on(_has_messages, _post_nothing),
    "a message to another device": _to_other_device(_has_messages),
    "an op to another device": _to_other_device(_is_block),
    "drop an op": _on(_is_block, _drop),
    "double an op": _on(_is_block, _double),
    "move an op": _on(_is_block, _move),
    "swap an op with its neighbour": _on(_is_block, _swap_with_next),
    "drop a reduction": _on(_of_kind(ActionKind.REDUCE_GRAD), _drop),
    "double a reduction": _on(_of_kind(ActionKind.REDUCE_GRAD), _double),
    "move a reduction": _on(_of_kind(ActionKind.REDUCE_GRAD), _move),
    "drop a fetch": _on(_of_kind(ActionKind.UNSHARD, ActionKind.RESHARD), _drop),
    "double a fetch": _on(_of_kind(ActionKind.UNSHARD, ActionKind.RESHARD), _double),
    "move a fetch": _on(_of_kind(ActionKind.UNSHARD, ActionKind.RESHARD), _move),
}
"""By name, what may be done to a program."""
