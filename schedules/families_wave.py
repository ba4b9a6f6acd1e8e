"""The rows of Hanayo, whose stages go down the devices and up again in waves."""

from collections.abc import Sequence
from heapq import heappop, heappush

from bubbleproof.schedules.families_rows import B, F
from bubbleproof.schedules.ops import Op, Row


def hanayo_rows(device_of_stage: Sequence[int], devices: int, microbatches: int) -> list[Row]:
    """Return all rows: in every slot each device runs what is furthest along its way.

    A slot is the time of a forward and of a backward alike. At most p microbatches are on their
    way; the next one enters when one is through.
    """
    stages = len(device_of_stage)
    rows: list[list[Op]] = [[] for _ in range(devices)]
    ready: list[list[tuple[int, int]]] = [[] for _ in range(devices)]

    def stage_of(step: int) -> int:
        return step if step < stages else 2 * stages - 1 - step

    def offer(step: int, microbatch: int) -> None:
        heappush(ready[device_of_stage[stage_of(step)]], (-step, microbatch))

    entered = min(devices, microbatches)
    for microbatch in range(entered):
        offer(0, microbatch)
    while True:
        running = [(device, *heappop(ops)) for device, ops in enumerate(ready) if ops]
        if not running:
            return [tuple(row) for row in rows]
        for device, negative_step, microbatch in running:
            step = -negative_step
            rows[device].append(Op(stage_of(step), F if step < stages else B, microbatch))
            if step + 1 < 2 * stages:
                offer(step + 1, microbatch)
            elif entered < microbatches:
                offer(0, entered)
                entered += 1
