"""Rules peer, direction, group, matched, order, produced and received: what messages must be."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from bubbleproof.verify.mail import Mail, Stray
from bubbleproof.verify.naming import named
from bubbleproof.verify.reading import B, F, I
from bubbleproof.verify.report import Violation

PEER = "peer"
DIRECTION = "direction"
GROUP = "group"
MATCHED = "matched"
ORDER = "order"
PRODUCED = "produced"
RECEIVED = "received"


def peer(mail: Mail) -> Iterator[Violation]:
    """A message joins two devices: that of its stage, in whose row it is, and its neighbour's."""
    yield from _strays(mail, PEER)


def direction(mail: Mail) -> Iterator[Violation]:
    """SEND_F and RECV_B need a next stage in the chain, SEND_B and RECV_F one before."""
    yield from _strays(mail, DIRECTION)


def group(mail: Mail) -> Iterator[Violation]:
    """A group holds messages, one or more, and nothing else."""
    for device, position, why in mail.odd_groups:
        step = mail.reading.rows[device][position]
        yield Violation(
            GROUP, f"device {device} cannot post {step}: {why}", device, position, (str(step),)
        )


def matched(mail: Mail) -> Iterator[Violation]:
    """What one stage makes for another on another device is sent once and received once."""
    yield from _copies(mail)
    yield from _one_ended(mail, mail.sends, mail.receives, send=True)
    yield from _one_ended(mail, mail.receives, mail.sends, send=False)
    yield from _missing(mail)


def order(mail: Mail) -> Iterator[Violation]:
    """From one device to another the k-th send is the k-th receive, F and B counted together.

    No message carries a name: a receive takes what comes next. Messages without two ends and
    copies, which rule matched reports, are left out of the count.
    """
    code = mail.code
    copies = set(mail.copies)
    for channel, (source, target) in enumerate(mail.channels):
        sent, received = mail.sent[channel], mail.received[channel]
        if [code[end] for end in sent] == [code[end] for end in received]:
            continue
        sent = [e for e in sent if code[e] in mail.receives and e not in copies]
        received = [e for e in received if code[e] in mail.sends and e not in copies]
        for number, (one, other) in enumerate(zip(sent, received, strict=True)):
            if code[one] != code[other]:
                _, at = mail.where(one)
                _, position = mail.where(other)
                yield Violation(
                    ORDER,
                    f"from device {source} to device {target}, send {number} is "
                    f"{mail.action(one)} (position {at}) and receive {number} is "
                    f"{mail.action(other)} (position {position}): the receive takes the wrong "
                    "data without an error; both lists need one order, counted from 0",
                    target,
                    position,
                    (str(mail.action(one)), str(mail.action(other))),
                )
                break


def produced(mail: Mail) -> Iterator[Violation]:
    """A message is sent after the op that makes what it carries, in the row of both."""
    yield from _misplaced(mail, mail.sends, send=True)


def received(mail: Mail) -> Iterator[Violation]:
    """A message is received before the op that uses what it carries, in the row of both."""
    yield from _misplaced(mail, mail.receives, send=False)


def _strays(mail: Mail, rule: str) -> Iterator[Violation]:
    """Yield the strays of one rule, those of one row with the same cause as one."""
    alike: defaultdict[tuple[int, str], list[Stray]] = defaultdict(list)
    for stray in mail.strays:
        if stray.rule == rule:
            alike[stray.device, stray.why].append(stray)
    for (device, why), found in alike.items():
        first = found[0]
        yield Violation(
            rule,
            f"device {device} has {first.action}{_more(len(found))}: {why}",
            device,
            first.position,
            named(stray.action for stray in found),
        )


def _copies(mail: Mail) -> Iterator[Violation]:
    for (device, _), ends in _by_link(mail, mail.copies).items():
        first = ends[0]
        action = mail.action(first)
        earlier = (mail.sends if mail.is_send[first] else mail.receives)[mail.code[first]]
        _, at = mail.where(earlier)
        yield Violation(
            MATCHED,
            f"device {device} has {action} again{_more(len(ends))}: it is already at position "
            f"{at}; each message is sent once and received once",
            device,
            mail.where(first)[1],
            named(map(mail.action, ends)),
        )


