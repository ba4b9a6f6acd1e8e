"""The theorems behind lower bounds, each derived from SPEC.md alone.

A theorem gives, for one device, terms that add up to ticks that no valid schedule goes below: of
the device's own span (its last end minus its first start), and with the ways before and after of
the makespan. A theorem that holds in several ways, as for each chain or each other device,
gives one argument for each.

Two facts are used throughout. *First op*: the first block of a device holds an F of the first
stage of one of its visits, since every other op waits for another op of the device. *Pairs*: a
pair holds an F and a B of two microbatches, and no device pairs all its F's with all its B's:
the first of these pairs would hold a B whose F, on the same device, has not run.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.problem import Objective, Problem
from bubbleproof.schedules.schedule import Flow
from bubbleproof.verify.alone import alone_of, least_end
from bubbleproof.verify.flow import proven_by
from bubbleproof.verify.trips import Item, Visit, most_work, room_of, stages_of, visits_of

Terms: TypeAlias = Mapping[str, int]
"""What adds up to a bound, by name, in ticks."""

NAMES = ("work", "path", "warm", "cool", "sum", "pass-through", "tail", "turn", "area")

Between: TypeAlias = Callable[
    [int, Sequence[Visit], Sequence[int], Mapping[tuple[int, ...], int] | None], list[Terms]
]
"""Gives the arguments of some visits of a device, with the ways to their first stages; and, for a
span, the stage of each chain that the way starts from and leads home to."""

ALONE = "device"
"""The theorem that takes a search to check: ``alone.py``."""

FLUID = "fluid"
"""The theorem that takes multipliers to check: ``flow.py``."""

FIRST_INPUT, OWN = "until the first input", "its own ops in their best order"
WARM, COOL = "idle before the first backward", "idle after the last forward"
FLOWING = "idle that no flow of microbatches avoids"


class Arguments:
    """All arguments for lower bounds of a problem's objective."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._stage = stages_of(problem)
        self._visits = [visits_of(problem, device) for device in range(problem.devices)]
        self._room = [room_of(problem, device) for device in range(problem.devices)]

    def of(self, name: str, device: int) -> list[Terms]:
        """Return the arguments of one theorem for one device; none where it has no work.

        Raises
        ------
        ValueError
            If there is no theorem of that name.
        """
        if name not in NAMES:
            raise ValueError(f"{name!a} is the name of no bound; accepted are {', '.join(NAMES)}")
        if not self._visits[device]:
            return []
        match name:
            case "work":
                return [self._located(device, {"work": self._work(device)})]
            case "path":
                return [self._located(device, self._path(v)) for v in self._visits[device]]
            case "warm":
                terms = {"work": self._work(device), WARM: self._warm(device)}
                return [self._located(device, terms)]
            case "cool":
                terms = {"work": self._work(device), COOL: self._cool(device)}
                return [self._located(device, terms)]
            case "sum":
                return [
                    self._located(device, {"work": self._work(device), **idle})
                    for idle in self._idle(device)
                ]
            case "turn":
                return [self._turn(device)]
            case "area":
                return self._area(device)
            case "tail":
                return self._between(device, self._tail)
            case _:
                return self._between(device, self._through)

    def alone(self, device: int, claim: int) -> list[Terms] | None:
        """Return the argument of the device alone, with at most a claimed term ``OWN``.

        Returns
        -------
        list or None
            Empty where the theorem says nothing about the device; None where it is not known
            whether the claim holds.
        """
        makespan = self._problem.objective is Objective.MAKESPAN
        alone = alone_of(self._problem, device, makespan=makespan)
        if alone is None:
            return []
        least = least_end(alone, claim)
        if least is None:
            return None
        first = self._stage[self._visits[device][0].first]
        return [{FIRST_INPUT: first.down_at if makespan else 0, OWN: least}]

    def fluid(self, device: int, flow: Flow) -> list[Terms] | None:
        """Return what the multipliers of a flow's laws prove, told for one device.

        Returns
        -------
        list or None
            Empty where the device has no work; None where recomputing takes too long.

        Raises
        ------
        ValueError
            If they prove nothing, with the reason.
        """
        if not self._visits[device]:
            return []
        ticks = proven_by(self._problem, flow)
        work = self._work(device)
        return None if ticks is None else [{"work": work, FLOWING: ticks - work}]

    def strongest(self) -> int:
        """Return the largest of all bounds that take no search, in ticks."""
        return max(
            (
                sum(terms.values())
                for device in range(self._problem.devices)
                for name in NAMES
                for terms in self.of(name, device)
            ),
            default=0,
        )

    def _located(self, device: int, terms: Terms) -> Terms:
        """Make a bound on a device's span one on the objective.

        The makespan is no shorter than any span. More: the device's first op is an F of a first
        stage, which comes no earlier than the way down to it after the schedule's first start.
        Where backwards are B's alone, the last op is a B of a first stage (after any other op
        one is still to come), and the B's of the stages before it in its chain follow.
        """
        if self._problem.objective is Objective.SPAN:
            return terms
        visits = self._visits[device]
        before = min(self._stage[visit.first].down_at for visit in visits)
        located = {FIRST_INPUT: before, **terms}
        if self._problem.backward is Backward.FUSED:
            located["way back"] = min(self._way_back(visit, None) for visit in visits)
        return located

    def _work(self, device: int) -> int:
        """Return the least time that a device is busy.

        Each F and each backward takes at least its least time outside a pair. A pair instead of
        both saves at most the most that any two of the device's save, and of k F's at most k - 1
        are in pairs.
        """
        stage = self._stage
        ops = [(s, visit.microbatches) for visit in self._visits[device] for s in visit.stages]
        alone = sum(count * (stage[s].forward_alone + stage[s].whole) for s, count in ops)
        saving = self._saving(
            ops, [stage[s].forward_alone for s, _ in ops], [stage[s].whole for s, _ in ops]
        )
        return alone - saving

    def _saving(
        self, ops: Sequence[tuple[int, int]], forwards: Sequence[int], backwards: Sequence[int]
    ) -> int:
        pair = self._stage[ops[0][0]].pair
        if pair is None:
            return 0
        most = max(forwards) + max(backwards) - pair
        return max(0, most) * (sum(count for _, count in ops) - 1)

    def _path(self, visit: Visit) -> Terms:
        """From a device's first F of a chain to the end of its last backward of it.

        Take any stage from the first one on. Its n F's run on one device, none together, so the
        last of them starts n - 1 of its times after the first; the first comes no earlier than
        the way down after the device's first F, and the last is followed by its way on, back, and
        the device's own backward. The ways add up to one round trip, whichever stage is taken.
        """
        onward = visit.chain[visit.chain.index(visit.first) :]
        slowest = max(self._stage[stage].forward for stage in onward)
        own = self._stage[visit.first]
        return {
            "way forth and back": own.up_at - own.down_at + own.gradient,
            "W": own.weight,
            "waiting at the slowest forward": (visit.microbatches - 1) * slowest,
        }

    def _warm(self, device: int) -> int:
        """Return the least idle time from a device's first start to its first backward.

        For any number of stages, take what is first: an F of a visit's next stage behind so many,
        or a backward of a visit that has no more. It comes at least the way from the visit's first
        F to there after the device's first start, since that is such an F. Before it only F's of
        the first so many stages run, outside pairs; what they keep is all held when it starts,
        beside what it allocates.
        """
        stage, visits = self._stage, self._visits[device]
        idle = [0]
        for number in range(1, 1 + max(len(visit.stages) for visit in visits)):
            forwards: list[Item] = []
            until: list[int] = []
            allocates: list[int] = []
            for visit in visits:
                began = stage[visit.first].down_at
                forwards += [
                    (stage[s].kept, stage[s].forward_alone, visit.microbatches)
                    for s in visit.stages[:number]
                ]
                if number < len(visit.stages):
                    following = visit.stages[number]
                    until.append(stage[following].down_at - began)
                    allocates.append(self._problem.memory.F[following][0])
                else:
                    until.append(stage[visit.last].up_at - began)
                    allocates.append(0)
            room = self._room[device]
            room = None if room is None else room - min(allocates)
            idle.append(min(until) - most_work(forwards, room))
        return max(idle)

    def _cool(self, device: int) -> int:
        """Return the least idle time between a device's last F and its last backward.

        The last F is of the last stage of a visit, F(z, m). From its end until the backward of m
        on the visit's first stage a at least the way from z's F to a's backward passes. In that
        time run only backwards and W's: of m those of the visit's other stages; of others what
        is still open when F(z, m) starts, and then held beside what m keeps on the visit's
        stages before z and what F(z, m) allocates.
        """
        stage = self._stage
        open_work: list[Item] = []
        for visit in self._visits[device]:
            for s in visit.stages:
                open_work.append((stage[s].kept, stage[s].longest, visit.microbatches))
                open_work.append((stage[s].pending, stage[s].weight_alone, visit.microbatches))
        idle: list[int] = []
        for visit in self._visits[device]:
            last = stage[visit.last]
            window = stage[visit.first].up_at - last.down_at - last.forward
            own = sum(stage[s].longest for s in visit.stages[1:])
            room = self._beside_last_forward(device, visit)
            idle.append(window - own - most_work(open_work, room))
        return max(0, min(idle))

    def _beside_last_forward(self, device: int, visit: Visit) -> int | None:
        """Return what others may hold when the last F of a visit's last stage starts.

        Beside what its microbatch keeps on the visit's stages before, and what the F allocates.
        """
        room = self._room[device]
        if room is None:
            return None
        own = sum(self._stage[s].kept for s in visit.stages[:-1])
        return room - own - self._problem.memory.F[visit.last][0]

    def _turn(self, device: int) -> Terms:
        """From the first backward on come all backwards and every F that has not started.

        The first backward is of the last stage of a visit. The F's before it have ended and keep
        what they keep, so they fit in memory. Share out the time from then on: a backward outside a
        pair gets all its own time, one in a pair at most as much as it would take alone, and the
        F the rest of the pair's. So every backward gets at least its least time anywhere, and
        every late F the less of its own time and of a pair beyond the longest backward.
        """
        stage, visits, room = self._stage, self._visits[device], self._room[device]
        pair = stage[visits[0].first].pair
        ops = [(s, visit.microbatches) for visit in visits for s in visit.stages]
        beyond = None if pair is None else max(0, pair - max(stage[s].whole for s, _ in ops))
        late: list[Item] = []
        for s, count in ops:
            alone = stage[s].forward_alone
            late.append((stage[s].kept, alone if beyond is None else min(alone, beyond), count))
        everything = sum(ticks * count for _, ticks, count in late)
        makespan = self._problem.objective is Objective.MAKESPAN
        return {
            "until the first backward": min(
                stage[visit.last].up_at - (0 if makespan else stage[visit.first].down_at)
                for visit in visits
            ),
            "backwards": sum(count * stage[s].anywhere for s, count in ops),
            "forwards that do not fit before it": max(0, everything - most_work(late, room)),
            "idle on the way back": self._home(device) if makespan else 0,
        }

    def _home(self, device: int) -> int:
        """Return what comes on top once a device has handed on its last gradient.

        It is of a visit's first stage; the backwards of the stages before it follow, one after the
        other, the last of them whole. Meanwhile the device runs W's only, of what is pending when
        the gradient is handed on. Such a backward was split: it takes I + W, of which its least
        time anywhere is counted already. So each takes off the idle time at most that less I.
        """
        stage, cost = self._stage, self._problem.cost
        fused = self._problem.backward is Backward.FUSED
        waiting = [
            (
                stage[s].pending,
                0 if fused else max(0, stage[s].anywhere - cost.I[s]),
                v.microbatches,
            )
            for v in self._visits[device]
            for s in v.stages
        ]
        ways: list[int] = []
        for visit in self._visits[device]:
            own = stage[visit.first]
            before = visit.chain[: visit.chain.index(visit.first)]
            handed_on = own.up_at + own.gradient
            ways.append(
                max((stage[s].up_at + stage[s].anywhere - handed_on for s in before), default=0)
            )
        return max(0, min(ways) - most_work(waiting, self._room[device]))

    def _idle(self, device: int) -> list[dict[str, int]]:
        """Return what of both idle times adds up.

        Where the F's cannot all be held before the first backward, an F starts with it or after
        it. Then the time before the first backward ends before the time after the last F begins,
        and both count; else only one.
        """
        warm, cool = {WARM: self._warm(device)}, {COOL: self._cool(device)}
        everything = sum(
            visit.microbatches * self._stage[s].kept
            for visit in self._visits[device]
            for s in visit.stages
        )
        room = self._room[device]
        return [{**warm, **cool}] if room is not None and room < everything else [warm, cool]

    def _area(self, device: int) -> list[Terms]:
        """Return Little's law: memory x time held <= room x span.

        On a stage a microbatch holds what F allocates while F runs, what it keeps until the
        backward, and what I and W, or B, hold while they run; each for at least its least time.
        """
        room = self._room[device]
        if room is None or room <= 0:
            return []
        stage, memory, cost = self._stage, self._problem.memory, self._problem.cost
        held = 0
        for visit in self._visits[device]:
            for s in visit.stages:
                each = stage[s]
                between = each.up_at - each.down_at - each.forward
                split = (each.kept + memory.I[s][0]) * cost.I[s]
                split += (each.pending + memory.W[s][0]) * cost.W[s]
                together = cost.B[s] if each.pair is None else min(cost.B[s], each.pair)
                fused = (each.kept + memory.B[s][0]) * together
                match self._problem.backward:
                    case Backward.SPLIT:
                        backward = split
                    case Backward.FUSED:
                        backward = fused
                    case Backward.FREE:
                        backward = min(split, fused)
                forward = memory.F[s][0] * each.forward
                held += visit.microbatches * (forward + each.kept * between + backward)
        return [self._located(device, {"of memory x time within the limit": -(-held // room)})]

    def _between(self, device: int, arguments: Between) -> list[Terms]:
        """Return the arguments by which what runs on a device lies between two ways.

        For the makespan: the ways from and to the first stages of the chains. For a span: those
        from the spanning device's first stage of each chain to another device's stages that come
        no earlier, and back.
        """
        if self._problem.objective is Objective.MAKESPAN:
            visits = self._visits[device]
            return arguments(device, visits, [self._stage[v.first].down_at for v in visits], None)
        found: list[Terms] = []
        outer = {visit.chain: visit.first for visit in self._visits[device]}
        for inner, visits in enumerate(self._visits):
            later: list[Visit] = []
            for visit in visits:
                if visit.chain in outer:
                    start = visit.chain.index(outer[visit.chain])
                    stages = tuple(s for s in visit.stages if s in visit.chain[start:])
                    if stages:
                        later.append(Visit(visit.chain, stages, visit.microbatches))
            if later:
                ways = [
                    self._stage[v.first].down_at - self._stage[outer[v.chain]].down_at
                    for v in later
                ]
                found += arguments(inner, later, ways, outer)
        return found

    def _through(
        self,
        device: int,
        visits: Sequence[Visit],
        ways: Sequence[int],
        outer: Mapping[tuple[int, ...], int] | None,
    ) -> list[Terms]:
        """Return the arguments for some visits of a device, with the ways to their first stages.

        All their F's and backwards, until the gradient is handed on, run from the first of them to
        the end of the last backward, and some W's too. The last backward is of a visit's first
        stage; its way back follows. The idle times lie between as well, where the visits are all
        of the device's.
        """
        stage = self._stage
        ops = [(s, visit.microbatches) for visit in visits for s in visit.stages]
        busy = sum(count * (stage[s].forward + stage[s].gradient) for s, count in ops)
        busy -= self._saving(
            ops, [stage[s].forward for s, _ in ops], [stage[s].gradient for s, _ in ops]
        )
        whole = tuple(visits) == self._visits[device]
        back = [self._way_back(visit, outer) for visit in visits]
        return [
            {
                "way to it": min(ways),
                "forwards and backwards": busy,
                "W's that memory does not let wait": self._forced(device, visits),
                **idle,
                "way back": min(back),
            }
            for idle in (self._idle(device) if whole else [{}])
        ]

    def _tail(
        self,
        device: int,
        visits: Sequence[Visit],
        ways: Sequence[int],
        outer: Mapping[tuple[int, ...], int] | None,
    ) -> list[Terms]:
        """Return the argument by which what follows a device's last F comes after its work.

        The last F is F(z, m), z the last stage of a visit, and in no pair. Once it has ended, m
        goes on, comes back to the visit's first stage, which hands on its gradient, and goes home.
        Before its end ran all the device's work but what is open then: of m the backwards of the
        visit; of others what is open when F(z, m) starts, for nothing ends beside it, and that is
        held beside what m keeps before z and what F(z, m) allocates. Where only the W of a backward
        is open, the I has run. Where the F's cannot all be held before the first backward, an F
        starts with it or later, and the idle time before it lies before that end too. Only for all
        visits of a device, and where it has no pairs.
        """
        stage, problem = self._stage, self._problem
        if tuple(visits) != tuple(self._visits[device]):
            return []
        ops = [(s, visit.microbatches) for visit in visits for s in visit.stages]
        if any(stage[s].pair is not None for s, _ in ops):
            return []
        open_work: list[Item] = []
        for s, count in ops:
            open_work.append((stage[s].kept, stage[s].whole, count))
            if problem.backward is not Backward.FUSED:
                weight = max(0, stage[s].whole - problem.cost.I[s])
                open_work.append((stage[s].pending, weight, count))
        forwards = sum(count * stage[s].forward_alone for s, count in ops)
        found: list[tuple[int, int]] = []
        for visit in visits:
            first, last = stage[visit.first], stage[visit.last]
            room = self._beside_last_forward(device, visit)
            left = sum(stage[s].whole for s in visit.stages) + most_work(open_work, room)
            home = first.up_at + first.gradient - last.down_at - last.forward
            before = max(forwards, self._work(device) - left)
            found.append((before, home + self._way_back(visit, outer)))
        before, behind = min(found, key=sum)
        held = sum(count * stage[s].kept for s, count in ops)
        room = self._room[device]
        warm = {WARM: self._warm(device)} if room is not None and room < held else {}
        return [
            {
                "way to it": min(ways),
                **warm,
                "work until its last forward ends": before,
                "way on, back and home": behind,
            }
        ]

    def _forced(self, device: int, visits: Sequence[Visit]) -> int:
        """Return the time of the W's that run before the last backward of these visits starts.

        When it starts, every other I of them has run, and each W that has not is pending; so are
        held what these hold, what the last backward's microbatch kept, and what its I allocates.
        Its own W comes later as well.
        """
        room, stage = self._room[device], self._stage
        if room is None:
            return 0
        firsts = [visit.first for visit in visits]
        room -= min(stage[s].kept + self._problem.memory.I[s][0] for s in firsts)
        weights = [
            (stage[s].pending, stage[s].weight, visit.microbatches)
            for visit in visits
            for s in visit.stages
        ]
        everything = sum(ticks * count for _, ticks, count in weights)
        own = max(stage[s].weight for s in firsts)
        return max(0, everything - own - most_work(weights, room))

    def _way_back(self, visit: Visit, outer: Mapping[tuple[int, ...], int] | None) -> int:
        """Return the least time from the end of the visit's last backward to what must follow it.

        That is the backward, and the W, of one of the stages before it or of its own: of the
        spanning device's first stage, or of whichever ends last.
        """
        stage = self._stage
        own = stage[visit.first]
        if outer is None:
            targets = visit.chain[: visit.chain.index(visit.first) + 1]
        else:
            targets = (outer[visit.chain],)
        return max(
            stage[s].up_at + stage[s].gradient + stage[s].weight - own.up_at - own.gradient
            for s in targets
        )
