"""A cyclic schedule: when each op of one period starts, and rows for any number of periods."""

from dataclasses import dataclass, replace
from typing import TypeAlias

from bubbleproof.schedules.ops import Op
from bubbleproof.schedules.periodic import Periodic
from bubbleproof.schedules.problem import Problem

OpStarts: TypeAlias = dict[Op, int]
"""When the ops of one period start."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A cyclic schedule.

    Parameters
    ----------
    problem
        What it is for, with the microbatches of one period.
    period
        Ticks from one repetition to the next.
    start
        For each op of one period its start, in ticks.
    """

    problem: Problem
    period: int
    start: OpStarts

    def periodic(self, problem: Problem) -> Periodic:
        """Return the kernel with a ramp before it and one after, in the order of the starts.

        Parameters
        ----------
        problem
            Of its microbatches what one chain has more than another matters; that comes last.
        """
        turns = 1 + max(self.start.values()) // self.period
        fewest = min(problem.microbatches)
        base = replace(
            problem,
            microbatches=tuple(
                turns * step + number - fewest
                for step, number in zip(
                    self.problem.microbatches, problem.microbatches, strict=True
                )
            ),
        )
        parts: list[list[list[tuple[int, int, int, Op]]]] = [
            [[], [], []] for _ in range(problem.devices)
        ]
        for rank, (op, start) in enumerate(self.start.items()):
            device = problem.placement.device_of_stage[op.stage]
            chain = problem.placement.chain_of_stage[op.stage]
            step = self.problem.microbatches[chain]
            first = op.microbatch - self.problem.first_microbatch[chain]
            passed = turns - start // self.period
            for turn in range(max(passed + 1, -(-(base.microbatches[chain] - first) // step))):
                begin, index = start + turn * self.period, first + turn * step
                timed = begin, begin + problem.duration(op), rank, Op(op.stage, op.kind, index)
                if turn == passed:
                    parts[device][1].append(timed)
                if index < base.microbatches[chain]:
                    parts[device][0 if turn < passed else 2].append(timed)
        rows = [[tuple(op for *_, op in sorted(part)) for part in device] for device in parts]
        return Periodic(
            problem=base,
            step=self.problem.microbatches,
            prologue=tuple(before for before, _, _ in rows),
            kernel=tuple(kernel for _, kernel, _ in rows),
            epilogue=tuple(after for _, _, after in rows),
            source=f"a kernel of {self.period} ticks",
        )
