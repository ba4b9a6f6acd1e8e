"""What proves a bound by flows as the words of a schedule's file, and back, without loss.

Only ``unit`` is in the user's unit of time; all other times are multiples of it. Multipliers are
texts, as ``7: 3 4; 12: 5``: 3 at place 7, 4 at place 8, 5 at place 12.
"""

import re
from collections.abc import Sequence

from bubbleproof.schedules.placement import MOST_STAGES
from bubbleproof.schedules.quantity import LARGEST, shown
from bubbleproof.schedules.schedule import Flow
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
_PART = re.compile(r" *([0-9]{1,9}):((?: +[0-9]{1,40})+) *")


def words_of_flow(flow: Flow, per_unit: int) -> dict[str, object]:
    """Return what a file says of what proves a bound by flows."""
    return {
        **({} if flow.target is None else {"target": flow.target}),
        "devices": list(flow.devices),
        "unit": amount(flow.unit, per_unit, "flow.unit"),
        "horizon": flow.horizon,
        "instants": list(map(list, flow.instants)),
        "multipliers": {law: _text(pairs) for law, pairs in flow.multipliers.items()},
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
    target, multipliers = words.get("target"), words["multipliers"]
    if not is_object(multipliers):
        raise ValueError(
            f"{where}.multipliers: an object with a text for each law is expected, "
            f"not {shown(multipliers)}"
        )
    devices, instants = (_list(words[name], f"{where}.{name}") for name in ("devices", "instants"))
    return Flow(
        target=None if target is None else count(target, f"{where}.target", 0, MOST_STAGES - 1),
        devices=tuple(
            count(device, f"{where}.devices[{i}]", 0, MOST_STAGES - 1)
            for i, device in enumerate(devices)
        ),
        unit=whole_ticks(words["unit"], per_unit, f"{where}.unit"),
        horizon=count(words["horizon"], f"{where}.horizon", 0, LARGEST - 1),
        instants=tuple(_instants(run, f"{where}.instants[{i}]") for i, run in enumerate(instants)),
        multipliers={
            text(law, f"{where}.multipliers"): _pairs(pairs, f"{where}.multipliers[{shown(law)}]")
            for law, pairs in multipliers.items()
        },
    )


def _list(value: object, where: str) -> Sequence[object]:
    if not is_list(value):
        raise ValueError(f"{where}: a list is expected, not {shown(value)}")
    return value


def _instants(value: object, where: str) -> tuple[int, int, int]:
    if not is_list(value) or len(value) != 3:
        raise ValueError(
            f"{where}: the first, the last and the step between are expected, as [0, 90, 3], "
            f"not {shown(value)}"
        )
    first, last, step = (
        count(each, f"{where}[{i}]", 0, LARGEST - 1) for i, each in enumerate(value)
    )
    return first, last, step


def _text(pairs: Sequence[tuple[int, int]]) -> str:
    """Return places with multipliers, those of places that follow each other together."""
    parts: list[str] = []
    following = None
    for place, multiplier in pairs:
        if place != following:
            parts.append(f"; {place}:" if parts else f"{place}:")
        parts.append(f" {multiplier}")
        following = place + 1
    return "".join(parts)


def _pairs(value: object, where: str) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, str):
        raise ValueError(
            f'{where}: a text is expected, as "7: 3 4; 12: 5" for multipliers at places 7, 8 '
            f"and 12, not {shown(value)}"
        )
    pairs: list[tuple[int, int]] = []
    for part in value.split(";"):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(
                f'{where}: {shown(part)} is no place with its multipliers; write them as "7: 3 4"'
            )
        pairs += enumerate(map(int, match[2].split()), int(match[1]))
    return tuple(pairs)
