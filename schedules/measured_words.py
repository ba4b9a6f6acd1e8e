"""A measured timeline as the words of a schedule's file, and back, without loss."""

from collections.abc import Sequence

from bubbleproof.schedules.ops import Row
from bubbleproof.schedules.quantity import FINEST, LARGEST, shown
from bubbleproof.schedules.schedule import Measured, Starts
from bubbleproof.schedules.words import count, is_list, is_object, known, text

_FIELDS = ("source", "ticks_per_unit", "starts", "ends")


def words_of_measured(measured: Measured, rows: Sequence[Row]) -> dict[str, object]:
    """Return what a file says of a measured timeline.

    Raises
    ------
    ValueError
        If it has not one start and one later end for each block of the rows.
    """
    _check_shape(measured, rows)
    return {
        **({"source": text(measured.source, "measured.source")} if measured.source else {}),
        "ticks_per_unit": measured.ticks_per_unit,
        "starts": list(map(list, measured.starts)),
        "ends": list(map(list, measured.ends)),
    }


def measured_of_words(words: object, rows: Sequence[Row]) -> Measured | None:
    """Read a measured timeline of a schedule's rows; None where the file has none.

    Raises
    ------
    ValueError
        If it has not one start and one later end, in whole ticks, for each block of the rows; the
        message has the field.
    """
    if words is None:
        return None
    if not is_object(words):
        raise ValueError(
            'measured: an object is expected, as {"ticks_per_unit": 1000, "starts": [[0], [7]], '
            f'"ends": [[5], [9]]}}, not {shown(words)}'
        )
    known(words, _FIELDS, "measured")
    for name in ("ticks_per_unit", "starts", "ends"):
        if words.get(name) is None:
            raise ValueError(f"measured.{name} is missing; a measured timeline needs it")
    measured = Measured(
        starts=_ticks(words["starts"], "measured.starts"),
        ends=_ticks(words["ends"], "measured.ends"),
        ticks_per_unit=count(words["ticks_per_unit"], "measured.ticks_per_unit", 1, FINEST),
        source=text(words.get("source", ""), "measured.source"),
    )
    _check_shape(measured, rows)
    return measured


def _ticks(value: object, where: str) -> Starts:
    if not is_list(value):
        raise ValueError(
            f"{where}: a list of ticks for each device is expected, not {shown(value)}"
        )
    read: list[tuple[int, ...]] = []
    for device, row in enumerate(value):
        if not is_list(row):
            raise ValueError(f"{where}[{device}]: a list of ticks is expected, not {shown(row)}")
        read.append(
            tuple(
                count(item, f"{where}[{device}][{i}]", 0, LARGEST - 1) for i, item in enumerate(row)
            )
        )
    return tuple(read)


def _check_shape(measured: Measured, rows: Sequence[Row]) -> None:
    for name, times in (("starts", measured.starts), ("ends", measured.ends)):
        if len(times) != len(rows):
            raise ValueError(
                f"measured.{name}: {len(times)} lists for {len(rows)} rows; one for each is right"
            )
        for device, (row, each) in enumerate(zip(rows, times, strict=True)):
            if len(row) != len(each):
                raise ValueError(
                    f"measured.{name}[{device}]: {len(each)} times for {len(row)} ops; "
                    "one for each is right"
                )
    for device, (starts, ends) in enumerate(zip(measured.starts, measured.ends, strict=True)):
        for position, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if end < start:
                raise ValueError(
                    f"measured.ends[{device}][{position}]: {end} is before its start, {start}; "
                    "an end is at or after it"
                )
