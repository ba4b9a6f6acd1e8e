"""The rows of the families that hold several chunks on each device, in a loop."""

from bubbleproof.schedules.families_rows import B, F
from bubbleproof.schedules.ops import Op, Row


def group_size(devices: int, microbatches: int) -> int | None:
    """Return how many microbatches take turns on a device's chunks; None where it is not whole.

    The microbatches go in n div p equal groups, in one where n < p. With n a multiple of p a
    group is p, as in the paper.
    """
    groups = max(1, microbatches // devices)
    return None if microbatches % groups else microbatches // groups


def interleaved_row(device: int, devices: int, chunks: int, microbatches: int, group: int) -> Row:
    """1F1B over the device's chunks: a group passes chunk 0, then chunk 1, ..., then the next one.

    Backwards take the chunks from the last to the first. One chunk is plain 1F1B.
    """
    total = chunks * microbatches

    def chunk_and_microbatch(turn: int) -> tuple[int, int]:
        round_, place = divmod(turn, group * chunks)
        chunk, within = divmod(place, group)
        return chunk, round_ * group + within

    def forward(turn: int) -> Op:
        chunk, microbatch = chunk_and_microbatch(turn)
        return Op(chunk * devices + device, F, microbatch)

    def backward(turn: int) -> Op:
        chunk, microbatch = chunk_and_microbatch(turn)
        return Op((chunks - 1 - chunk) * devices + device, B, microbatch)

    after = devices - 1 - device
    ahead = min(after if chunks == 1 else 2 * after + (chunks - 1) * group, total)
    row = [forward(turn) for turn in range(ahead)]
    for turn in range(total):
        if ahead + turn < total:
            row.append(forward(ahead + turn))
        row.append(backward(turn))
    return tuple(row)


def looped_bfs_row(device: int, devices: int, chunks: int, microbatches: int) -> Row:
    """Every chunk forward for all microbatches, then every chunk backward, the last one first."""
    stages = [chunk * devices + device for chunk in range(chunks)]
    forwards = [Op(stage, F, m) for stage in stages for m in range(microbatches)]
    backwards = [Op(stage, B, m) for stage in reversed(stages) for m in range(microbatches)]
    return (*forwards, *backwards)
