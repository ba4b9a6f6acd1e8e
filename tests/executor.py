"""A second opinion: devices as actors that run their rows and exchange data.

Written from the semantics alone. Each activation is the list of layers that made it, each
gradient the list of layers that it came back through, so that a run shows what was computed and
not only that it ended. Reads the data types and nothing else of the package.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import TypeAlias

from bubbleproof.schedules.ops import Block, Op, OpKind, Pair
from bubbleproof.schedules.schedule import Schedule

Token: TypeAlias = tuple[int, ...]
"""The layers that a piece of data has passed, in order."""

Box: TypeAlias = tuple[str, int, int]
"""A message: activation or gradient, the stage that it is for, its microbatch."""


@dataclass(slots=True)
class Actor:
    """One device: its row, its mail, and what it keeps."""

    row: tuple[Block, ...]
    position: int = 0
    busy: bool = False
    held: int = 0
    peak: int = 0
    mail: dict[Box, Token] = field(default_factory=dict[Box, Token])
    saved: dict[tuple[int, int], Token] = field(default_factory=dict[tuple[int, int], Token])
    waiting_weights: dict[tuple[int, int], Token] = field(
        default_factory=dict[tuple[int, int], Token]
    )


class Execution:
    """Run a schedule's order with random durations.

    Attributes
    ----------
    faults
        What went wrong, in words; empty where the run ended and computed what it should.
    peaks
        For each device the most memory that it held, in grains, static part included.
    """

    def __init__(self, schedule: Schedule, seed: int = 0) -> None:
        self.problem = schedule.problem
        self.faults: list[str] = []
        self._random = Random(seed)
        self._clock = 0.0
        self._agenda: list[tuple[float, int, int, int]] = []
        self._serial = 0
        self._weights: Counter[tuple[int, int]] = Counter()
        self._forwards: Counter[tuple[int, int]] = Counter()
        placement = self.problem.placement
        self._next: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._chain: dict[int, int] = {}
        for index, chain in enumerate(placement.chains):
            self._chain.update(dict.fromkeys(chain, index))
            self._next.update(pairwise(chain))
            self._before.update((after, before) for before, after in pairwise(chain))
        self._actors = [Actor(row) for row in schedule.rows]
        if len(self._actors) != self.problem.devices:
            self.faults.append("rows and devices differ in number")
            self.peaks: tuple[int, ...] = ()
            return
        for stage, device in enumerate(placement.device_of_stage):
            self._actors[device].held += self.problem.memory.static[stage]
        for actor in self._actors:
            actor.peak = actor.held
        if all(self._known(op) for actor in self._actors for op in _ops(actor.row)):
            self._run()
        else:
            self.faults.append("an op of a stage or microbatch that is not there")
        self.peaks = tuple(actor.peak for actor in self._actors)
        for device, actor in enumerate(self._actors):
            limit = self.problem.memory.limit[device]
            if limit is not None and actor.peak > limit:
                self.faults.append(f"device {device} runs out of memory")

    def _known(self, op: Op) -> bool:
        if not 0 <= op.stage < self.problem.placement.stages:
            return False
        counts = self.problem.microbatches
        chain = self._chain[op.stage]
        return 0 <= op.microbatch - sum(counts[:chain]) < counts[chain]

    def _run(self) -> None:
        for device in range(len(self._actors)):
            self._wake(device)
        while self._agenda:
            self._clock, ending, _, device = heapq.heappop(self._agenda)
            if ending == 0:
                self._finish(device)
            self._try_to_start(device)
        for device, actor in enumerate(self._actors):
            if actor.position < len(actor.row):
                self.faults.append(f"device {device} hangs at {actor.row[actor.position]}")
        if not self.faults:
            self._judge_results()

    def _wake(self, device: int, delay: float = 0.0) -> None:
        self._serial += 1
        heapq.heappush(self._agenda, (self._clock + delay, 1, self._serial, device))

    def _inputs(self, actor: Actor, op: Op) -> bool:
        key = op.stage, op.microbatch
        match op.kind:
            case OpKind.FORWARD:
                first = op.stage not in self._before
                return first or ("activation", *key) in actor.mail
            case OpKind.BACKWARD_INPUT | OpKind.BACKWARD:
                last = op.stage not in self._next
                return key in actor.saved and (last or ("gradient", *key) in actor.mail)
            case OpKind.BACKWARD_WEIGHT:
                return key in actor.waiting_weights

    def _try_to_start(self, device: int) -> None:
        actor = self._actors[device]
        if actor.busy or actor.position == len(actor.row):
            return
        ops = tuple(_ops((actor.row[actor.position],)))
        for op in ops:
            if self.problem.placement.device_of_stage[op.stage] != device:
                self.faults.append(f"device {device} has no weights for {op}")
                return
        if not all(self._inputs(actor, op) for op in ops):
            return
        actor.busy = True
        for op in ops:
            actor.held += self.problem.memory.of(op.kind)[op.stage][0]
        actor.peak = max(actor.peak, actor.held)
        self._serial += 1
        duration = self._random.choice([0.0, self._random.random(), 3 * self._random.random()])
        heapq.heappush(self._agenda, (self._clock + duration, 0, self._serial, device))

    def _finish(self, device: int) -> None:
        actor = self._actors[device]
        for op in _ops((actor.row[actor.position],)):
            self._compute(device, op)
            actor.held -= self.problem.memory.of(op.kind)[op.stage][1]
        actor.busy = False
        actor.position += 1

    def _compute(self, device: int, op: Op) -> None:
        actor, key = self._actors[device], (op.stage, op.microbatch)
        layer = self.problem.placement.replica_of[op.stage]
        match op.kind:
            case OpKind.FORWARD:
                token = (*actor.mail.pop(("activation", *key), ()), layer)
                self._forwards[key] += 1
                actor.saved[key] = token
                self._send(self._next.get(op.stage), "activation", op.microbatch, token)
            case OpKind.BACKWARD_INPUT | OpKind.BACKWARD:
                forward = actor.saved.pop(key)
                gradient = actor.mail.pop(("gradient", *key), forward[::-1])
                if gradient[len(gradient) - len(forward) :] != forward[::-1]:
                    self.faults.append(f"{op} mixes data of two ways")
                self._send(self._before.get(op.stage), "gradient", op.microbatch, gradient)
                if op.kind is OpKind.BACKWARD:
                    self._weights[key] += 1
                else:
                    actor.waiting_weights[key] = gradient
            case OpKind.BACKWARD_WEIGHT:
                del actor.waiting_weights[key]
                self._weights[key] += 1

    def _send(self, stage: int | None, kind: str, microbatch: int, token: Token) -> None:
        if stage is not None:
            device = self.problem.placement.device_of_stage[stage]
            self._actors[device].mail[kind, stage, microbatch] = token
            self._wake(device, self._random.choice([0.0, self._random.random()]))

    def _judge_results(self) -> None:
        """Each stage has each microbatch's weight gradient once, and nothing is left over."""
        first = 0
        for chain, count in zip(
            self.problem.placement.chains, self.problem.microbatches, strict=True
        ):
            for m in range(first, first + count):
                for stage in chain:
                    for what, done in (("F", self._forwards), ("weights", self._weights)):
                        if done[stage, m] != 1:
                            self.faults.append(f"{what} of {stage}, {m}: {done[stage, m]} times")
            first += count
        for device, actor in enumerate(self._actors):
            if actor.mail or actor.saved or actor.waiting_weights:
                self.faults.append(f"device {device} ends with data that nobody used")


