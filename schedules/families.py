"""Published schedule families by name, as pure functions from a problem to a schedule.

A family is an order of ops: rows without starts, which ``simulate`` times. Each takes a problem
on its own placement and refuses, with a ValueError that names an accepted value, what it cannot
place. It does not look at costs or memory limits: ``verify`` tells whether the schedule fits.

>>> from bubbleproof.schedules.problem import Problem
>>> problem = Problem(devices=2, microbatches=2, cost={"F": 1, "B": 2}, backward="fused")
>>> print(one_f_one_b(problem))
0F0 0F1 0B0 0B1
1F0 1B0 1F1 1B1
>>> describe("zb_h1").placement
'linear'
"""

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import TypeAlias

from bubbleproof.schedules.families_bidirectional import chimera_row, dualpipe_plan
from bubbleproof.schedules.families_linear import gpipe_row, one_f_one_b_row, zero_bubble_row
from bubbleproof.schedules.families_loop import group_size, interleaved_row, looped_bfs_row
from bubbleproof.schedules.families_rows import (
    Family,
    Form,
    numbered,
    require_even_devices,
    require_placement,
    require_split,
    written,
)
from bubbleproof.schedules.families_v import repeated_rows, v_half_block, v_min_block, zb_v_rows
from bubbleproof.schedules.families_wave import hanayo_rows
from bubbleproof.schedules.placement import bidirectional, linear, loop, v, wave
from bubbleproof.schedules.problem import Problem, require_problem
from bubbleproof.schedules.quantity import shown
from bubbleproof.schedules.schedule import Schedule

__all__ = [
    "Family",
    "Form",
    "build",
    "chimera",
    "describe",
    "dualpipe",
    "dualpipe_v",
    "gpipe",
    "hanayo",
    "interleaved_1f1b",
    "looped_bfs",
    "names",
    "one_f_one_b",
    "v_half",
    "v_min",
    "zb_h1",
    "zb_h2",
    "zb_v",
]

Builder: TypeAlias = Callable[[Problem], Schedule]

_CALLED = {
    "pipedream": "one_f_one_b",
    "pipedreamflush": "one_f_one_b",
    "dapple": "one_f_one_b",
    "interleaved": "interleaved_1f1b",
    "virtualpipeline": "interleaved_1f1b",
    "vpp": "interleaved_1f1b",
    "bfs": "looped_bfs",
    "interleavedgpipe": "looped_bfs",
    "zerobubble": "zb_h1",
    "zbvzerobubble": "zb_v",
    "wave": "hanayo",
    "bidirectional": "chimera",
}
"""What papers and frameworks call families besides their names and titles here."""

_FAMILIES: dict[str, tuple[Family, Builder]] = {}


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
    return _find(name)[0]


def build(name: str, problem: Problem) -> Schedule:
    """Return the schedule of a family, by name.

    Raises
    ------
    ValueError
        If the name is unknown, with the closest one in the message, or if the family refuses the
        problem.
    """
    return _find(name)[1](problem)


def _find(name: str) -> tuple[Family, Builder]:
    found = _FAMILIES.get(name)
    if found is None:
        raise ValueError(
            f"family: {shown(name)} is unknown; did you mean {_closest(name[:40])}? "
            f"(accepted: {', '.join(_FAMILIES)})"
        )
    return found


def _closest(name: str) -> str:
    """Return the family that is most likely meant: by name, by title, or as others call it."""
    known = {_letters(name): name for name in _FAMILIES}
    known |= {_letters(family.title): family.name for family, _ in _FAMILIES.values()}
    known |= _CALLED
    meant = _letters(name).removeprefix("schedule")
    return known[get_close_matches(meant, known, n=1, cutoff=0.0)[0]]


def _letters(name: str) -> str:
    """Return a name without what people write in different ways."""
    return "".join(filter(str.isalnum, name.lower()))


def _family(
    *,
    title: str,
    placement: str,
    source: str,
    form: Form,
    condition: str = "",
    copies: int = 1,
) -> Callable[[Builder], Builder]:
    """Put a family on the list under its function's name."""

    def register(builder: Builder) -> Builder:
        name = builder.__name__
        family = Family(name, title, placement, condition, source, form, copies)

        @wraps(builder)
        def checked(problem: Problem) -> Schedule:
            require_problem(problem)
            return builder(problem)

        _FAMILIES[name] = (family, checked)
        return checked

    return register


