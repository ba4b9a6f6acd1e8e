"""The small vocabulary of files: their fields, numbers, lists for each stage, names."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from difflib import get_close_matches
from enum import StrEnum
from fractions import Fraction
from typing import TypeAlias, TypeGuard, TypeVar

from bubbleproof.schedules.quantity import decimal_number, exact, shown

Words: TypeAlias = Mapping[str, object]
"""An object of a file."""

Amount: TypeAlias = int | Decimal
"""A number of a file."""

_PLAIN_WHOLE = re.compile(r" *[0-9]{1,15}(\.0*)? *", re.ASCII)

_KINDS = {
    "problem": "a problem, {not_this}; solve, family and compare take it",
    "schedule": "a schedule, {not_this}; verify, show and export take it",
    "program": "a program, {not_this}; verify, repair, show and export take it",
    "streams": "a schedule of components, {not_this}; verify takes it",
    "periodic": "a schedule for every n, {not_this}; verify --all-n takes it",
    "periodic-program": "a program for every n, {not_this}; verify --all-n takes it",
}
"""What each kind of file is, and who takes it."""

_Choice = TypeVar("_Choice", bound=StrEnum)


def per_stage(value: object, replica_of: Sequence[int], where: str) -> tuple[Fraction, ...]:
    """Read one number for all stages, or a list with one for each (replicas may be left out)."""
    if not is_list(value):
        return (exact(value, where),) * len(replica_of)
    items = spread(value, replica_of, where)
    return tuple(exact(item, f"{where}[{stage}]") for stage, item in enumerate(items))


def spread(value: Sequence[object], replica_of: Sequence[int], where: str) -> list[object]:
    """Give each stage its item: of a list for all stages, or for all that are no replicas."""
    stages = len(replica_of)
    own = [stage for stage in range(stages) if replica_of[stage] == stage]
    if len(value) == stages:
        return list(value)
    if len(value) == len(own):
        item = dict(zip(own, value, strict=True))
        return [item[original] for original in replica_of]
    raise ValueError(
        f"{where}: {len(value)} items, but the placement has {stages} stages; give one number, or "
        f"{stages} of them" + (f", or {len(own)} for the stages of one copy" * (len(own) < stages))
    )


def per_device(value: object, devices: int, where: str) -> tuple[Fraction | None, ...]:
    """Read one number for all devices, or a list with one, or None, for each."""
    if value is None:
        return (None,) * devices
    if not is_list(value):
        return (exact(value, where),) * devices
    if len(value) != devices:
        raise ValueError(
            f"{where}: {len(value)} items for {devices} devices; "
            f"give one number, or {devices} of them"
        )
    return tuple(
        None if item is None else exact(item, f"{where}[{device}]")
        for device, item in enumerate(value)
    )


def choice(kind: type[_Choice], value: object, where: str) -> _Choice:
    """Read one of an enumeration's values."""
    try:
        return kind(value)
    except ValueError:
        accepted = ", ".join(f'"{choice.value}"' for choice in kind)
        raise ValueError(f"{where}: {shown(value)} is unknown; accepted are {accepted}") from None


def count(value: object, where: str, least: int, most: int) -> int:
    """Read a whole number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(
            f"{where}: {shown(value)} is not a whole number; "
            f"write one, as {whole_example(value, least, most)}"
        )
    if not least <= value <= most:
        raise ValueError(f"{where}: {shown(value)} is out of range; {least}..{most} is accepted")
    return value


def whole_example(value: object, least: int, most: int) -> int:
    """Return the whole number that a value probably means, as 16.0 and "16" do, else any."""
    meant = Fraction(least or 1)
    if isinstance(value, str) and _PLAIN_WHOLE.fullmatch(value):
        meant = Fraction(value)
    elif not isinstance(value, str | bool):
        with suppress(ValueError):
            meant = exact(value, "")
    return int(meant) if meant.denominator == 1 and least <= meant <= most else least or 1


def text(value: object, where: str) -> str:
    """Read a text."""
    if not isinstance(value, str):
        raise ValueError(f'{where}: {shown(value)} is not a text; write one in quotes, as "a"')
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{where}: {shown(value)} has half a character (a lone surrogate)")
    return value


def known(words: Words, accepted: Sequence[str], where: str) -> None:
    """Refuse what is no object or has a word that is not accepted, naming the closest one."""
    if not isinstance(words, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"{where}: an object is expected, not {shown(words)}")
    for word in words:
        if word not in accepted:
            close = get_close_matches(str(word), accepted, n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(
                f"{where}: {shown(word)} is unknown{hint} (accepted: {', '.join(accepted)})"
            )


def fields(words: object, form: str, accepted: Sequence[str], what: str) -> Words:
    """Return the fields of a file of one format.

    Raises
    ------
    ValueError
        If it is no object, its format is missing or another one, or a field is unknown.
    """
    if not is_object(words):
        raise ValueError(f'{what} is an object, as {{"format": "{form}", ...}}, not {shown(words)}')
    if "format" not in words:
        raise ValueError(f'format is missing; {what} has "format": "{form}"')
    if words["format"] != form:
        kind, own = _kind(words["format"]), _kind(form)
        if kind in _KINDS and kind != own:
            raise ValueError(f"this is {_KINDS[kind].format(not_this=f'not {what}')}")
        raise ValueError(
            f'format: {shown(words["format"])} is no format of {what}; "{form}" is accepted'
        )
    known(words, accepted, what)
    return words


def _kind(form: object) -> str:
    """Return what a format is of: ``bubbleproof.schedule/1`` is of a schedule."""
    return form.partition("/")[0].removeprefix("bubbleproof.") if isinstance(form, str) else ""


def amount(ticks: int, per_unit: int, where: str) -> Amount:
    """Return ticks or grains in the user's unit, exactly.

    Raises
    ------
    ValueError
        If the number has no finite decimal text.
    """
    number = Fraction(ticks, per_unit)
    decimal = decimal_number(number)
    if decimal is None:
        raise ValueError(
            f"{where}: {number} has no finite decimal text, and a file keeps decimals only; "
            f"give all numbers of this kind in a unit {number.denominator} times smaller"
        )
    return decimal


def whole_ticks(value: object, per_unit: int, where: str) -> int:
    """Read a time in the user's unit that is a whole number of ticks."""
    ticks = exact(value, where) * per_unit
    if ticks.denominator != 1:
        raise ValueError(
            f"{where}: {shown(value)} is no whole number of ticks ({per_unit} per unit)"
        )
    return ticks.numerator


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    """Whether a value is a list, and not a text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def is_object(value: object) -> TypeGuard[Words]:
    """Whether a value is an object of a file."""
    return isinstance(value, Mapping)
