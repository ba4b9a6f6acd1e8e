"""A scheduling problem: placement, costs, memory and what is asked for.

Simplifications: all microbatches of a chain are alike; a transfer is a pure delay that occupies
no device; one number is the memory of a device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from bubbleproof.schedules.cost import Backward, Cost, read_cost
from bubbleproof.schedules.memory import Change, Memory, read_memory, require_balance
from bubbleproof.schedules.ops import Block, Op, OpKind, Pair
from bubbleproof.schedules.placement import MOST_STAGES, Placement, PlacementWords, parse_placement
from bubbleproof.schedules.quantity import LARGEST, Number, in_unit
from bubbleproof.schedules.words import Words, choice, count, is_list, text

MOST_OPS = 20_000_000
"""The most stages x microbatches of a problem."""


class Objective(StrEnum):
    """What is made least: the end of the last op, or the busiest device's first start to end."""

    MAKESPAN = "makespan"
    SPAN = "span"


@dataclass(frozen=True, slots=True, init=False)
class Problem:
    """Everything that decides which schedules are valid and which is best.

    Parameters
    ----------
    devices
        Number of devices, p.
    placement
        A Placement, or its words in a file: ``"linear"``, ``"loop:2"``, ``"v"``, ``"wave:4"``,
        ``"bidirectional"``, ``{"device_of_stage": [...], "chains": [...]}``.
    microbatches
        How many, dealt out evenly over the chains; or one number for each chain.
    cost
        A Cost, or its words: ``{"F": 10, "I": 12, "W": 8, "B": None, "pair": None,
        "transfer": 1}``. A number stands for every stage (pair: every device).
    memory
        A Memory, or its words: ``{"F": 2, "I": -1, "W": -1, "limit": 8}``. None: one unit per F,
        freed by W or B, and no limit.
    backward, objective
        A Backward and an Objective, or their values.
    name, time_unit
        For reports.

    Raises
    ------
    ValueError
        If anything does not fit together; the message has the field, the value and an accepted one.
    """

    devices: int
    placement: Placement
    microbatches: tuple[int, ...]
    cost: Cost
    memory: Memory
    backward: Backward
    objective: Objective
    name: str
    time_unit: str
    first_microbatch: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """For each chain the global number of its first microbatch; then the number of them all."""

    def __init__(
        self,
        *,
        devices: int,
        placement: Placement | PlacementWords = "linear",
        microbatches: int | Sequence[int],
        cost: Cost | Words,
        memory: Memory | Words | None = None,
        backward: Backward | str = Backward.SPLIT,
        objective: Objective | str = Objective.MAKESPAN,
        name: str = "",
        time_unit: str = "",
    ) -> None:
        def put(attribute: str, value: object) -> None:
            object.__setattr__(self, attribute, value)

        put("name", text(name, "name"))
        put("time_unit", text(time_unit, "time_unit"))
        put("devices", count(devices, "devices", 1, MOST_STAGES))
        if not isinstance(placement, Placement):
            placement = parse_placement(placement, self.devices)
        elif placement.devices != self.devices:
            raise ValueError(
                f"devices: {self.devices}, but the placement has {placement.devices}; "
                "they must be the same"
            )
        put("placement", placement)
        put("microbatches", _each_chain(microbatches, len(placement.chains)))
        firsts = [0]
        for number in self.microbatches:
            firsts.append(firsts[-1] + number)
        put("first_microbatch", tuple(firsts))
        if placement.stages * firsts[-1] > MOST_OPS:
            raise ValueError(
                f"microbatches: {firsts[-1]} on {placement.stages} stages is too large; "
                f"stages x microbatches may be at most {MOST_OPS}"
            )
        put("backward", choice(Backward, backward, "backward"))
        put("objective", choice(Objective, objective, "objective"))
        put("cost", cost if isinstance(cost, Cost) else read_cost(cost, placement, self.backward))
        put(
            "memory",
            memory
            if isinstance(memory, Memory)
            else read_memory({} if memory is None else memory, placement, self.backward),
        )
        _check_sizes(self)

    @property
    def stages(self) -> int:
        """Number of stages, S."""
        return self.placement.stages

    @property
    def total_microbatches(self) -> int:
        """Number of microbatches of all chains, n."""
        return self.first_microbatch[-1]

    def microbatches_of(self, chain: int) -> range:
        """Return the global numbers of a chain's microbatches."""
        return range(self.first_microbatch[chain], self.first_microbatch[chain + 1])

    def microbatches_of_stage(self, stage: int) -> range:
        """Return the global numbers of the microbatches that pass a stage."""
        return self.microbatches_of(self.placement.chain_of_stage[stage])

    def duration(self, block: Block) -> int:
        """Return the ticks that a block takes on its device.

        Raises
        ------
        ValueError
            If the block is a pair and its device allows none.
        """
        if isinstance(block, Op):
            return self.cost.of(block.kind)[block.stage]
        device = self.placement.device_of_stage[block.forward.stage]
        ticks = self.cost.pair[device]
        if ticks is None:
            raise ValueError(f"{block}: cost.pair allows no pair on device {device}")
        return ticks

    def transfer(self, source: int, target: int) -> int:
        """Return the ticks that data takes from one device to another; 0 on the same one."""
        if source == target:
            return 0
        ticks = self.cost.transfer
        return ticks if isinstance(ticks, int) else ticks[source][target]

    def lag(self, stage: int, following: int) -> int:
        """Return the transfer between the devices of two stages: an op's lag behind its input."""
        device_of = self.placement.device_of_stage
        return self.transfer(device_of[stage], device_of[following])

    def change(self, block: Block) -> Change:
        """Return what a block allocates at its start and frees at its end, in grains."""
        if isinstance(block, Pair):
            first, second = self.change(block.forward), self.change(block.backward)
            return first[0] + second[0], first[1] + second[1]
        return self.memory.of(block.kind)[block.stage]

    def static(self, device: int) -> int:
        """Return what a device holds all the time, in grains."""
        return sum(self.memory.static[s] for s in self.placement.stages_of_device[device])

    def time(self, ticks: int) -> Number:
        """Return ticks in the user's unit."""
        return in_unit(ticks, self.cost.ticks_per_unit)

    def amount(self, grains: int) -> Number:
        """Return grains of memory in the user's unit."""
        return in_unit(grains, self.memory.grains_per_unit)

    def warnings(self) -> tuple[str, ...]:
        """Return what is allowed but probably not meant, a sentence each."""
        return tuple(_warnings(self))