@_family(title="GPipe", placement="linear", source="arXiv 1811.06965, sec. 2.3", form=Form.FUSED)
def gpipe(problem: Problem) -> Schedule:
    """GPipe: all forwards, then all backwards.

    Placement linear; any p and n. Bubble (p-1)(F+B) per device; every device holds n activations
    (Huang et al., arXiv 1811.06965, sec. 2.3).

    Raises
    ------
    ValueError
        If the placement is another one.
    """
    p, n = _linear(problem, "gpipe")
    return written(problem, "gpipe", [gpipe_row(s, n) for s in range(p)])


@_family(title="1F1B", placement="linear", source="arXiv 2006.09503, sec. 3.2", form=Form.FUSED)
def one_f_one_b(problem: Problem) -> Schedule:
    """1F1B, also called PipeDream-Flush: a backward as soon as there is one.

    Placement linear; any p and n. Bubble (p-1)(F+B) per device; stage s holds min(n, p-s)
    activations (Narayanan et al., arXiv 2006.09503, sec. 3.2).

    Raises
    ------
    ValueError
        If the placement is another one.
    """
    p, n = _linear(problem, "one_f_one_b")
    return written(problem, "one_f_one_b", [one_f_one_b_row(s, p, n) for s in range(p)])


@_family(
    title="Interleaved 1F1B",
    placement="loop:V",
    source="arXiv 2104.04473, sec. 2.2",
    form=Form.FUSED,
    condition="n a multiple of max(1, n div p)",
)
def interleaved_1f1b(problem: Problem) -> Schedule:
    """Interleaved 1F1B: each device holds V chunks, and groups of microbatches take turns on them.

    Placement loop:V with any V; n a multiple of max(1, n div p), which is torch's rule: the
    microbatches go in n div p equal groups. Where n is a multiple of p, which is Megatron's rule,
    the groups are of p and the order is the paper's, with a bubble of (p-1)(F+B)/V per device, F
    and B being a device's whole share. One chunk is 1F1B (Narayanan et al., arXiv 2104.04473,
    sec. 2.2).

    Raises
    ------
    ValueError
        If the placement is another one, or the microbatches do not go in equal groups.
    """
    p, chunks, n = _loop(problem, "interleaved_1f1b")
    group = group_size(p, n)
    if group is None:
        raise ValueError(
            f"interleaved_1f1b: microbatches is {n}, but with devices = {p} it must be a multiple "
            f"of {n // p}, their whole quotient; {n - n % p} is accepted"
        )
    rows = [interleaved_row(device, p, chunks, n, group) for device in range(p)]
    return written(problem, "interleaved_1f1b", rows)


@_family(
    title="Looped breadth-first",
    placement="loop:V",
    source="arXiv 2211.05953, sec. 4",
    form=Form.FUSED,
)
def looped_bfs(problem: Problem) -> Schedule:
    """Breadth-first: all microbatches pass a chunk before the first passes the next.

    Placement loop:V with any V; any p and n. Bubble (p-1)(F+B)/V per device where n >= p; every
    device holds nV activations of a chunk (Lamy-Poirier, arXiv 2211.05953, sec. 4).

    Raises
    ------
    ValueError
        If the placement is another one.
    """
    p, chunks, n = _loop(problem, "looped_bfs")
    rows = [looped_bfs_row(device, p, chunks, n) for device in range(p)]
    return written(problem, "looped_bfs", rows)


@_family(title="ZB-H1", placement="linear", source="arXiv 2401.10241, sec. 2.1", form=Form.SPLIT)
def zb_h1(problem: Problem) -> Schedule:
    """ZB-H1: 1F1B whose W's are put off as far as the memory of its first device allows.

    Placement linear; any p and n; I and W. On stage s a W runs s microbatches after its I, so
    that every device holds min(n, p) activations. Bubble (p-1)(F+I-W) per device (Qi et al.,
    arXiv 2401.10241, sec. 2.1).

    Raises
    ------
    ValueError
        If the placement is another one, or the problem's backward is fused.
    """
    require_split(problem, "zb_h1")
    p, n = _linear(problem, "zb_h1")
    rows = [zero_bubble_row(s, n, ahead=p - 1 - s, behind=s) for s in range(p)]
    return written(problem, "zb_h1", rows)


