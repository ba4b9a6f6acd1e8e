"""One line of all blocks and transfers, from which every device takes its part as its program.

The theorem that makes such programs safe is in ``lower``; this module finds the line.

All that comes about is a whole number, a **slot**: ``group x n + microbatch`` with n microbatches
in all. First come the groups of what a stage computes, its forwards, its backwards (I or B) and its
W's; behind them the groups of what crosses between devices, one for each route, in the order in
which transfers of one instant are taken.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeAlias

from bubbleproof.schedules.ops import Block, Op, OpKind
from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Action, ActionKind, Group, Step
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.simulate import DeadlockError

Entry: TypeAlias = Block | int | list[int]
"""What a device has in the line: a block, a transfer's slot, or the slots of several."""

FORWARD, BACKWARD, WEIGHT = range(3)
PLACE_IN_STAGE = {
    OpKind.FORWARD: FORWARD,
    OpKind.BACKWARD_INPUT: BACKWARD,
    OpKind.BACKWARD: BACKWARD,
    OpKind.BACKWARD_WEIGHT: WEIGHT,
}
SENDS = (ActionKind.SEND_F, ActionKind.SEND_B)
MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Route:
    """Where what a stage makes goes when it leaves its device.

    Parameters
    ----------
    source, target
        The devices of the stage that makes it and of the stage that uses it.
    group
        The group of what makes it.
    lag
        The ticks that it takes.
    send, receive
        Stage and kind of the two ends.
    """

    source: int
    target: int
    group: int
    lag: int
    send: tuple[int, ActionKind]
    receive: tuple[int, ActionKind]


