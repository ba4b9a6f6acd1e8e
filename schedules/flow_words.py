"""What proves a bound by flows as the words of a schedule's file, and back, without loss.

Only ``unit`` is in the user's unit of time; all other times are multiples of it. A run is written
as ``[first instant, last instant, number]``.
"""

from bubbleproof.schedules.placement import MOST_STAGES
from bubbleproof.schedules.quantity import LARGEST, shown
from bubbleproof.schedules.schedule import Flow, Run
from bubbleproof.schedules.words import (
    amount,
    count,
    is_list,
    is_object,
    known,
    text,
    whole_ticks,
)

_NEEDED = ("devices", "unit", "horizon", "instants", "multipliers")
_LARGEST_MULTIPLIER = 10**40


def words_of_flow(flow: Flow, per_unit: int) -> dict[str, object]:
    """Return what a file says of what proves a bound by flows."""
    return {
        **({} if flow.target is None else {"target": flow.target}),
        "devices": list(flow.devices),
        "unit": amount(flow.unit, per_unit, "flow.unit"),
        "horizon": flow.horizon,
        "instants": list(map(list, flow.instants)),
        "multipliers": {law: list(map(list, runs)) for law, runs in flow.multipliers.items()},
    }


def flow_of_words(words: object, per_unit: int, where: str) -> Flow | None:
    """Read what proves a bound by flows; None where the file has nothing.

    Raises
    ------
    ValueError
        If a field is missing or unknown, or has something else than whole numbers of its range;
        the message has the field.
    """
    if words is None:
        return None
    if not is_object(words):
        raise ValueError(f"{where}: an object is expected, not {shown(words)}")
    known(words, ("target", *_NEEDED), where)
    for name in _NEEDED:
        if words.get(name) is None:
            raise ValueError(f"{where}.{name} is missing")
    target, devices, multipliers = (words.get(n) for n in ("target", "devices", "multipliers"))
    if not is_list(devices):
        raise ValueError(f"{where}.devices: a list of devices is expected, not {shown(devices)}")
    if not is_object(multipliers):
        raise ValueError(
            f"{where}.multipliers: an object with runs for each law is expected, as "
            f'{{"exclusive 0": [[0, 7, 3]]}}, not {shown(multipliers)}'
        )
    return Flow(
        target=None if target is None else count(target, f"{where}.target", 0, MOST_STAGES - 1),
        devices=tuple(
            count(device, f"{where}.devices[{i}]", 0, MOST_STAGES - 1)
            for i, device in enumerate(devices)
        ),
        unit=whole_ticks(words["unit"], per_unit, f"{where}.unit"),
        horizon=count(words["horizon"], f"{where}.horizon", 0, LARGEST - 1),
        instants=_runs(words["instants"], f"{where}.instants", LARGEST - 1),
        multipliers={
            text(law, f"{where}.multipliers"): _runs(
                runs, f"{where}.multipliers[{shown(law)}]", _LARGEST_MULTIPLIER
            )
            for law, runs in multipliers.items()
        },
    )


def _runs(value: object, where: str, most: int) -> tuple[Run, ...]:
    """Read runs whose numbers are at most ``most``."""
    if not is_list(value):
        raise ValueError(f"{where}: a list of runs is expected, not {shown(value)}")
    return tuple(_run(item, f"{where}[{i}]", most) for i, item in enumerate(value))


def _run(value: object, where: str, most: int) -> Run:
    if not is_list(value) or len(value) != 3:
        raise ValueError(
            f"{where}: [first instant, last instant, number] is expected, not {shown(value)}"
        )
    first, last, number = value
    return (
        count(first, f"{where}[0]", -1, LARGEST - 1),
        count(last, f"{where}[1]", -1, LARGEST - 1),
        count(number, f"{where}[2]", 0, most),
    )