@_family(title="ZB-H2", placement="linear", source="arXiv 2401.10241, sec. 2.2", form=Form.SPLIT)
def zb_h2(problem: Problem) -> Schedule:
    """ZB-H2: as many forwards more as fill the bubble before the first backward.

    Placement linear; any p and n; I and W. Every device holds min(n, 2p-1) activations. Bubble
    (p-1)(F+I-2W) per device in its span, 0 at F = I = W (Qi et al., arXiv 2401.10241, sec. 2.2).

    Raises
    ------
    ValueError
        If the placement is another one, or the problem's backward is fused.
    """
    require_split(problem, "zb_h2")
    p, n = _linear(problem, "zb_h2")
    rows = [zero_bubble_row(s, n, ahead=2 * (p - 1 - s), behind=2 * s) for s in range(p)]
    return written(problem, "zb_h2", rows)


@_family(title="ZB-V", placement="v", source="arXiv 2401.10241, sec. 6", form=Form.SPLIT)
def zb_v(problem: Problem) -> Schedule:
    """ZB-V: no bubble at F = I = W with the memory of 1F1B's first device.

    Placement v; any p and n; I and W. Every device holds 2p activations of a chunk, p of its
    whole share. Bubble 0 in the span of a device at F = I = W and n >= 2p-1 (Qi et al.,
    arXiv 2401.10241, sec. 6; arXiv 2405.15362, sec. 3).

    Raises
    ------
    ValueError
        If the placement is another one, or the problem's backward is fused.
    """
    p, n = _split_v(problem, "zb_v")
    return written(problem, "zb_v", zb_v_rows(p, n))


@_family(title="V-Half", placement="v", source="arXiv 2405.15362, sec. 3", form=Form.SPLIT)
def v_half(problem: Problem) -> Schedule:
    """V-Half: about half of 1F1B's memory, on every device the same.

    Placement v; any p and n; I and W. The device that holds most holds (p+2) div 2 activations
    of its whole share. Bubble about half of 1F1B's (Qi et al., arXiv 2405.15362, sec. 3).

    Raises
    ------
    ValueError
        If the placement is another one, or the problem's backward is fused.
    """
    p, n = _split_v(problem, "v_half")
    return written(problem, "v_half", repeated_rows(v_half_block(p), n))


@_family(title="V-Min", placement="v", source="arXiv 2405.15362, sec. 3", form=Form.SPLIT)
def v_min(problem: Problem) -> Schedule:
    """V-Min: about a third of 1F1B's memory, on every device the same.

    Placement v; any p and n; I and W. The device that holds most holds (p+4) div 3 activations
    of its whole share. Bubble about two thirds of 1F1B's (Qi et al., arXiv 2405.15362, sec. 3).

    Raises
    ------
    ValueError
        If the placement is another one, or the problem's backward is fused.
    """
    p, n = _split_v(problem, "v_min")
    return written(problem, "v_min", repeated_rows(v_min_block(p), n))


