"""A problem as the words of a file (``bubbleproof.problem/1``), and back, without loss."""

from collections.abc import Sequence

from bubbleproof.schedules.components import Components, Part
from bubbleproof.schedules.cost import Backward, Cost
from bubbleproof.schedules.memory import Change, Memory
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.placement import (
    MOST_STAGES,
    NAMES,
    Placement,
    PlacementWords,
    parse_placement,
    placement_words,
)
from bubbleproof.schedules.problem import MOST_OPS, Objective, Problem, dealt_out
from bubbleproof.schedules.quantity import shown
from bubbleproof.schedules.words import (
    Words,
    amount,
    choice,
    count,
    fields,
    is_list,
    is_object,
    text,
)

PROBLEM_FORMAT = "bubbleproof.problem/1"

_SPLIT = (OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT)
_FIELDS = (
    "format",
    "name",
    "devices",
    "placement",
    "microbatches",
    "time_unit",
    "cost",
    "memory",
    "backward",
    "objective",
)


def problem_of_words(words: object) -> Problem:
    """Read a problem from what a file says.

    Raises
    ------
    ValueError
        If the format is another one or anything does not fit together; the message has the field.
    """
    given = fields(words, PROBLEM_FORMAT, _FIELDS, "a problem")
    for name, example in (("devices", "4"), ("microbatches", "8"), ("cost", '{"F": 1, ...}')):
        if given.get(name) is None:
            raise ValueError(f"{name} is missing; give it, as {example}")
    memory = given.get("memory")
    return Problem(
        devices=count(given["devices"], "devices", 1, MOST_STAGES),
        placement=_placement_given(given.get("placement", "linear")),
        microbatches=_microbatches_given(given["microbatches"]),
        cost=_object(given["cost"], "cost"),
        memory=None if memory is None else _object(memory, "memory"),
        backward=choice(Backward, given.get("backward", Backward.SPLIT), "backward"),
        objective=choice(Objective, given.get("objective", Objective.MAKESPAN), "objective"),
        name=text(given.get("name", ""), "name"),
        time_unit=text(given.get("time_unit", ""), "time_unit"),
    )


def problem_within(given: Words) -> Problem | None:
    """Read the problem that another file has in it; None where it has none.

    Raises
    ------
    ValueError
        As ``problem_of_words``, and that it is in the problem.
    """
    words = given.get("problem")
    if words is None:
        return None
    try:
        return problem_of_words(words)
    except ValueError as error:
        raise ValueError(f"in problem: {error}") from None


def words_of_problem(problem: Problem) -> dict[str, object]:
    """Return what a file says of a problem: one number where all stages agree, else a list.

    Raises
    ------
    ValueError
        If a number has no finite decimal text, or the placement no words.
    """
    words: dict[str, object] = {"format": PROBLEM_FORMAT}
    if problem.name:
        words["name"] = problem.name
    words["devices"] = problem.devices
    words["placement"] = _placement(problem.placement)
    words["microbatches"] = _microbatches(problem.microbatches)
    if problem.time_unit:
        words["time_unit"] = problem.time_unit
    words["cost"] = _cost(problem.cost, problem.backward)
    words["memory"] = _memory(problem.memory, problem.backward, problem.stages)
    words["backward"] = problem.backward.value
    words["objective"] = problem.objective.value
    return words


def _placement_given(value: object) -> PlacementWords:
    if isinstance(value, str) or is_object(value):
        return value
    raise ValueError(
        f"placement: a name ({NAMES}) or an object with device_of_stage is expected, "
        f"not {shown(value)}"
    )


def _microbatches_given(value: object) -> int | list[int]:
    if is_list(value):
        return [count(item, f"microbatches[{i}]", 0, MOST_OPS) for i, item in enumerate(value)]
    return count(value, "microbatches", 1, MOST_OPS)


