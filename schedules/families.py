"""Published schedule families by name, as pure functions from a problem to a schedule.

A family is an order of ops: rows without starts, which ``simulate`` times. Every family takes one
problem, refuses what it cannot place with a ValueError that names an accepted value, and leaves
the problem's memory limit to ``verify``.

>>> from bubbleproof.schedules.problem import Problem
>>> problem = Problem(devices=2, microbatches=2, cost={"F": 1, "I": 1, "W": 1}, backward="fused")
>>> print(one_f_one_b(problem))
0F0 0F1 0B0 0B1
1F0 1B0 1F1 1B1
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import TypeAlias

from bubbleproof.schedules.families_linear import gpipe_row, one_f_one_b_row, zero_bubble_row
from bubbleproof.schedules.families_loop import group_size, interleaved_row, looped_bfs_row
from bubbleproof.schedules.families_rows import (
    Family,
    Form,
    require_placement,
    require_split,
    written,
)
from bubbleproof.schedules.placement import linear, loop
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Schedule

__all__ = [
    "Family",
    "Form",
    "build",
    "describe",
    "gpipe",
    "interleaved_1f1b",
    "looped_bfs",
    "names",
    "one_f_one_b",
    "zb_h1",
    "zb_h2",
]

Builder: TypeAlias = Callable[[Problem], Schedule]


def names() -> tuple[str, ...]:
    """Return the names of all families."""
    return tuple(_FAMILIES)


def describe(name: str) -> Family:
    """Return what there is to know about a family.

    Raises
    ------
    ValueError
        If the name is unknown, with the closest one in the message.
    """
    return _FAMILIES[_known(name)][0]


def build(name: str, problem: Problem) -> Schedule:
    """Return the schedule of a family, by name.

    Raises
    ------
    ValueError
        If the name is unknown, with the closest one in the message, or if the family refuses the
        problem.
    """
    return _FAMILIES[_known(name)][1](problem)


def gpipe(problem: Problem) -> Schedule:
    """GPipe: all forwards, then all backwards.

    Placement linear; any p and n. Bubble (p-1)(F+B) per device, n activations on each
    (Huang et al., arXiv 1811.06965, sec. 2.3).

    Raises
    ------
    ValueError
        If the placement is another one.
    """
    p, n = _linear(problem, "gpipe")
    return written(problem, "gpipe", [gpipe_row(s, n) for s in range(p)])


def one_f_one_b(problem: Problem) -> Schedule:
    """1F1B, also called PipeDream-Flush: a backward as soon as there is one.

    Placement linear; any p and n. Bubble (p-1)(F+B) per device, min(n, p-s) activations on
    stage s (Narayanan et al., arXiv 2006.09503, sec. 3.2).

    Raises
    ------
    ValueError
        If the placement is another one.
    """
    p, n = _linear(problem, "one_f_one_b")
    return written(problem, "one_f_one_b", [one_f_one_b_row(s, p, n) for s in range(p)])


def interleaved_1f1b(problem: Problem) -> Schedule:
    """Interleaved 1F1B: each device holds V chunks, and groups of microbatches take turns on them.

    Placement loop:V with any V; n a multiple of max(1, n div p), which is torch's rule: the
    microbatches go in n div p equal groups. Where n is a multiple of p, Megatron's rule, the
    groups are of p and the order is the paper's. Bubble (p-1)(F+B)/V per device then, F and B
    being a device's whole share (Narayanan et al., arXiv 2104.04473, sec. 2.2).

    Raises
    ------
    ValueError
        If the placement is another one, or n does not go in equal groups.
    """
    p, chunks, n = _loop(problem, "interleaved_1f1b")
    group = group_size(p, n)
    if group is None:
        groups = n // p
        raise ValueError(
            f"interleaved_1f1b: microbatches is {n}, but with devices = {p} it must be a multiple "
            f"of microbatches div devices = {groups}; {n - n % p} is accepted"
        )
    rows = [interleaved_row(device, p, chunks, n, group) for device in range(p)]
    return written(problem, "interleaved_1f1b", rows)


def looped_bfs(problem: Problem) -> Schedule:
    """Breadth-first: all microbatches pass a chunk before the first passes the next.

    Placement loop:V with any V; any p and n. Bubble (p-1)(F+B)/V per device where n >= p, with
    nV activations of a chunk on each (Lamy-Poirier, arXiv 2211.05953, sec. 4).

    Raises
    ------
    ValueError
        If the placement is another one.
    """
    p, chunks, n = _loop(problem, "looped_bfs")
    rows = [looped_bfs_row(device, p, chunks, n) for device in range(p)]
    return written(problem, "looped_bfs", rows)


def zb_h1(problem: Problem) -> Schedule:
    """ZB-H1: 1F1B whose W's are put off as far as the memory of 1F1B's first device allows.

    Placement linear; any p and n; I and W. On stage s each W runs s microbatches after its I, so
    that every device holds p activations. Bubble (p-1)(F+I-W) per device (Qi et al.,
    arXiv 2401.10241, sec. 2.1).

    Raises
    ------
    ValueError
        If the placement is another one, or the problem's backward is fused.
    """
    require_split(problem, "zb_h1")
    p, n = _linear(problem, "zb_h1")
    rows = [zero_bubble_row(s, n, ahead=p - 1 - s, delay=s) for s in range(p)]
    return written(problem, "zb_h1", rows)


def zb_h2(problem: Problem) -> Schedule:
    """ZB-H2: twice the forwards of ZB-H1 before the first backward, which fills the bubble.

    Placement linear; any p and n; I and W. Every device holds 2p-1 activations. Bubble
    (p-1)(F+I-2W) per device, 0 at F = I = W, in the span of a device (Qi et al.,
    arXiv 2401.10241, sec. 2.2).

    Raises
    ------
    ValueError
        If the placement is another one, or the problem's backward is fused.
    """
    require_split(problem, "zb_h2")
    p, n = _linear(problem, "zb_h2")
    rows = [zero_bubble_row(s, n, ahead=2 * (p - 1 - s), delay=2 * s) for s in range(p)]
    return written(problem, "zb_h2", rows)


def _linear(problem: Problem, name: str) -> tuple[int, int]:
    require_placement(problem, name, linear(problem.devices), "linear")
    return problem.devices, problem.total_microbatches


def _loop(problem: Problem, name: str) -> tuple[int, int, int]:
    chunks = max(1, problem.stages // problem.devices)
    require_placement(problem, name, loop(problem.devices, chunks), "loop:V")
    return problem.devices, chunks, problem.total_microbatches


def _known(name: str) -> str:
    if name in _FAMILIES:
        return name
    close = get_close_matches(name, _FAMILIES, n=1, cutoff=0.0)
    raise ValueError(f"family: {name!a} is unknown; did you mean {close[0]}?")


_FAMILIES: Mapping[str, tuple[Family, Builder]] = MappingProxyType(
    {
        family.name: (family, builder)
        for family, builder in (
            (
                Family(
                    name="gpipe",
                    title="GPipe",
                    placement="linear",
                    condition="",
                    source="arXiv 1811.06965, sec. 2.3",
                    form=Form.FUSED,
                ),
                gpipe,
            ),
            (
                Family(
                    name="one_f_one_b",
                    title="1F1B",
                    placement="linear",
                    condition="",
                    source="arXiv 2006.09503, sec. 3.2",
                    form=Form.FUSED,
                ),
                one_f_one_b,
            ),
            (
                Family(
                    name="interleaved_1f1b",
                    title="Interleaved 1F1B",
                    placement="loop:V",
                    condition="n a multiple of max(1, n div p)",
                    source="arXiv 2104.04473, sec. 2.2",
                    form=Form.FUSED,
                ),
                interleaved_1f1b,
            ),
            (
                Family(
                    name="looped_bfs",
                    title="Looped breadth-first",
                    placement="loop:V",
                    condition="",
                    source="arXiv 2211.05953, sec. 4",
                    form=Form.FUSED,
                ),
                looped_bfs,
            ),
            (
                Family(
                    name="zb_h1",
                    title="ZB-H1",
                    placement="linear",
                    condition="",
                    source="arXiv 2401.10241, sec. 2.1",
                    form=Form.SPLIT,
                ),
                zb_h1,
            ),
            (
                Family(
                    name="zb_h2",
                    title="ZB-H2",
                    placement="linear",
                    condition="",
                    source="arXiv 2401.10241, sec. 2.2",
                    form=Form.SPLIT,
                ),
                zb_h2,
            ),
        )
    }
)
