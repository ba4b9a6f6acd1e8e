"""The rows of the families that fold the stages into a V: ZB-V, V-Half and V-Min.

Device d holds stage d, on the way down, and stage 2p-1-d, on the way up. V-Half and V-Min repeat
a building block: when, in ticks in which every op takes one, each device runs F and I of each of
its two stages for microbatch 0. Microbatch m follows 6m ticks later, so that two ticks in six are
left for the W's, and how long a block lasts decides how much memory it needs (Qi et al.,
arXiv 2405.15362, sec. 3).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias

from bubbleproof.schedules.families_rows import F, I, W, numbered
from bubbleproof.schedules.ops import Block, Op, Row, ops_of

BuildingBlock: TypeAlias = tuple[tuple[int, int, int, int], ...]
"""For each device the ticks of F down, F up, I up and I down: the order of one microbatch."""

_PERIOD = 6
_F_DOWN, _F_UP, _I_UP, _I_DOWN, _W_UP, _W_DOWN = range(6)
_W_OF = {_I_UP: _W_UP, _I_DOWN: _W_DOWN}
_CHANGE = (1, 1, 0, 0, -1, -1)

_Times: TypeAlias = list[list[int]]
"""For one device, and each of the four ops of a block, the ticks of all microbatches."""


def zb_v_rows(devices: int, microbatches: int) -> list[Row]:
    """Return all rows; of fewer than 2p-1 microbatches, those that 2p-1 would leave."""
    planned = max(microbatches, 2 * devices - 1)
    rows: list[Row] = []
    for device in range(devices):
        first = {device: 0, 2 * devices - 1 - device: 0}
        row = numbered(_zb_v_plan(device, devices, planned), first)
        rows.append(tuple(op for op in row if ops_of(op)[0].microbatch < microbatches))
    return rows


def _zb_v_plan(device: int, devices: int, microbatches: int) -> list[Block]:
    """Return a device's plan for ``numbered``; at least 2p-1 microbatches.

    Forwards fill the way down until microbatches come back up; then the device runs F, I and W
    of its two stages in turn, until both run out of forwards.
    """
    inner = devices - device
    down, up = device, 2 * devices - 1 - device
    f_down, i_down, w_down = Op(down, F, 0), Op(down, I, 0), Op(down, W, 0)
    f_up, i_up, w_up = Op(up, F, 0), Op(up, I, 0), Op(up, W, 0)

    plan: list[Block] = [f_down] * (2 * inner - 1)
    plan += [f_up, f_down] * device
    plan += [f_up, i_up, w_up] * inner
    forwards = microbatches - (2 * devices - 1 - device)
    plan += [f_down, i_down, w_down, f_up, i_up, w_up] * forwards
    plan += [i_down, w_down, f_up, i_up, w_up] * (microbatches - devices - forwards)
    plan += [i_down, i_up] * device
    plan += [i_down, w_down] * inner
    plan += [w_up] * device
    plan += [w_down] * device
    return plan


def v_half_block(devices: int) -> BuildingBlock:
    """Return the building block of V-Half.

    F down and I up move on by two ticks per device, F up and I down by one. With an even p the
    I's would meet the F's, and start three ticks later.
    """
    p, late = devices, 3 * (devices % 2 == 0)
    return tuple(
        (2 * d, 3 * p - 2 - d, 3 * p - 1 + late + 2 * d, 6 * p - 2 + late - d) for d in range(p)
    )


def v_min_block(devices: int) -> BuildingBlock:
    """Return the building block of V-Min.

    Everything moves on by one tick per device. With a p that three divides the I's would meet
    the F's, and start two ticks later.
    """
    p, late = devices, 2 * (devices % 3 == 0)
    return tuple((d, 2 * p - 1 - d, 2 * p + late + d, 4 * p - 1 + late - d) for d in range(p))


def repeated_rows(block: BuildingBlock, microbatches: int) -> list[Row]:
    """Return all rows: the block once for each microbatch, squeezed at both ends, with its W's."""
    devices = len(block)
    return [
        _row(times, device, 2 * devices - 1 - device)
        for device, times in enumerate(_ticks(block, microbatches))
    ]


