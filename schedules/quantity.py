"""Exact numbers: decimal text to whole ticks and back, never through binary fractions."""

from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from math import lcm
from numbers import Integral, Real
from typing import TypeAlias

Number: TypeAlias = int | float
"""A reported amount in the user's unit: an int where it is whole, else the nearest float."""

FINEST = 10**12
LARGEST = 2**53
_LARGEST_EXPONENT = 40


def exact(value: object, where: str) -> Fraction:
    """Return the number that the user wrote: 0.29 is 29/100.

    Parameters
    ----------
    value
        An int, Decimal, Fraction, or a float, which stands for its shortest decimal text.
    where
        The place in the input, for the message.

    Raises
    ------
    ValueError
        If the value is not a finite number, or finer or larger than can be kept exactly.
    """
    match value:
        case bool() | str():
            number = None
        case Integral():
            number = Fraction(int(value))
        case Fraction():
            number = value
        case Decimal():
            number = _of_decimal(value)
        case Real():
            number = _of_decimal(Decimal(repr(float(value))))
        case _:
            number = None
    if number is None:
        raise ValueError(f"{where}: {shown(value)} is not a finite number; write one, as 12 or 0.5")
    if abs(number) >= LARGEST or number.denominator > FINEST:
        raise ValueError(
            f"{where}: {shown(value)} cannot be kept exactly; "
            f"numbers below 2^53 with at most 12 decimals are"
        )
    return number


def common_scale(numbers: Iterable[Fraction], where: str) -> int:
    """Return the least number of ticks per unit that makes all numbers whole.

    Raises
    ------
    ValueError
        If that takes more than 10^12 ticks per unit.
    """
    scale = 1
    for number in numbers:
        scale = lcm(scale, number.denominator)
        if scale > FINEST:
            raise ValueError(
                f"{where}: the numbers need more than 10^12 ticks per unit to be exact; "
                "round them to at most 12 decimals"
            )
    return scale


def in_unit(ticks: int, per_unit: int) -> Number:
    """Return ticks in the user's unit: 86 at 100 per unit is 0.86, 200 is 2."""
    return ticks // per_unit if ticks % per_unit == 0 else float(Fraction(ticks, per_unit))


def decimal_number(number: Fraction) -> int | Decimal | None:
    """Return the same number as int or Decimal; None where no decimal is exact, as for 1/3."""
    if number.denominator == 1:
        return number.numerator
    decimals = 1
    while 10**decimals % number.denominator:
        decimals += 1
        if decimals > number.denominator.bit_length():
            return None
    digits = abs(number.numerator) * 10**decimals // number.denominator
    # Built from its parts: arithmetic on Decimal rounds to the context's precision.
    return Decimal((int(number < 0), tuple(map(int, str(digits))), -decimals))


def _of_decimal(value: Decimal) -> Fraction | None:
    if not value.is_finite():
        return None
    if value and abs(value.adjusted()) > _LARGEST_EXPONENT:
        # Its size is all that matters for the refusal; 1e999999999 would not fit in memory.
        return Fraction(10) ** (_LARGEST_EXPONENT if value.adjusted() > 0 else -_LARGEST_EXPONENT)
    return Fraction(value)


def shown(value: object) -> str:
    """Return a value in ASCII for a message: on one line, at most 40 characters, never failing."""
    try:
        text = str(value) if isinstance(value, Decimal) else ascii(value)
    except (ValueError, RecursionError):
        # Python refuses to print an int of thousands of digits, or a list within a thousand lists.
        return "a huge number" if isinstance(value, int) else "a huge value"
    return text if len(text) <= 40 else text[:37] + "..."