@dataclass(frozen=True, slots=True)
class Line:
    """A line, as the parts that the devices have in it.

    Parameters
    ----------
    parts
        For each device its blocks and transfers in order. Several transfers with nothing between
        them on both their devices are one entry, the same list for both.
    routes
        The routes, in the order of their groups.
    first_group
        The group of the first route.
    microbatches
        All microbatches, n.
    """

    parts: tuple[list[Entry], ...]
    routes: tuple[Route, ...]
    first_group: int
    microbatches: int

    def steps(self, device: int) -> list[Step]:
        """Return a device's part of the line with its ends of the transfers.

        Messages in both directions between the same two devices, with nothing between them, are a
        group.
        """
        n, first = self.microbatches, self.first_group
        sends = [route.source == device for route in self.routes]
        ends = [route.send if route.source == device else route.receive for route in self.routes]
        steps: list[Step] = []
        for entry in self.parts[device]:
            if isinstance(entry, int):
                stage, kind = ends[entry // n - first]
                steps.append(Action(stage, kind, entry % n))
            elif isinstance(entry, list):
                messages: list[Action] = []
                sent = 0
                for slot in entry:
                    route = slot // n - first
                    stage, kind = ends[route]
                    messages.append(Action(stage, kind, slot % n))
                    sent += sends[route]
                if 0 < sent < len(messages):
                    steps.append(Group(tuple(messages)))
                else:
                    steps += messages
            else:
                steps.append(entry)
        return steps


def draw_line(schedule: Schedule) -> Line:
    """Return the line that the times of a schedule choose among those that its order allows.

    Raises
    ------
    DeadlockError
        If the order cannot run, with what each device waits for.
    ValueError
        If the rows are not those of the problem's devices, an op stands where it does not belong
        or is there twice, or the starts do not fit the rows.
    """
    _check_shape(schedule)
    problem, rows, starts = schedule.problem, schedule.rows, schedule.starts
    n, first = problem.total_microbatches, 3 * problem.stages
    holder = [device for device in problem.placement.device_of_stage for _ in range(3)]
    routes = _routes(problem)
    waits = _waits(problem.placement, routes, n)
    leaves = _leaves(routes, first, n)
    slots, ticks, wanted = _read(schedule, waits)
    blocks, all_slots = first * n, (first + len(routes)) * n
    # When a slot is there for the ops that wait for it.
    there: list[int | None] = [None] * all_slots
    heads, free, awaited = [0] * len(rows), [0] * len(rows), [-1] * len(rows)
    parts: tuple[list[Entry], ...] = tuple([] for _ in rows)
    ways = [(parts[route.source], parts[route.target], route.target, route.lag) for route in routes]
    # What can be next: the end of a block and the slot of its first op, or the time and the slot
    # of a transfer, each as one number.
    ahead: list[int] = []
    standing = list(range(len(rows)))
    while standing or ahead:
        if standing:
            device = standing.pop()
            head = heads[device]
            if head == len(rows[device]):
                continue
            start, ops = free[device], slots[device][head]
            missing = -1
            for op in ops:
                for offset in waits[op // n]:
                    time = there[op + offset]
                    if time is None:
                        missing = op + offset if missing < 0 else missing
                    elif time > start:
                        start = time
            awaited[device] = missing
            if missing < 0:
                if starts is not None:
                    start = starts[device][head]
                heappush(ahead, (start + ticks[device][head]) * all_slots + ops[0])
            continue
        time, slot = divmod(heappop(ahead), all_slots)
        if slot < blocks:
            device = holder[slot // n]
            head = heads[device]
            for op in slots[device][head]:
                there[op] = time
                offset = leaves[op // n]
                if offset is not None and wanted[op + offset]:
                    heappush(ahead, time * all_slots + op + offset)
            parts[device].append(rows[device][head])
            heads[device] = head + 1
            free[device] = time
            standing.append(device)
            continue
        here, yonder, target, lag = ways[slot // n - first]
        there[slot] = time + lag
        last = here[-1]
        # No other device has an entry that is the last of both.
        if not yonder or yonder[-1] is not last:
            here.append(slot)
            yonder.append(slot)
        elif isinstance(last, list):
            last.append(slot)
        elif isinstance(last, int):
            here[-1] = yonder[-1] = [last, slot]
        if awaited[target] == slot:
            standing.append(target)
    stuck = [device for device, row in enumerate(rows) if heads[device] < len(row)]
    if stuck:
        raise DeadlockError(
            "the order cannot run: "
            + "; ".join(
                f"device {device} stands at {rows[device][heads[device]]} and waits for "
                f"{_waited_for(awaited[device], routes, first, n)}"
                for device in stuck[:MOST_NAMED]
            )
            + ("; ..." if len(stuck) > MOST_NAMED else "")
        )
    return Line(parts, routes, first, n)


def _routes(problem: Problem) -> tuple[Route, ...]:
    """Return the ways from device to device, in the order in which one instant's are taken.

    The two directions of a pair are side by side, and the pairs come in two rounds. Were (0, 1),
    (1, 2), (2, 3), ... taken in this order, each would wait for the one before it; even and odd
    ones in turn do not.
    """
    placement = problem.placement
    device_of = placement.device_of_stage
    routes: list[Route] = []
    for stage in range(problem.stages):
        for neighbour, made, send, receive in (
            (placement.following[stage], FORWARD, ActionKind.SEND_F, ActionKind.RECV_F),
            (placement.previous[stage], BACKWARD, ActionKind.SEND_B, ActionKind.RECV_B),
        ):
            if neighbour is not None and device_of[neighbour] != device_of[stage]:
                routes.append(
                    Route(
                        source=device_of[stage],
                        target=device_of[neighbour],
                        group=3 * stage + made,
                        lag=problem.lag(stage, neighbour),
                        send=(stage, send),
                        receive=(neighbour, receive),
                    )
                )

    def turn(route: Route) -> tuple[int, int, int, int]:
        low, high = sorted((route.source, route.target))
        return low % 2, low, high, route.group

    return tuple(sorted(routes, key=turn))


def _leaves(routes: Sequence[Route], first: int, n: int) -> list[int | None]:
    """Return for each group of ops how far its transfer's slot is from an op's, if it has one."""
    leaves: list[int | None] = [None] * first
    for number, route in enumerate(routes):
        leaves[route.group] = (first + number - route.group) * n
    return leaves


def _waits(placement: Placement, routes: Sequence[Route], n: int) -> list[tuple[int, ...]]:
    """Return for each group of ops how far the slots that an op waits for are from its own."""
    first = 3 * placement.stages
    brought = {route.group: first + number for number, route in enumerate(routes)}
    waits: list[tuple[int, ...]] = []
    for stage in range(placement.stages):
        forward, backward, weight = range(3 * stage, 3 * stage + 3)

        def away(group: int, neighbour: int | None, made: int) -> Iterator[int]:
            if neighbour is not None:
                giver = 3 * neighbour + made
                yield (brought.get(giver, giver) - group) * n

        waits.append(tuple(away(forward, placement.previous[stage], FORWARD)))
        waits.append(
            ((forward - backward) * n, *away(backward, placement.following[stage], BACKWARD))
        )
        waits.append(((backward - weight) * n,))
    return waits


def _read(
    schedule: Schedule, waits: Sequence[tuple[int, ...]]
) -> tuple[list[list[tuple[int, ...]]], list[list[int]], bytearray]:
    """Return the slots of the ops of each block, the blocks' durations, and the slots waited for.

    A slot that nobody waits for need not be carried anywhere.
    """
    problem = schedule.problem
    device_of, n, stages = (
        problem.placement.device_of_stage,
        problem.total_microbatches,
        problem.stages,
    )
    window = [problem.microbatches_of_stage(stage) for stage in range(stages)]
    ticks_of = {kind: problem.cost.of(kind) for kind in OpKind}
    slots: list[list[tuple[int, ...]]] = []
    ticks: list[list[int]] = []
    seen = bytearray(3 * stages * n)
    wanted = bytearray((len(waits) + 2 * stages) * n)
    for device, row in enumerate(schedule.rows):
        of_row: list[tuple[int, ...]] = []
        ticks_of_row: list[int] = []
        for block in row:
            of_block: tuple[int, ...] = ()
            for op in (block,) if isinstance(block, Op) else (block.forward, block.backward):
                stage, microbatch = op.stage, op.microbatch
                if not 0 <= stage < stages or device_of[stage] != device:
                    raise ValueError(_stranger(problem, device, op))
                if microbatch not in window[stage]:
                    raise ValueError(
                        f"device {device} runs {op}, but the microbatches of stage {stage} are "
                        f"{window[stage].start}..{window[stage].stop - 1}"
                    )
                group = 3 * stage + PLACE_IN_STAGE[op.kind]
                slot = group * n + microbatch
                if seen[slot]:
                    what = ("forward", "backward", "W")[group % 3]
                    raise ValueError(
                        f"device {device} runs {op}, a second {what} of this microbatch; "
                        "one is right"
                    )
                seen[slot] = 1
                of_block += (slot,)
                for offset in waits[group]:
                    wanted[slot + offset] = 1
            of_row.append(of_block)
            ticks_of_row.append(
                ticks_of[block.kind][block.stage]
                if isinstance(block, Op)
                else problem.duration(block)
            )
        slots.append(of_row)
        ticks.append(ticks_of_row)
    return slots, ticks, wanted


def _waited_for(slot: int, routes: Sequence[Route], first: int, n: int) -> str:
    group = slot // n
    made = group if group < first else routes[group - first].group
    what = "forward" if made % 3 == FORWARD else "backward"
    return f"the {what} of stage {made // 3}, microbatch {slot % n}"


def _check_shape(schedule: Schedule) -> None:
    rows, starts, devices = schedule.rows, schedule.starts, schedule.problem.devices
    if len(rows) != devices:
        raise ValueError(f"{len(rows)} rows for {devices} devices; one for each can be lowered")
    if starts is not None and list(map(len, starts)) != list(map(len, rows)):
        raise ValueError("the starts do not fit the rows; one for each block can be lowered")


def _stranger(problem: Problem, device: int, op: Op) -> str:
    if 0 <= op.stage < problem.stages:
        right = problem.placement.device_of_stage[op.stage]
        return f"device {device} runs {op}, but stage {op.stage} is on device {right}"
    return f"device {device} runs {op}, but the stages are 0..{problem.stages - 1}"