def _ticks(block: BuildingBlock, microbatches: int) -> list[_Times]:
    """Return the ticks of all F's and I's.

    The ends of more than p + 2 microbatches go as those of p + 2 do; between them the block
    repeats unchanged.
    """
    shown = min(microbatches, len(block) + 2)
    more = microbatches - shown
    first_through, last_enters = block[0][_I_DOWN], _PERIOD * (microbatches - 1)
    stretched: list[_Times] = []
    for ticks, each in zip(block, _squeezed(block, shown), strict=True):
        stretched.append([])
        for tick, squeezed in zip(ticks, each, strict=True):
            repeated = [tick + _PERIOD * m for m in range(microbatches)]
            for m, nominal in enumerate(repeated):
                if nominal < first_through:
                    repeated[m] = squeezed[m]
                elif nominal > last_enters:
                    repeated[m] = squeezed[m - more] + _PERIOD * more
            stretched[-1].append(repeated)
    return stretched


def _squeezed(block: BuildingBlock, microbatches: int) -> list[_Times]:
    """Return the ticks of F's and I's after moving those at both ends.

    Before the first microbatch is through, and after the last one enters, the repeated blocks
    leave ticks idle. There each op, in the order of its ticks, moves to the first free tick at
    which its inputs are there and its device holds no more than the unmoved blocks do.
    """
    times: list[_Times] = [
        [[tick + _PERIOD * m for m in range(microbatches)] for tick in ticks] for ticks in block
    ]
    most = max(max(_held(each)) for each in times)
    taken = [{tick for op in each for tick in op} for each in times]
    steady = range(block[0][_I_DOWN], _PERIOD * (microbatches - 1) + 1)
    moving = sorted(
        (tick, device, op, m)
        for device, each in enumerate(times)
        for op, ticks in enumerate(each)
        for m, tick in enumerate(ticks)
        if tick not in steady
    )
    for tick, device, op, m in moving:
        ticks, used = times[device][op], taken[device]
        for earlier in range(_inputs_there(times, device, op, m), tick):
            if earlier in used:
                continue
            ticks[m] = earlier
            if all(held <= most for held in _held(times[device])):
                used.remove(tick)
                used.add(earlier)
                break
            ticks[m] = tick
    return times


def _inputs_there(times: Sequence[_Times], device: int, op: int, microbatch: int) -> int:
    """Return the first tick at which an op's inputs are there, and its own turn has come."""
    needed = [(device, before) for before in range(op)]
    source = device - 1 if op in (_F_DOWN, _I_UP) else device + 1
    if 0 <= source < len(times):
        needed.append((source, op))
    ends = [times[where][what][microbatch] + 1 for where, what in needed]
    if microbatch:
        ends.append(times[device][op][microbatch - 1] + 1)
    return max(ends, default=0)


def _timeline(times: _Times) -> Iterator[tuple[int, int]]:
    """Yield what a device runs, tick by tick: an op of the block and its microbatch.

    A tick that is free runs the W whose I has waited longest, if there is one.
    """
    at = {tick: (op, m) for op, ticks in enumerate(times) for m, tick in enumerate(ticks)}
    waiting: deque[tuple[int, int]] = deque()
    last = max(at)
    for tick in range(last + 1):
        if tick in at:
            op, m = at[tick]
            yield op, m
            if op in (_I_UP, _I_DOWN):
                waiting.append((_W_OF[op], m))
        elif waiting:
            yield waiting.popleft()
    yield from waiting


def _held(times: _Times) -> Iterator[int]:
    """Yield the activations that a device holds after each op, each from its F to its W."""
    return accumulate(_CHANGE[op] for op, _ in _timeline(times))


def _row(times: _Times, down: int, up: int) -> Row:
    stage_and_kind = ((down, F), (up, F), (up, I), (down, I), (up, W), (down, W))
    return tuple(Op(*stage_and_kind[op], m) for op, m in _timeline(times))
