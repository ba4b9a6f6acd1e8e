"""Versions of torch, and the first that knows each word of a schedule or program."""

import re
from collections.abc import Iterator
from typing import TypeAlias

from bubbleproof.schedules.program import ActionKind, Program
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.verify.findings import finding, first_action, first_pair
from bubbleproof.verify.report import Violation

Version: TypeAlias = tuple[int, int]
"""Major and minor."""


def read_version(text: str) -> Version:
    """Read major and minor of a version of torch, as ``2.10`` or ``2.10.1+cpu``.

    Raises
    ------
    ValueError
        If it is none.
    """
    match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})(?![0-9])", text)
    if match is None:
        raise ValueError(f"{text[:40]!a} is no version of torch; write one as 2.10")
    return int(match[1]), int(match[2])


def words_needed(plan: Schedule | Program) -> Iterator[tuple[Version, Violation]]:
    """Say which words an older torch does not know, and which version does."""
    pair = first_pair(plan)
    if pair is not None:
        device, position, step = pair
        yield (
            (2, 9),
            finding(
                "OVERLAP_F_B needs torch 2.9 or newer; for an older one solve without pairs",
                device,
                position,
                (step,),
            ),
        )
    reduction = first_action(plan, ActionKind.REDUCE_GRAD)
    if reduction is not None:
        device, position, action = reduction
        yield (
            (2, 10),
            finding(
                "REDUCE_GRAD needs torch 2.10 or newer; for an older one export to "
                "torch-compute-only, whose reductions torch makes itself",
                device,
                position,
                (action,),
            ),
        )
    if pair is None and reduction is None:
        yield (
            (2, 6),
            finding(
                "F, I, W and B need torch 2.6 or newer; before 2.9 its loader is called "
                "_load_actions"
            ),
        )