def _one_ended(
    mail: Mail, these: dict[int, int], others: dict[int, int], *, send: bool
) -> Iterator[Violation]:
    """Yield the messages that have one kind of end and not the other."""
    if these.keys() == others.keys():
        return
    alone = [end for code, end in these.items() if code not in others]
    for (device, _), ends in _by_link(mail, alone).items():
        first = ends[0]
        link = mail.links[mail.code[first] // mail.reading.microbatches]
        source, target = mail.channels[link.channel]
        does, lacks = ("sends", "receives") if send else ("receives", "sends")
        other = mail.action_of(mail.code[first], send=not send)
        yield Violation(
            MATCHED,
            f"device {device} {does} {mail.action(first)}{_more(len(ends))}, but device "
            f"{target if send else source} never {lacks} it; it needs {other}",
            device,
            mail.where(first)[1],
            named(map(mail.action, ends)),
        )


def _missing(mail: Mail) -> Iterator[Violation]:
    """Yield the messages without any end, of which both the maker and the user are there."""
    reading, n = mail.reading, mail.reading.microbatches
    counts = Counter(code // n for code in mail.sends)
    short = {
        number
        for number, link in enumerate(mail.links)
        if counts[number] < len(reading.window[link.source])
    }
    if not short:
        return
    # From the ops that are there, since a problem may have far more microbatches than the rows.
    there: defaultdict[int, list[int]] = defaultdict(list)
    for op in reading.place:
        there[op // n].append(op % n)
    for number in sorted(short):
        link = mail.links[number]
        users = [4 * link.target + kind for kind in ((F,) if link.forward else (I, B))]
        numbers = sorted({m for group in users for m in there[group]})
        codes = [number * n + m for m in numbers]
        lost = [
            code
            for code in codes
            if code not in mail.sends
            and code not in mail.receives
            and mail.step_of_op(mail.makers(code)) is not None
        ]
        if not lost:
            continue
        source, target = mail.channels[link.channel]
        ends = [mail.action_of(code, send=send) for code in lost for send in (True, False)]
        yield Violation(
            MATCHED,
            f"device {source} never sends {ends[0]}{_more(len(lost))}, and device {target} never "
            f"receives {ends[1]}: stages {link.source} and {link.target} are on two devices",
            source,
            None,
            named(ends),
        )


def _misplaced(mail: Mail, ends: dict[int, int], *, send: bool) -> Iterator[Violation]:
    """Yield the sends before the op that makes their data, or the receives after its user."""
    reading, n, find = mail.reading, mail.reading.microbatches, mail.reading.place.get
    bases = [
        tuple(
            (4 * (link.source if send else link.target) + kind) * n - number * n
            for kind in ((F, F) if link.forward else (I, B))
        )
        for number, link in enumerate(mail.links)
    ]
    steps = mail.step
    wrong: list[int] = []
    for code, end in ends.items():
        one, other = bases[code // n]
        op = find(code + one)
        if op is None:
            op = find(code + other)
        # An op in another row is out of place, which rule placement reports.
        if op is not None and (op > steps[end]) == send and op != steps[end]:
            wrong.append(end)
    for (device, _), found in _by_link(mail, wrong).items():
        first, stop = reading.offsets[device], reading.offsets[device + 1]
        here: list[tuple[int, int]] = []
        for end in found:
            code = mail.code[end]
            step = mail.step_of_op(mail.makers(code) if send else mail.users(code))
            if step is not None and first <= step < stop:
                here.append((end, step))
        if here:
            yield _misplacement(mail, device, here, send=send)


def _misplacement(
    mail: Mail, device: int, found: Sequence[tuple[int, int]], *, send: bool
) -> Violation:
    end, step = found[0]
    action, op = mail.action(end), mail.reading.block(step)
    at, place = mail.where(end)[1], mail.reading.where(step)[1]
    more = _more(len(found))
    ends = named(mail.action(each) for each, _ in found)
    if send:
        return Violation(
            PRODUCED,
            f"device {device} sends {action}{more} before {op} (position {place}) has made what it "
            "carries; a send follows its op",
            device,
            at,
            (*ends[:1], str(op), *ends[1:]),
        )
    return Violation(
        RECEIVED,
        f"device {device} runs {op}{more} before its input arrives with {action} (position {at}); "
        "a receive comes before its op",
        device,
        place,
        (str(op), *ends),
    )


def _by_link(mail: Mail, ends: Sequence[int]) -> dict[tuple[int, int], list[int]]:
    """Return ends by device and link, and by what they are."""
    groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    n = mail.reading.microbatches
    for end in ends:
        groups[mail.where(end)[0], mail.code[end] // n].append(end)
    return groups


def _more(number: int) -> str:
    return f" and {number - 1} more" if number > 1 else ""
