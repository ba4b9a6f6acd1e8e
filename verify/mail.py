"""A program's messages as plain numbers, read once for their rules and the transports.

A **link** is one direction of data between two neighbours of a chain on different devices: the
activations of F from a stage to the next, or the gradients of I and B to the one before. A message
is a whole number, its code: ``link x n + microbatch``. Each SEND and each RECV is an **end** of a
message; ends are counted through all rows. A **channel** is an ordered pair of devices: its k-th
send is received by its k-th receive, whatever they are called. An **entry** is what a device posts
in one step: one end, or those of a group.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from bubbleproof.schedules.program import Action, ActionKind, Group
from bubbleproof.verify.naming import microbatches_text
from bubbleproof.verify.reading import B, F, I, Reading

KINDS = (ActionKind.SEND_F, ActionKind.RECV_F, ActionKind.SEND_B, ActionKind.RECV_B)
SEND_F, RECV_F, SEND_B, RECV_B = range(4)
NUMBER_OF = {kind: number for number, kind in enumerate(KINDS)}

Desk: TypeAlias = tuple[int, range, list[int], dict[int, int], bool]
"""Where a device posts one kind of message of one stage.

The code of microbatch 0, the microbatches that pass, the ends of the channel on this side, the
first end of each code, and whether it is a SEND.
"""

NO_NEIGHBOUR, SAME_DEVICE = -1, -2
"""What stands for a link where there is none."""

NOBODY = -1
"""The partner of an end that has none."""


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two neighbours of a chain.

    Parameters
    ----------
    source, target
        The stages.
    forward
        Whether activations pass, not gradients.
    channel
        The channel of their devices.
    """

    source: int
    target: int
    forward: bool
    channel: int


@dataclass(frozen=True, slots=True)
class Stray:
    """An end that is no end of any message, and why."""

    rule: str
    device: int
    position: int
    action: Action
    why: str


@dataclass(frozen=True, slots=True)
class Mail:
    """The messages of a program.

    Parameters
    ----------
    reading
        The program; its blocks count all steps.
    links, link_of
        All links; for ``4 x stage + kind`` of an action its link, or why there is none.
    neighbour
        For the same the stage at the other end; -1 where there is none.
    channels
        For each channel the devices that send and receive.
    code, step, is_send
        For each end its message's code, its step, and which end it is.
    partner
        For each end the one at its place in the channel's other list.
    sent, received
        For each channel its ends in the order in which they are posted.
    sends, receives
        For each code its first end of either kind.
    copies
        The ends whose message has one of the same kind before.
    entries
        For each device the ends of each of its entries.
    strays
        Ends that do not count.
    odd_groups
        Device, position and fault of groups that are not made of messages.
    """

    reading: Reading
    links: tuple[Link, ...]
    link_of: tuple[int, ...]
    neighbour: tuple[int, ...]
    channels: tuple[tuple[int, int], ...]
    code: list[int] = field(default_factory=list[int])
    step: list[int] = field(default_factory=list[int])
    is_send: list[bool] = field(default_factory=list[bool])
    partner: list[int] = field(default_factory=list[int])
    sent: list[list[int]] = field(default_factory=list[list[int]])
    received: list[list[int]] = field(default_factory=list[list[int]])
    sends: dict[int, int] = field(default_factory=dict[int, int])
    receives: dict[int, int] = field(default_factory=dict[int, int])
    copies: list[int] = field(default_factory=list[int])
    entries: list[list[tuple[int, ...]]] = field(default_factory=list[list[tuple[int, ...]]])
    strays: list[Stray] = field(default_factory=list[Stray])
    odd_groups: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])

    def action(self, end: int) -> Action:
        """Return the action that an end is."""
        return self.action_of(self.code[end], send=self.is_send[end])

    def action_of(self, code: int, *, send: bool) -> Action:
        """Return the SEND or the RECV of a message."""
        number, microbatch = divmod(code, self.reading.microbatches)
        link = self.links[number]
        kind = KINDS[(SEND_F if link.forward else SEND_B) + (not send)]
        return Action(link.source if send else link.target, kind, microbatch)

    def where(self, end: int) -> tuple[int, int]:
        """Return the device and the position of an end."""
        return self.reading.where(self.step[end])

    def makers(self, code: int) -> tuple[int, ...]:
        """Return the codes of the ops of which one makes what a message carries."""
        number, microbatch = divmod(code, self.reading.microbatches)
        link = self.links[number]
        kinds = (F,) if link.forward else (I, B)
        return tuple(self.reading.code(link.source, kind, microbatch) for kind in kinds)

    def users(self, code: int) -> tuple[int, ...]:
        """Return the codes of the ops of which one uses what a message carries."""
        number, microbatch = divmod(code, self.reading.microbatches)
        link = self.links[number]
        kinds = (F,) if link.forward else (I, B)
        return tuple(self.reading.code(link.target, kind, microbatch) for kind in kinds)

    def step_of_op(self, codes: tuple[int, ...]) -> int | None:
        """Return the step of the first of these ops that is there; None where none is."""
        place = self.reading.place
        return next((place[code] for code in codes if code in place), None)