def _warnings(problem: Problem) -> Iterator[str]:
    cost = problem.cost
    kinds = [kind for kind in OpKind if problem.backward.allows(kind)]
    for stage in range(problem.stages):
        if not any(cost.of(kind)[stage] for kind in kinds):
            yield (
                f"cost: stage {stage} takes no time at all; an empty stage is allowed, "
                "and the largest load decides the bubble"
            )
    for device, stages in enumerate(problem.placement.stages_of_device):
        if not stages:
            yield f"placement: device {device} holds no stage and stays idle"
    if problem.backward is Backward.SPLIT and any(ticks is not None for ticks in cost.pair):
        yield (
            'cost.pair is not used: a pair\'s backward is one B, which backward "split" excludes; '
            'write "free" or "fused"'
        )
    if problem.backward is Backward.SPLIT:
        memory = problem.memory
        both = tuple(i + w for i, w in zip(cost.I, cost.W, strict=True))
        changes = tuple((i[0] + w[0], i[1] + w[1]) for i, w in zip(memory.I, memory.W, strict=True))
        for where, other in (("cost", both != cost.B), ("memory", changes != memory.B)):
            if other:
                yield (
                    f'{where}.B is not used: backward "split" runs I and W apart; '
                    'write "free" or "fused"'
                )


def require_problem(value: object) -> None:
    """Refuse what is no problem and say where one is.

    Raises
    ------
    TypeError
        With the type that was given.
    """
    if isinstance(value, Problem):
        return
    has_one = isinstance(getattr(value, "problem", None), Problem)
    remedy = "take its .problem" if has_one else "load_problem reads one from a file"
    raise TypeError(f"a Problem is expected, not a {type(value).__name__}; {remedy}")


def dealt_out(microbatches: int, chains: int) -> tuple[int, ...]:
    """Return how many microbatches each chain takes: as many, the first ones what is left over."""
    each, left_over = divmod(microbatches, chains)
    return tuple(each + (chain < left_over) for chain in range(chains))


def _each_chain(value: int | Sequence[int], chains: int) -> tuple[int, ...]:
    if not is_list(value):
        return dealt_out(count(value, "microbatches", 1, MOST_OPS), chains)
    if len(value) != chains:
        raise ValueError(
            f"microbatches: {len(value)} numbers for {chains} chains; "
            f"give one number, or {chains} of them"
        )
    each = tuple(count(item, f"microbatches[{i}]", 0, MOST_OPS) for i, item in enumerate(value))
    if not sum(each):
        raise ValueError("microbatches: 0; at least 1 is needed")
    return each


def _check_sizes(problem: Problem) -> None:
    stages, devices = problem.stages, problem.devices
    sizes = [
        ("cost", [len(problem.cost.of(kind)) for kind in OpKind], stages),
        ("cost.pair", [len(problem.cost.pair)], devices),
        ("memory", [len(problem.memory.of(kind)) for kind in OpKind], stages),
        ("memory.static", [len(problem.memory.static)], stages),
        ("memory.limit", [len(problem.memory.limit)], devices),
    ]
    for where, lengths, right in sizes:
        if set(lengths) != {right}:
            raise ValueError(f"{where}: {min(lengths)} numbers where {right} are needed")
    require_balance(problem.memory, problem.backward)
    cost = problem.cost
    _check_times(cost, devices)
    # A pair may take longer than its two halves, and there are no more pairs than forwards.
    pair = max((ticks for ticks in cost.pair if ticks is not None), default=0)
    longest = max(cost.F) + max(*cost.I, *cost.B) + max(cost.W) + pair
    transfer = cost.transfer if isinstance(cost.transfer, int) else max(map(max, cost.transfer))
    ticks = problem.stages * problem.total_microbatches * (longest + 2 * transfer)
    if ticks >= LARGEST:
        raise ValueError(
            f"cost: in whole ticks ({cost.ticks_per_unit} per unit) the schedule could take 2^53 "
            "or more; give the times with fewer digits"
        )


def _check_times(cost: Cost, devices: int) -> None:
    """Refuse a ready-made cost that no reading of words would make."""
    matrix = ((cost.transfer,),) if isinstance(cost.transfer, int) else cost.transfer
    if matrix is cost.transfer and [len(row) for row in matrix] != [devices] * devices:
        raise ValueError(f"cost.transfer: {devices} x {devices} numbers are needed")
    times = [(f"cost.{kind.value}", ticks) for kind in OpKind for ticks in cost.of(kind)]
    times += [("cost.pair", ticks) for ticks in cost.pair if ticks is not None]
    times += [("cost.transfer", ticks) for row in matrix for ticks in row]
    for where, ticks in times:
        if ticks < 0:
            raise ValueError(f"{where}: {ticks} ticks are negative; a time is 0 or more")
    if cost.ticks_per_unit < 1:
        raise ValueError(f"cost.ticks_per_unit: {cost.ticks_per_unit}; at least 1 is needed")
