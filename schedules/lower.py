"""Lowering: a schedule becomes a program, with messages in an order that no transport can block.

**The line.** All blocks of all devices and all transfers between devices are put into one line, in
which a block stands behind the block before it in its row and behind the transfers that bring its
inputs, and a transfer stands behind the block that makes its data. A device's program is its part
of the line: its blocks, a SEND for each transfer from it and a RECV for each transfer to it.

**Theorem.** Such a program runs to its end under each of the four transports, and the k-th SEND
from one device to another is received by the k-th RECV, whatever the durations are.

*Proof.* Both devices of a transfer take it from the same line, so the k-th SEND and the k-th RECV
of a pair are the two ends of its k-th transfer. Suppose that not everything completes, and take
the first thing in the line that does not. All before it in the line completes, and so all that its
device, or both its devices, have to do before. If it is a block, its device stands at it and its
inputs are there, so it runs. If it is a transfer, its sender and its receiver both come to it:

- buffered: the SEND returns at once, and the RECV then finds its message;
- rendezvous: both stand at the matching call, and all earlier ones of the pair are over;
- pair-fifo: both ends are posted, and nothing of the pair that was posted before is open;
- rank-fifo: both ends are posted, and nothing of either device that was posted before is open.

So it completes, which contradicts the choice. Transfers that are neighbours in the parts of both
their devices, as those of a group are, can be taken as one thing of the line, for what has to stand
between them would stand between them on one of the two devices. Nothing changes where a group is
written out one message after another. Steps on weights wait for no other stage of the pipeline,
but for those that reduce the gradients of replicas: they are behind all else, in one order. ∎

**Found wherever there is one.** A line exists unless rows and inputs together have a cycle; then no
order of messages helps, and ``lower`` says who waits for what.

**The best line.** Of what can be next in the line the earliest is taken: a block counts with its
end and a transfer with the end of the block that makes its data, in the times of the schedule, and
at one instant blocks come before transfers. When the times hold, therefore:

- a SEND stands behind the block that makes its data, with nothing between that takes time;
- a RECV stands before a SEND of the same device only if its data is made no later than the SEND's:
  no message that is ready waits for one that is not;
- a RECV is as late as that allows. It stands behind every block of its device that ends by the
  time when its data is made, and before the block that then runs: behind that one, the message
  would be ready and wait for the device.

That is best where posts do not block, as with NCCL and gloo. Under rendezvous the program ends as
well, but later than in the times of the schedule: a device then stands at a RECV until the data is
made, and a SEND until the receiver comes to it.
"""

from collections.abc import Mapping

from bubbleproof.schedules.line import draw_line
from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.program import Program, ungrouped
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.schedules.weights import Reduction, with_weights


def lower(
    schedule: Schedule,
    *,
    grouped: bool = True,
    most_unsharded: int | None = 3,
    reduction: Reduction | None = Reduction.STAGE,
) -> Program:
    """Return the program that runs a schedule: its rows, with messages and steps on weights.

    The rows keep their order. A message is for each input that comes from another device; stages
    on one device hand their data over without. The schedule's starts, or else the earliest ones,
    decide the order of messages; this module says how, and proves it safe.

    Parameters
    ----------
    schedule
        One whose order can run; ``verify`` tells all that is wrong with others.
    grouped
        Whether what two devices send each other at the same instant is posted as a group, so that
        it travels at once where a message else waits for the one before it.
    most_unsharded
        How many stages of a device may have their weights fetched at a time (torch: 3): those of
        the block that runs and of the next ones. None: weights are not sharded, and there is
        neither UNSHARD nor RESHARD.
    reduction
        Where a stage's REDUCE_GRAD stands, at its last W or B or at the end of the row; None: there
        is none. What bidirectional placements hold twice is reduced at the end in either case.

    Raises
    ------
    DeadlockError
        If the order cannot run, with what each device waits for.
    ValueError
        If the rows are not those of the problem's devices, an op stands where it does not belong
        or is there twice, the starts do not fit the rows, or ``most_unsharded`` is too small.
    """
    if most_unsharded is not None and most_unsharded < 1:
        raise ValueError(
            f"most_unsharded: {most_unsharded} stages cannot run; give 1 or more, or None"
        )
    line = draw_line(schedule)
    placement = schedule.problem.placement
    program = Program(
        problem=schedule.problem,
        rows=tuple(
            with_weights(
                line.steps(device),
                row,
                most_unsharded=most_unsharded,
                reduction=reduction,
                together=_together(placement, device),
            )
            for device, row in enumerate(schedule.rows)
        ),
        source=f"{schedule.source}, lowered" if schedule.source else "lowered",
    )
    return program if grouped else ungrouped(program)


def _together(placement: Placement, device: int) -> Mapping[int, int]:
    """Return the stages of a device whose weights another stage holds too, with their layers."""
    copied = {original for stage, original in enumerate(placement.replica_of) if stage != original}
    return {
        stage: placement.replica_of[stage]
        for stage in placement.stages_of_device[device]
        if placement.replica_of[stage] in copied
    }
