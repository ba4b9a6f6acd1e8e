"""The rows of the families in which microbatches meet: DualPipe, DualPipeV and Chimera."""

from collections.abc import Sequence

from bubbleproof.schedules.families_rows import B, F, I, W
from bubbleproof.schedules.ops import Block, Op, Pair, Row


def dualpipe_plan(half: int, edge: int, microbatches: int, *, near: int, far: int) -> list[Block]:
    """Return a device's plan, for ``numbered``, in DualPipe's eight phases.

    Parameters
    ----------
    half
        How many devices lie between an edge, where microbatches enter, and the middle.
    edge
        How many of them lie between this device and its edge.
    microbatches
        How many microbatches enter at this edge; as many come from the other one, or back from
        the middle.
    near, far
        The device's stage for those that enter at its edge, and for the others.
    """
    inner = half - 1 - edge
    fn, ff = Op(near, F, 0), Op(far, F, 0)
    bn, bf = Op(near, B, 0), Op(far, B, 0)
    i_near, i_far, w_far = Op(near, I, 0), Op(far, I, 0), Op(far, W, 0)
    inbound, outbound = Pair(fn, bf), Pair(ff, bn)

    plan: list[Block] = [fn] * (2 * inner)
    plan += [fn, ff] * (edge + 1)
    plan += [i_far, w_far, ff] * inner
    steady: list[Block] = [inbound, outbound] * (microbatches - 2 * half + edge + 1)
    # The reference runs the middle devices' first forward and backward apart.
    plan += steady if inner else [fn, bf, *steady[1:]]
    plan += [bf, outbound] * inner
    # Backwards of both directions; the last ones are split, so that their W's can wait.
    ends = [far, near] * (edge + 1)
    split = ends[edge + 1 :]
    plan += [Op(stage, B, 0) for stage in ends[: edge + 1]]
    plan += [Op(stage, I, 0) for stage in split]
    weights = [Op(stage, W, 0) for stage in (*split, *[near] * inner)]
    for w in weights[:inner]:
        plan += [w, i_near]
    return [*plan, *weights[inner:]]


def chimera_row(device: int, devices: int, microbatches: Sequence[int]) -> Row:
    """Both directions run 1F1B in units of p/2 microbatches each.

    In slots in which a forward takes as long as a backward, the microbatches of one direction are
    two slots apart and those of the other fall between them; a unit starts 2p slots after the one
    before it.
    """
    last = devices - 1
    slots: list[tuple[int, Op]] = []
    for chain, depth in ((0, device), (1, last - device)):
        stage, first = chain * devices + depth, chain * microbatches[0]
        for m in range(microbatches[chain]):
            unit, place = divmod(m, devices // 2)
            start = 2 * devices * unit + 2 * place
            slots.append((start + depth, Op(stage, F, first + m)))
            slots.append((start + devices + last - depth, Op(stage, B, first + m)))
    return tuple(op for _, op in sorted(slots))