@_family(
    title="DualPipe",
    placement="bidirectional",
    source="arXiv 2412.19437, sec. 3.2.1",
    form=Form.MIXED,
    condition="p even, n even, n >= 2p",
    copies=2,
)
def dualpipe(problem: Problem) -> Schedule:
    """DualPipe: microbatches from both ends, forwards and backwards overlapped in pairs.

    Placement bidirectional; p even; n even and at least 2p, half of them in each chain; B, I, W
    and, on devices with a cost.pair, pairs. Every device holds p+1 activations (DeepSeek-V3,
    arXiv 2412.19437, sec. 3.2.1).

    Raises
    ------
    ValueError
        If the placement is another one, p or the microbatches are not as above, or the problem's
        backward is fused.
    """
    require_split(problem, "dualpipe")
    p, n = problem.devices, problem.total_microbatches
    require_placement(problem, "dualpipe", bidirectional(p), "bidirectional")
    require_even_devices(problem, "dualpipe")
    if n % 2 or n < 2 * p:
        raise ValueError(
            f"dualpipe: microbatches is {n}, but it must be even and at least 2 x devices = "
            f"{2 * p}; {max(2 * p, n + n % 2)} is accepted"
        )
    each, other = problem.microbatches
    if each != other:
        raise ValueError(
            f"dualpipe: microbatches is {list(problem.microbatches)}, but both chains must have "
            f"the same number; {[n // 2, n // 2]} is accepted"
        )
    rows = [
        numbered(
            dualpipe_plan(p // 2, min(d, p - 1 - d), each, near=near, far=far),
            {d: 0, 2 * p - 1 - d: each},
        )
        for d in range(p)
        for near, far in [(d, 2 * p - 1 - d) if d < p // 2 else (2 * p - 1 - d, d)]
    ]
    return written(problem, "dualpipe", rows)


@_family(
    title="DualPipeV",
    placement="v",
    source="github.com/deepseek-ai/DualPipe, dualpipev.py",
    form=Form.MIXED,
    condition="n >= 2p",
)
def dualpipe_v(problem: Problem) -> Schedule:
    """DualPipeV: one half of DualPipe's devices, the other direction being the way back.

    Placement v; n at least 2p; B, I, W and, on devices with a cost.pair, pairs. Every device
    holds 2p+1 activations of a chunk (github.com/deepseek-ai/DualPipe, dualpipev.py).

    Raises
    ------
    ValueError
        If the placement is another one, there are too few microbatches, or the problem's backward
        is fused.
    """
    p, n = _split_v(problem, "dualpipe_v")
    if n < 2 * p:
        raise ValueError(
            f"dualpipe_v: microbatches is {n}, but it must be at least 2 x devices = {2 * p}; "
            f"{2 * p} is accepted"
        )
    rows = [
        numbered(dualpipe_plan(p, d, n, near=d, far=2 * p - 1 - d), {d: 0, 2 * p - 1 - d: 0})
        for d in range(p)
    ]
    return written(problem, "dualpipe_v", rows)


@_family(
    title="Chimera",
    placement="bidirectional",
    source="arXiv 2107.06925, sec. 3",
    form=Form.FUSED,
    condition="p even",
    copies=2,
)
def chimera(problem: Problem) -> Schedule:
    """Chimera: two pipelines in opposite directions, each running 1F1B in the other's gaps.

    Placement bidirectional; p even; any n, also a different number in each chain. Units of p/2
    microbatches per direction follow one another directly. Bubble
    (p-2)(max(F,B) + (n/p-1)|B-F|) per device where n is a multiple of p; device d holds at most
    p/2 + 1 + min(d, p-1-d) activations (Li and Hoefler, arXiv 2107.06925, sec. 3).

    Raises
    ------
    ValueError
        If the placement is another one, or p is odd.
    """
    p = problem.devices
    require_placement(problem, "chimera", bidirectional(p), "bidirectional")
    require_even_devices(problem, "chimera")
    return written(problem, "chimera", [chimera_row(d, p, problem.microbatches) for d in range(p)])


@_family(title="Hanayo", placement="wave:V", source="arXiv 2308.15762, sec. 3", form=Form.FUSED)
def hanayo(problem: Problem) -> Schedule:
    """Hanayo: Chimera's waves in one pipeline, so that the weights are there once.

    Placement wave:V with any V (the paper's wave is two chunks per device); any p and n. At most
    p microbatches are on their way. Bubble 2(p-1)(max(F,B) + (n/p-1)|B-F|)/V per device where n
    is a multiple of p and V > 1, F and B being a device's whole share; a device k devices away
    from the last stage holds at most (V-1)p + k + 1 activations of a chunk (Liu et al.,
    arXiv 2308.15762, sec. 3).

    Raises
    ------
    ValueError
        If the placement is another one.
    """
    p, chunks = problem.devices, max(1, problem.stages // problem.devices)
    require_placement(problem, "hanayo", wave(p, chunks), "wave:V")
    rows = hanayo_rows(problem.placement.device_of_stage, p, problem.total_microbatches)
    return written(problem, "hanayo", rows)


def _linear(problem: Problem, name: str) -> tuple[int, int]:
    require_placement(problem, name, linear(problem.devices), "linear")
    return problem.devices, problem.total_microbatches


def _loop(problem: Problem, name: str) -> tuple[int, int, int]:
    chunks = max(1, problem.stages // problem.devices)
    require_placement(problem, name, loop(problem.devices, chunks), "loop:V")
    return problem.devices, chunks, problem.total_microbatches


def _split_v(problem: Problem, name: str) -> tuple[int, int]:
    require_split(problem, name)
    require_placement(problem, name, v(problem.devices), "v")
    return problem.devices, problem.total_microbatches
