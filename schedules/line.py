"""One line of all blocks and transfers, from which every device takes its part as its program.

The theorem that makes such programs safe is in ``lower``; this module finds the line.

What an op hands on has a code: ``group x n + microbatch`` with n microbatches in all, where the
group is ``2 x stage`` for an activation and ``2 x stage + 1`` for a gradient.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TypeAlias

from bubbleproof.schedules.ops import Block, Op, OpKind, ops_of
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.program import Action, ActionKind, Group, Step
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.simulate import DeadlockError

Need: TypeAlias = tuple[int, bool, int]
"""An input: the group of what is needed, whether another device makes it, the delay in ticks."""

SENDS = (ActionKind.SEND_F, ActionKind.SEND_B)
MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Route:
    """Where the outputs of a group go when they leave their device.

    Parameters
    ----------
    source, target
        The devices of the stage that makes them and of the stage that uses them.
    rank
        The order of transfers of one instant: the two directions of a pair side by side, and the
        pairs in two rounds. Were (0, 1), (1, 2), (2, 3), ... taken in this order, each would wait
        for the one before it; even and odd ones in turn do not.
    send, receive
        Stage and kind of the two ends.
    """

    source: int
    target: int
    rank: int
    send: tuple[int, ActionKind]
    receive: tuple[int, ActionKind]


@dataclass(slots=True)
class Line:
    """A line in the making, which the times of a schedule lead through what its order allows.

    Raises
    ------
    DeadlockError
        If the order cannot run, with what each device waits for.
    ValueError
        If the rows are not those of the problem's devices, an op stands where it does not belong
        or is there twice, or the starts do not fit the rows.
    """

    schedule: Schedule
    rows: list[list[Block | int]] = field(init=False)
    """For each device its blocks, and the numbers of the bundles of messages between them."""
    bundles: list[list[int]] = field(init=False)
    """Codes of what two devices exchange with nothing between, in the line's order."""
    _needs: dict[OpKind, list[tuple[Need, ...]]] = field(init=False)
    _routes: list[Route | None] = field(init=False)
    _next: list[tuple[int, int, int]] = field(init=False)
    """A heap: of a block its end, 0 and its device; of a transfer its time, rank and code."""
    _free: list[int] = field(init=False)
    _position: list[int] = field(init=False)
    _end: list[int] = field(init=False)
    _made: bytearray = field(init=False)
    _moved: bytearray = field(init=False)
    _wanted: bytearray = field(init=False)
    """For each code whether an op of another device in the rows needs it."""
    _waiting: dict[int, int] = field(init=False)
    """For a code that is not moved yet the device that stands before the op that needs it."""

    def __post_init__(self) -> None:
        """Draw the line."""
        problem = self.schedule.problem
        devices, codes = problem.devices, 2 * problem.stages * problem.total_microbatches
        self.rows, self.bundles = [[] for _ in range(devices)], []
        self._needs, self._routes = _needs(problem), _routes(problem)
        self._next, self._waiting = [], {}
        self._free, self._position, self._end = [0] * devices, [0] * devices, [0] * codes
        self._made, self._moved, self._wanted = (bytearray(codes) for _ in range(3))
        self._read()
        for device in range(devices):
            self._stand_by(device)
        while self._next:
            time, rank, number = heappop(self._next)
            if rank:
                self._move(number)
            else:
                self._compute(number, time)
        if self._position != list(map(len, self.schedule.rows)):
            raise DeadlockError("the order cannot run: " + self._blocked())

    def steps(self, device: int, *, grouped: bool) -> tuple[Step, ...]:
        """Return a device's part of the line.

        Parameters
        ----------
        device
            The device.
        grouped
            Whether messages in both directions between the same two devices, with nothing between
            them, are posted together.
        """
        n = self.schedule.problem.total_microbatches
        # By group, so that nothing is looked up twice for the many messages of one kind.
        ends = [
            None if route is None else route.send if route.source == device else route.receive
            for route in self._routes
        ]
        steps: list[Step] = []
        for entry in self.rows[device]:
            if not isinstance(entry, int):
                steps.append(entry)
                continue
            messages: list[Action] = []
            for code in self.bundles[entry]:
                end = ends[code // n]
                if end is not None:
                    messages.append(Action(end[0], end[1], code % n))
            if len(messages) > 1 and grouped and len({m.kind in SENDS for m in messages}) > 1:
                steps.append(Group(tuple(messages)))
            else:
                steps += messages
        return tuple(steps)

    def _route(self, group: int) -> Route:
        route = self._routes[group]
        if route is None:
            raise LookupError(f"group {group} stays on its device")
        return route

    def _read(self) -> None:
        """Check every op, and note which outputs another device needs."""
        schedule, problem = self.schedule, self.schedule.problem
        _check_shape(schedule)
        device_of, n = problem.placement.device_of_stage, problem.total_microbatches
        window = [problem.microbatches_of_stage(stage) for stage in range(problem.stages)]
        there = bytearray(len(self._made))
        for device, row in enumerate(schedule.rows):
            for block in row:
                for op in ops_of(block):
                    stage, kind = op.stage, op.kind
                    if not 0 <= stage < problem.stages or device_of[stage] != device:
                        raise ValueError(_stranger(problem, device, op))
                    if op.microbatch not in window[stage]:
                        raise ValueError(
                            f"device {device} runs {op}, but the microbatches of stage {stage} are "
                            f"{window[stage].start}..{window[stage].stop - 1}"
                        )
                    if kind is OpKind.BACKWARD_WEIGHT:
                        continue
                    code = (2 * stage + (kind is not OpKind.FORWARD)) * n + op.microbatch
                    if there[code]:
                        what = "forward" if kind is OpKind.FORWARD else "backward"
                        raise ValueError(
                            f"device {device} runs {op}, a second {what} of this microbatch; "
                            "one is right"
                        )
                    there[code] = 1
                    for group, remote, _ in self._needs[kind][stage]:
                        if remote:
                            self._wanted[group * n + op.microbatch] = 1

    def _stand_by(self, device: int) -> None:
        """Put a device's next block among what can be next, if its inputs are there."""
        schedule, position = self.schedule, self._position[device]
        if position == len(schedule.rows[device]):
            return
        block, start = schedule.rows[device][position], self._free[device]
        n = schedule.problem.total_microbatches
        for op in ops_of(block):
            for group, remote, lag in self._needs[op.kind][op.stage]:
                code = group * n + op.microbatch
                if not (self._moved if remote else self._made)[code]:
                    if remote:
                        self._waiting[code] = device
                    return
                start = max(start, self._end[code] + lag)
        if schedule.starts is not None:
            start = schedule.starts[device][position]
        heappush(self._next, (start + schedule.problem.duration(block), 0, device))

    def _compute(self, device: int, end: int) -> None:
        """Put a device's next block into the line; what it makes can be moved from now on."""
        block = self.schedule.rows[device][self._position[device]]
        self.rows[device].append(block)
        self._position[device] += 1
        self._free[device] = end
        n = self.schedule.problem.total_microbatches
        for op in ops_of(block):
            if op.kind is OpKind.BACKWARD_WEIGHT:
                continue
            group = 2 * op.stage + (op.kind is not OpKind.FORWARD)
            code = group * n + op.microbatch
            self._made[code] = 1
            self._end[code] = end
            if self._wanted[code]:
                heappush(self._next, (end, self._route(group).rank, code))
        self._stand_by(device)

    def _move(self, code: int) -> None:
        """Put a transfer into the line, behind all that its two devices have in it."""
        self._moved[code] = 1
        route = self._route(code // self.schedule.problem.total_microbatches)
        source, target = self.rows[route.source], self.rows[route.target]
        last = source[-1]
        if isinstance(last, int) and target and target[-1] == last:
            self.bundles[last].append(code)
        else:
            source.append(len(self.bundles))
            target.append(len(self.bundles))
            self.bundles.append([code])
        device = self._waiting.pop(code, None)
        if device is not None:
            self._stand_by(device)

    def _blocked(self) -> str:
        """Say where the devices stand that cannot go on, and what they wait for."""
        parts: list[str] = []
        n = self.schedule.problem.total_microbatches
        for device, row in enumerate(self.schedule.rows):
            if self._position[device] == len(row):
                continue
            block = row[self._position[device]]
            missing, microbatch = next(
                (group, op.microbatch)
                for op in ops_of(block)
                for group, remote, _ in self._needs[op.kind][op.stage]
                if not (self._moved if remote else self._made)[group * n + op.microbatch]
            )
            what = "backward" if missing % 2 else "forward"
            parts.append(
                f"device {device} stands at {block} and waits for the {what} of stage "
                f"{missing // 2}, microbatch {microbatch}"
            )
        return "; ".join(parts[:MOST_NAMED]) + ("; ..." if len(parts) > MOST_NAMED else "")


def _needs(problem: Problem) -> dict[OpKind, list[tuple[Need, ...]]]:
    """Return for each op kind and stage what such an op waits for."""
    placement = problem.placement
    device_of = placement.device_of_stage

    def of(stage: int, neighbour: int | None, gradient: int) -> tuple[Need, ...]:
        if neighbour is None:
            return ()
        remote = device_of[neighbour] != device_of[stage]
        return ((2 * neighbour + gradient, remote, problem.lag(neighbour, stage)),)

    stages = range(problem.stages)
    backward = [((2 * s, False, 0), *of(s, placement.following[s], 1)) for s in stages]
    return {
        OpKind.FORWARD: [of(s, placement.previous[s], 0) for s in stages],
        OpKind.BACKWARD_INPUT: backward,
        OpKind.BACKWARD: backward,
        OpKind.BACKWARD_WEIGHT: [((2 * s + 1, False, 0),) for s in stages],
    }


def _routes(problem: Problem) -> list[Route | None]:
    """Return for each group its way to another device; None where it stays."""
    placement, devices = problem.placement, problem.devices
    device_of = placement.device_of_stage
    routes: list[Route | None] = []
    for stage in range(problem.stages):
        for neighbour, send, receive in (
            (placement.following[stage], ActionKind.SEND_F, ActionKind.RECV_F),
            (placement.previous[stage], ActionKind.SEND_B, ActionKind.RECV_B),
        ):
            if neighbour is None or device_of[neighbour] == device_of[stage]:
                routes.append(None)
                continue
            source, target = device_of[stage], device_of[neighbour]
            low, high = sorted((source, target))
            rank = 1 + (low % 2 * devices + low) * devices + high
            routes.append(Route(source, target, rank, (stage, send), (neighbour, receive)))
    return routes


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
