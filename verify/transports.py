"""Four ways in which messages may move, and whether a program ends under each.

SPEC.md has the definitions. Each is brought to the same terms here: a device walks its row and
meets posts and waits; what it posts, a **portion** of an entry, stands in a queue; the portion at
the front of its queue is open once it is posted; an open portion is done when the portions that it
needs are open too. Whether all ends does not depend on how long anything takes, since nothing that
can go on is ever stopped by another that goes on first.
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from bubbleproof.schedules.ops import Op, OpKind, Pair
from bubbleproof.verify.mail import NOBODY, RECV_B, RECV_F, Mail


class Transport(StrEnum):
    """How messages move."""

    BUFFERED = "buffered"
    RENDEZVOUS = "rendezvous"
    PAIR_FIFO = "pair-fifo"
    RANK_FIFO = "rank-fifo"


ALL = tuple(Transport)
NONE = -1


@dataclass(frozen=True, slots=True)
class Plan:
    """A program in the terms of one transport.

    Parameters
    ----------
    rows
        For each device, in order, p for posting portion p and ~p for standing until it is done,
        and posting it before where it is not posted yet.
    ends
        For each portion its ends.
    portion
        For each end its portion.
    device
        For each portion the device that posts it.
    partner
        For each end its partner; NOBODY where it has none.
    waits
        For each end whether it needs its partner's portion to be open before its own is done.
    behind
        For each portion the next in its queue; NONE where there is none.
    """

    rows: list[list[int]]
    ends: list[tuple[int, ...]]
    portion: list[int]
    device: list[int]
    partner: list[int]
    waits: bytearray
    behind: list[int]


@dataclass(frozen=True, slots=True)
class Standstill:
    """What is left where a program does not end.

    Parameters
    ----------
    heads
        For each device its place in the plan's row; the row's length where the device is done.
    posted, is_open, is_done
        For each portion whether it is.
    """

    heads: list[int]
    posted: bytearray
    is_open: bytearray
    is_done: bytearray


def plan_of(mail: Mail, transport: Transport) -> Plan:
    """Return a program in the terms of a transport."""
    by_peer = transport is Transport.PAIR_FIFO
    ends: list[tuple[int, ...]] = []
    device_of: list[int] = []
    posts: list[range] = []
    for device, entries in enumerate(mail.entries):
        first = len(ends)
        if by_peer:
            for entry in entries:
                ends += _by_peer(mail, entry)
        else:
            ends += entries
        posts.append(range(first, len(ends)))
        device_of += [device] * (len(ends) - first)
    portion = [NONE] * len(mail.code)
    for p, each in enumerate(ends):
        for end in each:
            portion[end] = p
    behind = [NONE] * len(ends)
    match transport:
        case Transport.BUFFERED | Transport.RENDEZVOUS:
            rows = [[~p for p in own] for own in posts]
        case Transport.PAIR_FIFO | Transport.RANK_FIFO:
            queues: dict[tuple[int, int], list[int]] = {}
            for p, device in enumerate(device_of):
                peer = _peer(mail, ends[p][0]) if by_peer else NONE
                queues.setdefault((device, peer), []).append(p)
            for queue in queues.values():
                for one, other in pairwise(queue):
                    behind[one] = other
            last: list[list[int]] = [[] for _ in posts]
            for (device, _), queue in queues.items():
                last[device].append(~queue[-1])
            rows = [
                _walk(mail, device, own, ends, portion) + last[device]
                for device, own in enumerate(posts)
            ]
    buffered = transport is Transport.BUFFERED
    waits = bytearray(not (buffered and send) for send in mail.is_send)
    return Plan(rows, ends, portion, device_of, mail.partner, waits, behind)


def run(plan: Plan) -> Standstill | None:
    """Run a plan as far as it goes; None where everything is done at the end."""
    rows, ends, behind, device_of = plan.rows, plan.ends, plan.behind, plan.device
    waits, portion_of = plan.waits, plan.portion
    # For each end the portion that waits for its own to be open.
    taker_of = [
        NONE if partner == NOBODY or not waits[partner] else portion_of[partner]
        for partner in plan.partner
    ]
    count = len(ends)
    lacking = list(map(len, ends))
    for end, waiting in enumerate(waits):
        if not waiting:
            lacking[portion_of[end]] -= 1
    posted, is_open, is_done = bytearray(count), bytearray(count), bytearray(count)
    is_front, is_awaited = bytearray(b"\1") * count, bytearray(count)
    for portion in behind:
        if portion != NONE:
            is_front[portion] = 0
    heads = [0] * len(rows)
    ready = list(range(len(rows)))
    opening: list[int] = []
    while ready:
        device = ready.pop()
        row, head = rows[device], heads[device]
        stop = len(row)
        while head < stop:
            item = row[head]
            reached = item if item >= 0 else ~item
            if not posted[reached]:
                posted[reached] = 1
                if is_front[reached]:
                    opening.append(reached)
            while opening:
                portion = opening.pop()
                is_open[portion] = 1
                finished = [] if lacking[portion] else [portion]
                for end in ends[portion]:
                    taker = taker_of[end]
                    if taker != NONE:
                        left = lacking[taker] = lacking[taker] - 1
                        if not left and is_open[taker]:
                            finished.append(taker)
                for each in finished:
                    is_done[each] = 1
                    if is_awaited[each]:
                        ready.append(device_of[each])
                    following = behind[each]
                    if following != NONE:
                        is_front[following] = 1
                        if posted[following]:
                            opening.append(following)
            if item < 0 and not is_done[reached]:
                is_awaited[reached] = 1
                break
            head += 1
        heads[device] = head
    if all(is_done):
        return None
    return Standstill(heads, posted, is_open, is_done)


def _peer(mail: Mail, end: int) -> int:
    """Return the device at the other side of an end's channel."""
    link = mail.links[mail.code[end] // mail.reading.microbatches]
    source, target = mail.channels[link.channel]
    return target if mail.is_send[end] else source


def _by_peer(mail: Mail, entry: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the ends of an entry for each device that they concern."""
    if len(entry) == 1:
        return [entry]
    groups: dict[int, tuple[int, ...]] = {}
    for end in entry:
        peer = _peer(mail, end)
        groups[peer] = (*groups.get(peer, ()), end)
    return list(groups.values())


def _walk(
    mail: Mail, device: int, posts: range, ends: list[tuple[int, ...]], portion: list[int]
) -> list[int]:
    """Return a device's row where posts do not block and ops wait for their inputs.

    An op waits for the first receive of its input, if that is ahead of it in its row.
    """
    reading, link_of, n = mail.reading, mail.link_of, mail.reading.microbatches
    walk: list[int] = []
    upcoming = iter(posts)
    following = next(upcoming, None)
    step = reading.offsets[device]
    first = step
    for each in reading.rows[device]:
        if isinstance(each, Op | Pair):
            for op in (each,) if isinstance(each, Op) else (each.forward, each.backward):
                if op.kind is OpKind.BACKWARD_WEIGHT or not 0 <= op.stage < reading.stages:
                    continue
                kind = RECV_F if op.kind is OpKind.FORWARD else RECV_B
                link = link_of[4 * op.stage + kind]
                if link < 0 or not 0 <= op.microbatch < n:
                    continue
                end = mail.receives.get(link * n + op.microbatch)
                if end is not None and first <= mail.step[end] < step:
                    walk.append(~portion[end])
        else:
            while following is not None and mail.step[ends[following][0]] == step:
                walk.append(following)
                following = next(upcoming, None)
        step += 1
    return walk