def replay_faults(schedule: Schedule) -> list[str]:
    """Follow a schedule's starts: each device must be free then, and each input there."""
    problem, starts = schedule.problem, schedule.starts
    if starts is None:
        return []
    device_of, cost = problem.placement.device_of_stage, problem.cost
    arrives: defaultdict[Box, list[int]] = defaultdict(list)
    begun: list[tuple[int, int, int, Block]] = []
    for device, row in enumerate(schedule.rows):
        for block, start in zip(row, starts[device], strict=True):
            ticks = cost.pair[device] if isinstance(block, Pair) else None
            if isinstance(block, Op):
                ticks = cost.of(block.kind)[block.stage]
            end = start + (ticks or 0)
            begun.append((device, start, end, block))
            for op in _ops((block,)):
                _announce(schedule, op, end, arrives)
    faults: list[str] = []
    for device, start, _, block in begun:
        for op in _ops((block,)):
            faults += [
                f"{op} starts at {start}, before {box} is there"
                for box in _boxes(schedule, op)
                if not arrives[box] or min(arrives[box]) > start
            ]
            if device_of[op.stage] != device:
                faults.append(f"{op} on the wrong device")
    for device, row in enumerate(schedule.rows):
        now = None
        for block, (start, end) in zip(
            row, [(s, e) for d, s, e, _ in begun if d == device], strict=True
        ):
            if now is not None and start < now:
                faults.append(f"device {device} is not free for {block} at {start}")
            now = end
    return faults


def _announce(schedule: Schedule, op: Op, end: int, arrives: dict[Box, list[int]]) -> None:
    """Note when what an op makes is there for those who use it."""
    problem = schedule.problem
    device_of, delay = problem.placement.device_of_stage, problem.cost.transfer

    def there(stage: int) -> int:
        one, other = device_of[op.stage], device_of[stage]
        if one == other:
            return end
        return end + (delay if isinstance(delay, int) else delay[one][other])

    chain = next(chain for chain in problem.placement.chains if op.stage in chain)
    at = chain.index(op.stage)
    if op.kind is OpKind.FORWARD:
        arrives["saved", op.stage, op.microbatch].append(end)
        if at + 1 < len(chain):
            arrives["activation", chain[at + 1], op.microbatch].append(there(chain[at + 1]))
    elif op.kind is not OpKind.BACKWARD_WEIGHT:
        arrives["weights", op.stage, op.microbatch].append(end)
        if at:
            arrives["gradient", chain[at - 1], op.microbatch].append(there(chain[at - 1]))


def _boxes(schedule: Schedule, op: Op) -> Iterator[Box]:
    """Yield what an op uses."""
    chain = next(chain for chain in schedule.problem.placement.chains if op.stage in chain)
    match op.kind:
        case OpKind.FORWARD:
            if op.stage != chain[0]:
                yield "activation", op.stage, op.microbatch
        case OpKind.BACKWARD_INPUT | OpKind.BACKWARD:
            yield "saved", op.stage, op.microbatch
            if op.stage != chain[-1]:
                yield "gradient", op.stage, op.microbatch
        case OpKind.BACKWARD_WEIGHT:
            yield "weights", op.stage, op.microbatch


def _ops(blocks: tuple[Block, ...]) -> Iterator[Op]:
    for block in blocks:
        if isinstance(block, Pair):
            yield block.forward
            yield block.backward
        else:
            yield block
