"""Four transports in their simplest form: what they let happen, until nothing more can.

Written from the definitions (FIFO per pair of devices, no tags) and the data types alone.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from bubbleproof.schedules.ops import Block, Op, OpKind, Pair
from bubbleproof.schedules.program import Action, ActionKind, Group, Program

Transport: TypeAlias = Literal["buffered", "rendezvous", "pair-fifo", "rank-fifo"]
TRANSPORTS: tuple[Transport, ...] = ("buffered", "rendezvous", "pair-fifo", "rank-fifo")

Data: TypeAlias = tuple[str, int, int]
"""What a message carries: F or B, the stage that uses it, the microbatch."""

SENDS = (ActionKind.SEND_F, ActionKind.SEND_B)


@dataclass(frozen=True, slots=True)
class End:
    """One end of a message on its device."""

    device: int
    peer: int
    is_send: bool
    data: Data


@dataclass(slots=True)
class Batch:
    """What a device posts in one go."""

    ends: list[End]
    open: list[End] = field(init=False)

    def __post_init__(self) -> None:
        self.open = list(self.ends)


class Model:
    """Devices that run a program as far as a transport lets them.

    Attributes
    ----------
    faults
        What went wrong; empty where all devices came to their end with the right data.
    """

    def __init__(self, program: Program, transport: Transport) -> None:
        self.program, self.transport = program, transport
        self.faults: list[str] = []
        devices = len(program.rows)
        self.place = [0] * devices
        self.current: list[Batch | None] = [None] * devices
        self.queues: defaultdict[tuple[int, int], deque[Batch]] = defaultdict(deque)
        self.flying: defaultdict[tuple[int, int], deque[Data]] = defaultdict(deque)
        self.there: list[set[Data]] = [set() for _ in range(devices)]
        self.made: list[set[Data]] = [set() for _ in range(devices)]
        self.computed: list[set[tuple[int, str, int]]] = [set() for _ in range(devices)]
        while not self.faults and any(self._step(device) for device in range(devices)):
            pass
        for device, row in enumerate(program.rows):
            if self.place[device] < len(row):
                self.faults.append(f"device {device} hangs at {row[self.place[device]]}")
        self.faults += [f"open: {key}" for key, queue in self.queues.items() if queue]
        self.faults += [f"not received: {data}" for data in self.flying.values() if data]

    def _step(self, device: int) -> bool:
        """Let a device do one thing, or one of its queues; return whether anything happened."""
        happened = self._serve(device)
        row = self.program.rows[device]
        if self.place[device] == len(row):
            return happened
        step = row[self.place[device]]
        if isinstance(step, Op | Pair):
            return self._compute(device, step) or happened
        if isinstance(step, Action) and not step.kind.is_message:
            self.place[device] += 1
            return True
        messages = step.messages if isinstance(step, Group) else (step,)
        return self._post(device, [self._end(device, message) for message in messages]) or happened

    def _post(self, device: int, ends: list[End]) -> bool:
        for end in ends:
            if end.is_send and end.data not in self.made[device]:
                self.faults.append(f"device {device} sends {end.data} before it is made")
                return False
        if self.transport == "pair-fifo":
            for peer in dict.fromkeys(end.peer for end in ends):
                batch = Batch([end for end in ends if end.peer == peer])
                self.queues[device, peer].append(batch)
            self.place[device] += 1
            return True
        if self.transport == "rank-fifo":
            self.queues[device, -1].append(Batch(ends))
            self.place[device] += 1
            return True
        batch = self.current[device]
        if batch is None:
            self.current[device] = batch = Batch(ends)
            return True
        if batch.open:
            return False
        self.current[device] = None
        self.place[device] += 1
        return True

    def _serve(self, device: int) -> bool:
        """Complete what can be completed of the batches that a device has at the front."""
        happened = False
        for batch in self._fronts(device):
            for end in list(batch.open):
                happened |= self._complete(batch, end)
        for key, queue in self.queues.items():
            if key[0] == device and queue and not queue[0].open:
                queue.popleft()
                happened = True
        return happened

    def _fronts(self, device: int) -> list[Batch]:
        if self.transport in ("buffered", "rendezvous"):
            batch = self.current[device]
            return [] if batch is None else [batch]
        return [queue[0] for key, queue in self.queues.items() if key[0] == device and queue]

    def _complete(self, batch: Batch, end: End) -> bool:
        first = next(e for e in batch.open if (e.peer, e.is_send) == (end.peer, end.is_send))
        if first is not end:
            return False
        if self.transport == "buffered":
            if end.is_send:
                self.flying[end.device, end.peer].append(end.data)
            elif not self.flying[end.peer, end.device]:
                return False
            else:
                self._arrive(end, self.flying[end.peer, end.device].popleft())
            batch.open.remove(end)
            return True
        for other in self._fronts(end.peer):
            for partner in other.open:
                if partner.peer == end.device and partner.is_send != end.is_send:
                    send, receive = (end, partner) if end.is_send else (partner, end)
                    self._arrive(receive, send.data)
                    batch.open.remove(end)
                    other.open.remove(partner)
                    return True
        return False

    def _arrive(self, end: End, data: Data) -> None:
        if data != end.data:
            self.faults.append(f"device {end.device} takes {data} for {end.data}")
        self.there[end.device].add(data)

    def _compute(self, device: int, block: Block) -> bool:
        ops = (block.forward, block.backward) if isinstance(block, Pair) else (block,)
        placement = self.program.problem.placement
        for op in ops:
            key, m = op.stage, op.microbatch
            if op.kind is OpKind.BACKWARD_WEIGHT:
                if (key, "B", m) not in self.computed[device]:
                    return False
                continue
            forward = op.kind is OpKind.FORWARD
            if not forward and (key, "F", m) not in self.computed[device]:
                return False
            source = (placement.previous if forward else placement.following)[key]
            if source is None:
                continue
            data: Data = ("F" if forward else "B", key, m)
            local = placement.device_of_stage[source] == device
            if data not in (self.made if local else self.there)[device]:
                return False
        for op in ops:
            if op.kind is OpKind.BACKWARD_WEIGHT:
                continue
            forward = op.kind is OpKind.FORWARD
            kind = "F" if forward else "B"
            self.computed[device].add((op.stage, kind, op.microbatch))
            target = (placement.following if forward else placement.previous)[op.stage]
            if target is not None:
                self.made[device].add((kind, target, op.microbatch))
        self.place[device] += 1
        return True

    def _end(self, device: int, action: Action) -> End:
        placement = self.program.problem.placement
        forward = action.kind in (ActionKind.SEND_F, ActionKind.RECV_F)
        is_send = action.kind in SENDS
        links = placement.following if forward == is_send else placement.previous
        other = links[action.stage]
        if other is None or action.microbatch is None:
            raise AssertionError(f"{action} has nowhere to go")
        user = other if is_send else action.stage
        return End(
            device,
            placement.device_of_stage[other],
            is_send,
            ("F" if forward else "B", user, action.microbatch),
        )


def faults(program: Program) -> dict[str, list[str]]:
    """Return what goes wrong under each transport, leaving out those where nothing does."""
    found = {transport: Model(program, transport).faults for transport in TRANSPORTS}
    return {transport: each for transport, each in found.items() if each}
