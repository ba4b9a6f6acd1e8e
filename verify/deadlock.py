"""Rule deadlock: a program ends, whatever moves its messages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bubbleproof.verify.mail import NOBODY, Mail
from bubbleproof.verify.naming import plural
from bubbleproof.verify.report import Deadlock, Violation
from bubbleproof.verify.transports import NONE, Plan, Standstill, Transport, plan_of, run

RULE = "deadlock"
MOST_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Block:
    """An open portion that is not done, and what keeps it so.

    Parameters
    ----------
    portion
        The portion.
    needed
        A portion that it needs and that is not open; NONE where nobody posts the other end.
    standing
        The portion for which the other device stands before it posts the one that is needed;
        NONE where that is posted.
    following
        The open portion that keeps the needed one from opening; NONE where there is none.
    """

    portion: int
    needed: int
    standing: int
    following: int


Blocks: TypeAlias = Mapping[int, Sequence[Block]]
"""For each open portion that is not done what keeps it so."""


@dataclass(frozen=True, slots=True)
class Hang:
    """A transport under which a program does not end.

    Parameters
    ----------
    transport
        The transport.
    deadlock
        Where the devices stand.
    cycle
        The violation for the smallest cycle of waits; None where devices only wait for what
        nobody posts, which rule matched reports.
    """

    transport: Transport
    deadlock: Deadlock
    cycle: Violation | None


def hangs(mail: Mail, transports: Sequence[Transport]) -> list[Hang]:
    """Return, in the order of ``Transport``, the transports under which a program hangs.

    What ends under rendezvous ends under all: the others let a device go on no later (SPEC.md).
    """
    asked = [transport for transport in Transport if transport in transports]
    if len(asked) > 1 and run(plan_of(mail, Transport.RENDEZVOUS)) is None:
        return []
    found: list[Hang] = []
    for transport in asked:
        plan = plan_of(mail, transport)
        left = run(plan)
        if left is not None:
            found.append(_hang(mail, transport, plan, left))
    return found


def deadlocks(found: Sequence[Hang]) -> Iterator[Violation]:
    """Under each transport every device comes to the end of its row and all messages are done.

    Violation: a cycle of waits, one of the smallest. Transports with the same one are told
    together.
    """
    alike: dict[tuple[str, ...], list[Hang]] = {}
    for hang in found:
        if hang.cycle is not None:
            alike.setdefault(hang.cycle.ops, []).append(hang)
    for same in alike.values():
        cycle = same[0].cycle
        if cycle is not None:
            names = ", ".join(hang.transport.value for hang in same)
            yield Violation(
                RULE,
                f"the program hangs under {names}, {cycle.message}",
                cycle.device,
                cycle.position,
                cycle.ops,
            )


def _hang(mail: Mail, transport: Transport, plan: Plan, left: Standstill) -> Hang:
    blocks = _blocks(plan, left)
    stands: dict[int, str] = {}
    cycle = _smallest_cycle(blocks)
    if not cycle:
        for portion, each in blocks.items():
            stands.setdefault(plan.device[portion], _end_text(mail, plan, each[0]))
        return Hang(transport, _deadlock(transport, stands), None)
    texts = [_end_text(mail, plan, block) for block in cycle]
    for block, text in zip(cycle, texts, strict=True):
        stands.setdefault(plan.device[block.portion], text)
    steps = [_step(mail, plan, transport, block) for block in cycle[:MOST_SHOWN]]
    if len(cycle) > MOST_SHOWN:
        steps.append(f"{len(cycle) - MOST_SHOWN} more")
    device, position = mail.where(_end(mail, plan, cycle[0]))
    message = (
        f"a cycle of {plural(len(cycle), 'wait')}: {'; '.join(steps)}. "
        "bubbleproof repair finds an order of the messages that ends"
    )
    violation = Violation(RULE, message, device, position, tuple(texts))
    return Hang(transport, _deadlock(transport, stands), violation)


def _deadlock(transport: Transport, stands: Mapping[int, str]) -> Deadlock:
    blocked = {str(device): text for device, text in sorted(stands.items())}
    return Deadlock(transport=transport.value, blocked=blocked)


def _blocks(plan: Plan, left: Standstill) -> Blocks:
    fronts = _fronts(plan, left)
    blocks: dict[int, list[Block]] = {}
    for portion, ends in enumerate(plan.ends):
        if not left.is_open[portion] or left.is_done[portion]:
            continue
        found = blocks.setdefault(portion, [])
        for end in ends:
            if not plan.waits[end]:
                continue
            partner = plan.partner[end]
            needed = NONE if partner == NOBODY else plan.portion[partner]
            if needed == NONE:
                found.append(Block(portion, NONE, NONE, NONE))
            elif not left.is_open[needed]:
                standing = NONE
                if not left.posted[needed]:
                    device = plan.device[needed]
                    standing = ~plan.rows[device][left.heads[device]]
                keeper = fronts[needed if standing == NONE else standing]
                found.append(Block(portion, needed, standing, keeper))
    return blocks


def _fronts(plan: Plan, left: Standstill) -> list[int]:
    """Return for each portion the first of its queue that is not done."""
    fronts = list(range(len(plan.behind)))
    for portion, following in enumerate(plan.behind):
        if following != NONE and not left.is_done[portion]:
            fronts[following] = fronts[portion]
    return fronts


def _smallest_cycle(blocks: Blocks) -> list[Block]:
    """Return a cycle with the fewest waits, from its first portion on; nothing where none is.

    A portion that was searched from takes part in no other search, nor does what then leads
    nowhere: so a long ring is searched once.
    """
    waiters: dict[int, list[int]] = {}
    ways = dict.fromkeys(blocks, 0)
    for portion, each in blocks.items():
        for block in each:
            if block.following != NONE:
                waiters.setdefault(block.following, []).append(portion)
                ways[portion] += 1
    alive = set(blocks)

    def remove(portions: list[int]) -> None:
        while portions:
            portion = portions.pop()
            alive.discard(portion)
            for waiter in waiters.get(portion, ()):
                ways[waiter] -= 1
                if not ways[waiter] and waiter in alive:
                    portions.append(waiter)

    remove([portion for portion, number in ways.items() if not number])
    best: list[Block] = []
    for start in sorted(alive):
        if start in alive:
            best = _way_back(blocks, alive, start, len(best) - 1 if best else len(alive)) or best
            remove([start])
    if best:
        first = min(range(len(best)), key=lambda index: best[index].portion)
        best = best[first:] + best[:first]
    return best


def _way_back(blocks: Blocks, alive: set[int], start: int, limit: int) -> list[Block]:
    """Return the shortest way from a portion back to it, of at most ``limit`` waits."""
    came: dict[int, Block] = {}
    level = [start]
    for _ in range(limit):
        following: list[int] = []
        for portion in level:
            for block in blocks[portion]:
                if block.following == start:
                    way = [block]
                    while way[-1].portion != start:
                        way.append(came[way[-1].portion])
                    return way[::-1]
                if block.following in alive and block.following not in came:
                    came[block.following] = block
                    following.append(block.following)
        level = following
        if not level:
            break
    return []


def _end(mail: Mail, plan: Plan, block: Block) -> int:
    """Return the end of a portion whose other end is in the one that it needs."""
    for end in plan.ends[block.portion]:
        partner = mail.partner[end]
        if (NONE if partner == NOBODY else plan.portion[partner]) == block.needed:
            return end
    return plan.ends[block.portion][0]


def _end_text(mail: Mail, plan: Plan, block: Block) -> str:
    return str(mail.action(_end(mail, plan, block)))


def _step(mail: Mail, plan: Plan, transport: Transport, block: Block) -> str:
    end = _end(mail, plan, block)
    device, position = mail.where(end)
    partner = mail.partner[end]
    other, there = mail.where(partner)
    stands = transport in (Transport.BUFFERED, Transport.RENDEZVOUS)
    text = (
        f"device {device} {'stands at' if stands else 'has open'} {mail.action(end)} "
        f"(position {position}) and waits for {mail.action(partner)} of device {other} "
        f"(position {there})"
    )
    if stands:
        return text
    if block.standing == NONE:
        return f"{text}, queued behind {_front_text(mail, plan, block.following)}"
    awaited = _front_text(mail, plan, block.standing)
    return f"{text}, which is posted only after {awaited} is done"


def _front_text(mail: Mail, plan: Plan, portion: int) -> str:
    device, position = mail.where(plan.ends[portion][0])
    return f"{mail.reading.rows[device][position]} (position {position})"