def read_mail(reading: Reading) -> Mail:
    """Number the messages of a program and pair their ends."""
    mail = _links(reading)
    mail.sent.extend([] for _ in mail.channels)
    mail.received.extend([] for _ in mail.channels)
    for device in range(len(reading.rows)):
        mail.entries.append(_post(mail, device))
    mail.partner.extend([NOBODY] * len(mail.code))
    partner = mail.partner
    for sent, received in zip(mail.sent, mail.received, strict=True):
        for one, other in zip(sent, received, strict=False):
            partner[one] = other
            partner[other] = one
    return mail


def _links(reading: Reading) -> Mail:
    """Return the mail of a program before any of its messages is read."""
    layout = reading.layout
    link_of = [NO_NEIGHBOUR] * (4 * reading.stages)
    neighbour = [-1] * (4 * reading.stages)
    links: list[Link] = []
    channels: dict[tuple[int, int], int] = {}
    for chain in layout.chains:
        for before, after in pairwise(chain):
            for source, target, forward in ((before, after, True), (after, before, False)):
                devices = layout.device_of_stage[source], layout.device_of_stage[target]
                send = SEND_F if forward else SEND_B
                if devices[0] == devices[1]:
                    number = SAME_DEVICE
                else:
                    number = len(links)
                    channel = channels.setdefault(devices, len(channels))
                    links.append(Link(source, target, forward, channel))
                link_of[4 * source + send] = number
                link_of[4 * target + send + 1] = number
                neighbour[4 * source + send] = target
                neighbour[4 * target + send + 1] = source
    return Mail(reading, tuple(links), tuple(link_of), tuple(neighbour), tuple(channels))


def _post(mail: Mail, device: int) -> list[tuple[int, ...]]:
    """Number the ends of a row and return its entries; what is no end of any message is a stray."""
    reading, code, step, is_send = mail.reading, mail.code, mail.step, mail.is_send
    row, start = reading.rows[device], reading.offsets[device]
    desks = _desks(mail, device)
    entries: list[tuple[int, ...]] = []
    for position in reading.messages[device]:
        each = row[position]
        if isinstance(each, Action):
            messages: tuple[Action, ...] = (each,)
        elif isinstance(each, Group):
            messages = each.messages
        else:
            messages = ()
        first = end = len(code)
        for message in messages:
            kind, microbatch = NUMBER_OF.get(message.kind), message.microbatch
            if kind is None:
                continue
            desk = desks.get(4 * message.stage + kind)
            if desk is None or microbatch is None or microbatch not in desk[1]:
                mail.strays.append(_stray(mail, device, position, message))
                continue
            base, _, queue, firsts, send = desk
            code.append(base + microbatch)
            step.append(start + position)
            is_send.append(send)
            queue.append(end)
            if firsts.setdefault(base + microbatch, end) != end:
                mail.copies.append(end)
            end += 1
        if not 0 < len(messages) == end - first and isinstance(each, Group):
            _check_group(mail, device, position, each)
        if end > first:
            entries.append((first,) if end == first + 1 else tuple(range(first, end)))
    return entries


def _desks(mail: Mail, device: int) -> dict[int, Desk]:
    """Return for each ``4 x stage + kind`` of a device where its messages go."""
    reading = mail.reading
    desks: dict[int, Desk] = {}
    for stage, holder in enumerate(reading.layout.device_of_stage):
        for kind in range(4) if holder == device else ():
            number = mail.link_of[4 * stage + kind]
            if number >= 0:
                send = kind in (SEND_F, SEND_B)
                desks[4 * stage + kind] = (
                    number * reading.microbatches,
                    reading.window[stage],
                    (mail.sent if send else mail.received)[mail.links[number].channel],
                    mail.sends if send else mail.receives,
                    send,
                )
    return desks


def _stray(mail: Mail, device: int, position: int, action: Action) -> Stray:
    reading, stage, kind = mail.reading, action.stage, NUMBER_OF[action.kind]

    def stray(rule: str, why: str) -> Stray:
        return Stray(rule, device, position, action, why)

    if not 0 <= stage < reading.stages:
        return stray("peer", f"there is no stage {stage}; the stages are 0..{reading.stages - 1}")
    window = reading.window[stage]
    if action.microbatch is None or action.microbatch not in window:
        right = microbatches_text(window) if window else "no microbatch"
        return stray("peer", f"stage {stage} takes {right}")
    holder = reading.layout.device_of_stage[stage]
    if device != holder:
        return stray("peer", f"stage {stage} is on device {holder}")
    if mail.link_of[4 * stage + kind] == NO_NEIGHBOUR:
        which = "first" if kind in (RECV_F, SEND_B) else "last"
        what = "to send to" if kind in (SEND_F, SEND_B) else "to receive from"
        return stray(
            "direction", f"stage {stage} is the {which} of its chain and has no stage there {what}"
        )
    other = mail.neighbour[4 * stage + kind]
    return stray(
        "peer",
        f"stages {stage} and {other} are both on device {device}, which hands data on itself",
    )


def _check_group(mail: Mail, device: int, position: int, group: Group) -> None:
    if not group.messages:
        mail.odd_groups.append((device, position, "it has no message; one or more are right"))
        return
    # A group built in Python can hold anything that its type lets through.
    strangers = [str(message) for message in group.messages if not message.kind.is_message]
    if strangers:
        mail.odd_groups.append(
            (device, position, f"{strangers[0]} is no message; a group holds SEND and RECV alone")
        )
