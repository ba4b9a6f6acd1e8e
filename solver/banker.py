"""What a device may start so that memory never gets it stuck.

An op is started only if afterwards the device can still finish its microbatches one by one, the
oldest first (Dijkstra's banker's algorithm). All devices finish in the same order, so the oldest
microbatch can always go on, and with it the whole.
"""

from dataclasses import replace
from functools import lru_cache

from bubbleproof.schedules.memory import Memory
from bubbleproof.schedules.ops import Op, OpKind
from bubbleproof.schedules.problem import Problem
from bubbleproof.solver.limits import Remainder, least_peak, room, stages_on


class Banker:
    """One device's memory: what it holds, and what its microbatches still need to finish."""

    def __init__(self, problem: Problem, device: int) -> None:
        self.problem = problem
        self.room = room(problem, device)
        self.held = 0
        chains = range(len(problem.microbatches))
        self.stages = [stages_on(problem, device, chain) for chain in chains]
        self.started = [0 for _ in chains]
        self.running: dict[tuple[int, int], Remainder] = {}
        """Microbatches in flight by (index in their chain, chain): the order of finishing."""
        self.most_extra = max(
            sum(problem.memory.of(kind)[stage][0] for stage in stages for kind in OpKind)
            for stages in self.stages
        )

    def _key(self, op: Op) -> tuple[int, int]:
        chain = self.problem.placement.chain_of_stage[op.stage]
        return op.microbatch - self.problem.first_microbatch[chain], chain

    def _after(self, op: Op) -> Remainder:
        key = self._key(op)
        now = self.running.get(key) or Remainder.of(self.stages[key[1]])
        match op.kind:
            case OpKind.FORWARD:
                return replace(now, forwards=now.forwards[1:])
            case OpKind.BACKWARD:
                return replace(now, backwards=now.backwards[1:])
            case OpKind.BACKWARD_INPUT:
                return replace(now, backwards=now.backwards[1:], weights=(*now.weights, op.stage))
            case OpKind.BACKWARD_WEIGHT:
                weights = tuple(stage for stage in now.weights if stage != op.stage)
                return replace(now, weights=weights)

    def fits(self, op: Op) -> bool:
        """Whether the op fits and leaves every microbatch in flight able to finish."""
        if self.room is None:
            return True
        allocate, free = self.problem.memory.of(op.kind)[op.stage]
        if self.held + allocate > self.room:
            return False
        left = self.room - self.held - allocate + free
        if left >= self.most_extra or op.kind is OpKind.BACKWARD_WEIGHT:
            return True
        return self._can_finish(op, left)

    def _can_finish(self, op: Op, left: int) -> bool:
        running = {**self.running, self._key(op): self._after(op)}
        newest = max(running)
        memory, backward = self.problem.memory, self.problem.backward
        unstarted = {
            (index, chain): Remainder.of(stages)
            for chain, stages in enumerate(self.stages)
            if stages
            for index in range(
                self.started[chain], min(newest[0] + 1, self.problem.microbatches[chain])
            )
        }
        for key, remainder in sorted({**unstarted, **running}.items(), key=lambda item: item[0]):
            if key > newest:
                break
            if least_peak(memory, backward, remainder) > left:
                return False
            left += _held(memory, self.stages[key[1]], remainder)
            if left >= self.most_extra:
                return True
        return True

    def run(self, op: Op) -> None:
        """Take note that an op runs next."""
        allocate, free = self.problem.memory.of(op.kind)[op.stage]
        self.held += allocate - free
        key, after = self._key(op), self._after(op)
        if key not in self.running:
            self.started[key[1]] += 1
        if after.backwards or after.weights:
            self.running[key] = after
        else:
            del self.running[key]


@lru_cache(maxsize=65536)
def _held(memory: Memory, stages: tuple[int, ...], remainder: Remainder) -> int:
    """Return what a microbatch holds on a device where this remains."""
    held = 0
    for stage in stages:
        if stage not in remainder.forwards:
            done = [OpKind.FORWARD]
            if stage not in remainder.backwards:
                if stage not in remainder.weights:
                    continue
                done.append(OpKind.BACKWARD_INPUT)
            held += sum(memory.of(kind)[stage][0] - memory.of(kind)[stage][1] for kind in done)
    return held