def _object(value: object, where: str) -> Words:
    if not is_object(value):
        raise ValueError(f"{where}: an object is expected, not {shown(value)}")
    return value


def _placement(placement: Placement) -> object:
    words = placement_words(placement)
    if parse_placement(words, placement.devices) != placement:
        raise ValueError(
            f"placement: {placement} has no words in a file; "
            "a named placement, or device_of_stage and chains without replicas, has"
        )
    return words


def _microbatches(each: tuple[int, ...]) -> object:
    total = sum(each)
    return total if each == dealt_out(total, len(each)) else list(each)


def _cost(cost: Cost, backward: Backward) -> dict[str, object]:
    def times(ticks: Sequence[int | None], where: str) -> object:
        return _compact(
            [None if t is None else amount(t, cost.ticks_per_unit, f"cost.{where}") for t in ticks]
        )

    whole = backward is Backward.FUSED and cost.I == cost.B and not any(cost.W)
    kinds = [OpKind.FORWARD, *([OpKind.BACKWARD] if whole else _SPLIT)]
    both = tuple(i + w for i, w in zip(cost.I, cost.W, strict=True))
    if not whole and both != cost.B:
        kinds.append(OpKind.BACKWARD)
    words = {kind.value: times(cost.of(kind), kind.value) for kind in kinds}
    if any(ticks is not None for ticks in cost.pair):
        words["pair"] = times(cost.pair, "pair")
    words["transfer"] = (
        amount(cost.transfer, cost.ticks_per_unit, "cost.transfer")
        if isinstance(cost.transfer, int)
        else [
            [
                0 if source == target else amount(t, cost.ticks_per_unit, "cost.transfer")
                for target, t in enumerate(row)
            ]
            for source, row in enumerate(cost.transfer)
        ]
    )
    if cost.components is not None:
        words["components"] = _components(cost.components, cost.ticks_per_unit)
    return words


def _components(components: Components, ticks_per_unit: int) -> dict[str, object]:
    words: dict[str, object] = {}
    if set(components.layers) != {1}:
        words["layers"] = _compact(list(components.layers))
    for part in Part:
        times = components.of(part)
        if any(times):
            where = f"cost.components.{part}"
            words[part.value] = _compact([amount(t, ticks_per_unit, where) for t in times])
    return words


def _memory(memory: Memory, backward: Backward, stages: int) -> dict[str, object]:
    def amounts(grains: Sequence[int | None], where: str) -> object:
        scale = memory.grains_per_unit
        return _compact(
            [None if g is None else amount(g, scale, f"memory.{where}") for g in grains]
        )

    def change(grains: Change, where: str) -> object:
        allocate, free = (amount(g, memory.grains_per_unit, f"memory.{where}") for g in grains)
        return [allocate, free] if allocate and free else allocate or -free

    def changes(kind: OpKind) -> object:
        each = [change(grains, kind.value) for grains in memory.of(kind)]
        # Two numbers on two stages are one for each, so [allocate, free] needs a list around it.
        return each if stages == 2 and is_list(each[0]) else _compact(each)

    whole = (
        backward is Backward.FUSED
        and memory.I == memory.B
        and not any(any(change) for change in memory.W)
    )
    kinds = [OpKind.FORWARD, *([OpKind.BACKWARD] if whole else _SPLIT)]
    both = tuple((i[0] + w[0], i[1] + w[1]) for i, w in zip(memory.I, memory.W, strict=True))
    if not whole and both != memory.B:
        kinds.append(OpKind.BACKWARD)
    words: dict[str, object] = {"unit": memory.unit} if memory.unit else {}
    words |= {kind.value: changes(kind) for kind in kinds}
    if any(memory.static):
        words["static"] = amounts(memory.static, "static")
    if any(grains is not None for grains in memory.limit):
        words["limit"] = amounts(memory.limit, "limit")
    return words


def _compact(items: Sequence[object]) -> object:
    return items[0] if all(item == items[0] for item in items) else list(items)
