"""A second opinion on programs: devices and message queues as actors that move real data.

Written from the semantics alone. Every device and every queue of messages is an actor of its own;
each goes on after a random delay, so that a run is one of many possible ones. Each activation is
the microbatch and the layers that made it, each gradient those and the layers that it came back
through: what arrives shows which message really came. Reads the data types and nothing else of
the package.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import TypeAlias

from bubbleproof.schedules.ops import Op, OpKind, Pair
from bubbleproof.schedules.program import Action, ActionKind, Group, Program, Step

TRANSPORTS = ("buffered", "rendezvous", "pair-fifo", "rank-fifo")

Token: TypeAlias = tuple[int, tuple[int, ...]]
"""A piece of data: its microbatch and the layers that it has passed, in order."""

Label: TypeAlias = tuple[str, int, int]
"""What a device keeps data under: activation or gradient, the stage it is for, its microbatch."""


@dataclass(slots=True, eq=False)
class Event:
    """Something that happens once; actors wait for it."""

    happened: bool = False
    waiting: list["Actor"] = field(default_factory=list["Actor"])


Actor: TypeAlias = Generator["Event | None", None, None]
"""Yields an event to wait for, or None to let time pass."""


@dataclass(slots=True, eq=False)
class End:
    """One end of a message, as it was posted."""

    action: Action
    peer: int
    token: Token | None = None
    complete: Event = field(default_factory=Event)

    @property
    def sends(self) -> bool:
        """Whether it is a SEND."""
        return self.action.kind in (ActionKind.SEND_F, ActionKind.SEND_B)


@dataclass(slots=True, eq=False)
class Batch:
    """Ends that a device opens at once."""

    ends: list[End]
    done: Event = field(default_factory=Event)


@dataclass(slots=True)
class Device:
    """One device: its row, what it keeps, and the queues that carry its messages."""

    number: int
    row: tuple[Step, ...]
    held: int = 0
    peak: int = 0
    ended: bool = False
    standing: str = ""
    mail: dict[Label, Token] = field(default_factory=dict[Label, Token])
    outgoing: dict[Label, Token] = field(default_factory=dict[Label, Token])
    saved: dict[tuple[int, int], Token] = field(default_factory=dict[tuple[int, int], Token])
    unweighted: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    batches: list[Batch] = field(default_factory=list[Batch])
    queues: dict[int, deque[Batch]] = field(default_factory=dict[int, deque[Batch]])
    wake: dict[int, Event] = field(default_factory=dict[int, Event])
    receives: dict[tuple[ActionKind, int, int], Batch] = field(
        default_factory=dict[tuple[ActionKind, int, int], Batch]
    )


class ProgramExecution:
    """Run a program under one transport, with random delays.

    Attributes
    ----------
    faults
        What went wrong, in words; empty where the run ended and computed what it should.
    hung
        Whether it did not come to its end.
    peaks
        For each device the most memory that it held, in grains, static part included.
    standing
        For each device the step at which it stands, or ``its end``.
    waits
        For each device that stands at messages, those that it waits for.
    """

    def __init__(self, program: Program, transport: str, seed: int = 0) -> None:
        self.problem = program.problem
        self.transport = transport
        self.faults: list[str] = []
        self.hung = False
        self._random = Random(seed)
        self._agenda: list[tuple[float, int, Actor]] = []
        self._clock, self._serial = 0.0, 0
        self._forwards: Counter[tuple[int, int]] = Counter()
        self._weights: Counter[tuple[int, int]] = Counter()
        self._delivered: set[Label] = set()
        self._opened: defaultdict[tuple[int, int, bool], list[End]] = defaultdict(list)
        self._next: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._numbers: dict[int, range] = {}
        first = 0
        placement = self.problem.placement
        for chain, count in zip(placement.chains, self.problem.microbatches, strict=True):
            self._next.update(pairwise(chain))
            self._before.update((after, before) for before, after in pairwise(chain))
            self._numbers.update(dict.fromkeys(chain, range(first, first + count)))
            first += count
        self._devices = [Device(number, row) for number, row in enumerate(program.rows)]
        actions = [step for row in program.rows for step in row if isinstance(step, Action)]
        kinds = {action.kind for action in actions}
        self._sharding = bool(kinds & {ActionKind.UNSHARD, ActionKind.RESHARD})
        self._whole: set[int] = set()
        self._reduced: Counter[int] = Counter()
        self._sums: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self._run()
        self._judge(reducing=ActionKind.REDUCE_GRAD in kinds)
        self.peaks = tuple(device.peak for device in self._devices)
        self.standing = tuple(device.standing for device in self._devices)
        self.waits = {
            device.number: {
                end.peer
                for batch in device.batches
                for end in batch.ends
                if not batch.done.happened and not end.complete.happened
            }
            for device in self._devices
            if not device.ended
        }

    def _run(self) -> None:
        placement, memory = self.problem.placement, self.problem.memory
        if len(self._devices) != self.problem.devices:
            self.faults.append("rows and devices differ in number")
        for stage, device in enumerate(placement.device_of_stage):
            if device < len(self._devices):
                self._devices[device].held += memory.static[stage]
        for device in self._devices:
            device.peak = device.held
            self._go_on(self._walk(device))
        while self._agenda:
            self._clock, _, actor = heapq.heappop(self._agenda)
            event = next(actor, END)
            if event is END:
                continue
            if event is None or event.happened:
                self._go_on(actor)
            else:
                event.waiting.append(actor)

    def _go_on(self, actor: Actor) -> None:
        """Let an actor continue after a random delay."""
        self._serial += 1
        delay = self._random.choice((0.0, self._random.random(), 5 * self._random.random()))
        heapq.heappush(self._agenda, (self._clock + delay, self._serial, actor))

    def _happen(self, event: Event) -> None:
        event.happened = True
        waiting, event.waiting = event.waiting, []
        for actor in waiting:
            self._go_on(actor)

    def _walk(self, device: Device) -> Actor:
        """Do a device's steps one after the other."""
        blocking = self.transport in ("buffered", "rendezvous")
        for position, step in enumerate(device.row):
            device.standing = f"{step} (position {position})"
            if isinstance(step, Group) or (isinstance(step, Action) and step.kind.is_message):
                messages = step.messages if isinstance(step, Group) else (step,)
                ends = [end for each in messages for end in self._end(device, each)]
                for batch in self._batches(ends):
                    device.batches.append(batch)
                    for end in batch.ends:
                        if not end.sends:
                            label = end.action.kind, end.action.stage, end.action.microbatch or 0
                            device.receives.setdefault(label, batch)
                    if blocking:
                        self._open(device, batch)
                        yield batch.done
                    else:
                        self._enqueue(device, batch)
                if isinstance(step, Group) and not step.messages:
                    self.faults.append(f"device {device.number} posts nothing")
            elif isinstance(step, Action):
                self._weight_step(device, step)
            else:
                yield from self._block(device, step)
        device.standing = "its end"
        for batch in device.batches:
            yield batch.done
        device.ended = True

    def _end(self, device: Device, action: Action) -> Iterator[End]:
        """Yield the end that an action posts; a fault where there is no other device."""
        stage, microbatch = action.stage, action.microbatch
        forth = action.kind in (ActionKind.SEND_F, ActionKind.RECV_B)
        other = (self._next if forth else self._before).get(stage)
        placement = self.problem.placement
        sane = (
            other is not None
            and microbatch is not None
            and microbatch in self._numbers[stage]
            and placement.device_of_stage[stage] == device.number
            and placement.device_of_stage[other] != device.number
        )
        if not sane or other is None or microbatch is None:
            self.faults.append(f"device {device.number} has nobody for {action}")
            return
        end = End(action, placement.device_of_stage[other])
        if end.sends:
            what = "activation" if action.kind is ActionKind.SEND_F else "gradient"
            end.token = device.outgoing.get((what, other, microbatch))
            if end.token is None:
                self.faults.append(f"device {device.number} sends {action} before it is made")
        yield end

    def _batches(self, ends: list[End]) -> Iterator[Batch]:
        """Divide what is posted together by what carries it."""
        if self.transport != "pair-fifo":
            if ends:
                yield Batch(ends)
            return
        by_peer: dict[int, list[End]] = {}
        for end in ends:
            by_peer.setdefault(end.peer, []).append(end)
        for each in by_peer.values():
            yield Batch(each)

    def _enqueue(self, device: Device, batch: Batch) -> None:
        """Hand a batch to its queue, an actor that is there from the first batch on."""
        key = batch.ends[0].peer if self.transport == "pair-fifo" else 0
        if key not in device.queues:
            device.queues[key] = deque()
            self._go_on(self._carry(device, key))
        device.queues[key].append(batch)
        wake = device.wake.pop(key, None)
        if wake is not None:
            self._happen(wake)

    def _carry(self, device: Device, key: int) -> Actor:
        """Open one batch after the other, each when the one before it is done."""
        queue = device.queues[key]
        while True:
            if not queue:
                yield device.wake.setdefault(key, Event())
                continue
            batch = queue.popleft()
            self._open(device, batch)
            yield batch.done

    def _open(self, device: Device, batch: Batch) -> None:
        """Show the ends of a batch to their peers; the k-th of both sides meet."""
        for end in batch.ends:
            source, target = (device.number, end.peer) if end.sends else (end.peer, device.number)
            own = self._opened[source, target, end.sends]
            others = self._opened[source, target, not end.sends]
            if len(own) < len(others):
                other = others[len(own)]
                send, receive = (end, other) if end.sends else (other, end)
                self._go_on(self._transfer(send, receive))
            own.append(end)
        self._go_on(self._finish(device, batch))

    def _transfer(self, send: End, receive: End) -> Actor:
        receive.token = send.token
        yield None
        self._happen(send.complete)
        self._happen(receive.complete)

    def _finish(self, device: Device, batch: Batch) -> Actor:
        """Wait for a batch's messages and put what came where the device looks for it."""
        for end in batch.ends:
            if self.transport != "buffered" or not end.sends:
                yield end.complete
        for end in batch.ends:
            if end.sends:
                continue
            what = "activation" if end.action.kind is ActionKind.RECV_F else "gradient"
            label = what, end.action.stage, end.action.microbatch or 0
            if label in self._delivered:
                self.faults.append(f"device {device.number} gets {end.action} twice")
            self._delivered.add(label)
            if end.token is not None:
                device.mail[label] = end.token
        self._happen(batch.done)

    def _block(self, device: Device, block: Op | Pair) -> Actor:
        ops = (block.forward, block.backward) if isinstance(block, Pair) else (block,)
        known = [op for op in ops if self._known(device, op)]
        if self.transport not in ("buffered", "rendezvous"):
            for op in known:
                kind = ActionKind.RECV_F if op.kind is OpKind.FORWARD else ActionKind.RECV_B
                batch = device.receives.get((kind, op.stage, op.microbatch))
                if batch is not None and op.kind is not OpKind.BACKWARD_WEIGHT:
                    yield batch.done
        for op in known:
            device.held += self.problem.memory.of(op.kind)[op.stage][0]
            if self._sharding and op.stage not in self._whole:
                self.faults.append(f"device {device.number} runs {op} on sharded weights")
        device.peak = max(device.peak, device.held)
        yield None
        for op in known:
            self._compute(device, op)
            device.held -= self.problem.memory.of(op.kind)[op.stage][1]

    def _known(self, device: Device, op: Op) -> bool:
        placement = self.problem.placement
        there = (
            0 <= op.stage < placement.stages
            and op.microbatch in self._numbers[op.stage]
            and placement.device_of_stage[op.stage] == device.number
        )
        if not there:
            self.faults.append(f"device {device.number} has nothing to run {op} on")
        return there

    def _compute(self, device: Device, op: Op) -> None:
        stage, m = op.stage, op.microbatch
        layer = self.problem.placement.replica_of[stage]
        match op.kind:
            case OpKind.FORWARD:
                self._forwards[stage, m] += 1
                before = self._before.get(stage)
                came = (m, ()) if before is None else self._take(device, "activation", op)
                if came is None:
                    return
                token = (came[0], (*came[1], layer))
                if token != (m, self._way(stage)):
                    self.faults.append(f"{op} gets the activation of another")
                device.saved[stage, m] = token
                self._give(device, self._next.get(stage), "activation", m, token)
            case OpKind.BACKWARD_INPUT | OpKind.BACKWARD:
                if device.saved.pop((stage, m), None) is None:
                    self.faults.append(f"{op} has no activation of its forward")
                    return
                token = (m, (layer,))
                if stage in self._next:
                    came = self._take(device, "gradient", op)
                    if came is None:
                        return
                    token = (came[0], (*came[1], layer))
                if token != (m, self._way_back(stage)):
                    self.faults.append(f"{op} gets the gradient of another")
                self._give(device, self._before.get(stage), "gradient", m, token)
                if op.kind is OpKind.BACKWARD:
                    self._weigh(stage, m)
                else:
                    device.unweighted.add((stage, m))
            case OpKind.BACKWARD_WEIGHT:
                if (stage, m) not in device.unweighted:
                    self.faults.append(f"{op} has no gradient of its I")
                    return
                device.unweighted.discard((stage, m))
                self._weigh(stage, m)

    def _weigh(self, stage: int, microbatch: int) -> None:
        self._weights[stage, microbatch] += 1
        if self._reduced[stage]:
            self.faults.append(f"stage {stage} gets gradients after they were reduced")

    def _take(self, device: Device, what: str, op: Op) -> Token | None:
        token = device.mail.pop((what, op.stage, op.microbatch), None)
        if token is None:
            self.faults.append(f"{op} has no {what}")
        return token

    def _give(
        self, device: Device, stage: int | None, what: str, microbatch: int, token: Token
    ) -> None:
        """Keep what was made: for a stage of the same device, or for a SEND."""
        if stage is None:
            return
        here = self.problem.placement.device_of_stage[stage] == device.number
        (device.mail if here else device.outgoing)[what, stage, microbatch] = token

    def _way(self, stage: int) -> tuple[int, ...]:
        """Return the layers of a chain up to a stage."""
        way: list[int] = []
        at: int | None = stage
        while at is not None:
            way.append(self.problem.placement.replica_of[at])
            at = self._before.get(at)
        return tuple(reversed(way))

    def _way_back(self, stage: int) -> tuple[int, ...]:
        """Return the layers of a chain from its end back to a stage."""
        way: list[int] = []
        at: int | None = stage
        while at is not None:
            way.append(self.problem.placement.replica_of[at])
            at = self._next.get(at)
        return tuple(reversed(way))

    def _weight_step(self, device: Device, action: Action) -> None:
        stage = action.stage
        placement = self.problem.placement
        if not 0 <= stage < placement.stages or placement.device_of_stage[stage] != device.number:
            self.faults.append(f"device {device.number} has no weights for {action}")
            return
        match action.kind:
            case ActionKind.UNSHARD:
                if stage in self._whole:
                    self.faults.append(f"{action}, but they are whole")
                self._whole.add(stage)
            case ActionKind.RESHARD:
                if stage not in self._whole:
                    self.faults.append(f"{action}, but they are sharded")
                self._whole.discard(stage)
            case _:
                self._reduced[stage] += 1
                weights = placement.replica_of[stage]
                for copy, each in enumerate(placement.replica_of):
                    if each == weights and copy != stage:
                        other = placement.device_of_stage[copy]
                        self._sums[device.number, other].append(weights)

    def _judge(self, *, reducing: bool) -> None:
        """Everything ended, was computed once, and nothing is left over."""
        for device in self._devices:
            if not device.ended:
                self.hung = True
                self.faults.append(f"device {device.number} stands at {device.standing}")
            limit = (
                self.problem.memory.limit[device.number]
                if device.number < self.problem.devices
                else None
            )
            if limit is not None and device.peak > limit:
                self.faults.append(f"device {device.number} runs out of memory")
            if device.mail or device.saved or device.unweighted:
                self.faults.append(f"device {device.number} ends with data that nobody used")
        for source, target, _ in list(self._opened):
            counts = [len(self._opened[source, target, each]) for each in (True, False)]
            if counts[0] != counts[1]:
                self.faults.append(f"{counts[0]} sends and {counts[1]} receives")
        for (one, other), summed in list(self._sums.items()):
            if summed != self._sums[other, one]:
                self.faults.append(f"devices {one} and {other} sum different gradients")
        for stage, numbers in self._numbers.items():
            for m in numbers:
                for what, done in (("F", self._forwards), ("weights", self._weights)):
                    if done[stage, m] != 1:
                        self.faults.append(f"{what} of {stage}, {m}: {done[stage, m]} times")
            if reducing and numbers and self._reduced[stage] != 1:
                self.faults.append(f"stage {stage} is reduced {self._reduced[stage]} times")


END = Event(happened=True)
"""What an actor that is over gives."""


def faults(program: Program, seed: int = 0) -> dict[str, list[str]]:
    """Return for each transport what goes wrong in one run."""
    return {
        transport: ProgramExecution(program, transport, seed).faults for transport in TRANSPORTS
    }
