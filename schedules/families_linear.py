"""The rows of the families that hold one stage on each device.

Every function returns the row of one stage, for ``microbatches`` n and ``devices`` p.
"""

from bubbleproof.schedules.families_rows import B, F, I, W
from bubbleproof.schedules.ops import Op, Row


def gpipe_row(stage: int, microbatches: int) -> Row:
    """All forwards, then all backwards."""
    return tuple(Op(stage, kind, m) for kind in (F, B) for m in range(microbatches))


def one_f_one_b_row(stage: int, devices: int, microbatches: int) -> Row:
    """Fill the stages after this one, then alternate."""
    ahead = min(devices - 1 - stage, microbatches)
    row = [Op(stage, F, m) for m in range(ahead)]
    for m in range(microbatches):
        if ahead + m < microbatches:
            row.append(Op(stage, F, ahead + m))
        row.append(Op(stage, B, m))
    return tuple(row)


def zero_bubble_row(stage: int, microbatches: int, *, ahead: int, behind: int) -> Row:
    """1F1B with ``ahead`` forwards before it, and each W ``behind`` microbatches after its I.

    After every I, one W runs if more than ``behind`` are waiting; at the end all that still wait.
    """
    row = [Op(stage, F, m) for m in range(min(ahead, microbatches))]
    for m in range(microbatches):
        if ahead + m < microbatches:
            row.append(Op(stage, F, ahead + m))
        row.append(Op(stage, I, m))
        if m >= behind:
            row.append(Op(stage, W, m - behind))
    row += [Op(stage, W, m) for m in range(max(microbatches - behind, 0), microbatches)]
    return tuple(row)
