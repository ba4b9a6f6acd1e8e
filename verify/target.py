"""Rule target: what a runtime needs beyond the rules, and fails to check or gets wrong silently.

For torch.distributed.pipelining, read in its versions up to 2.13 and tried on 2.13. Its
``_PipelineScheduleRuntime`` posts each message alone, without waiting, and keeps what is sent until
the step ends. Groups are not known to it, so what is judged here is to be judged without them.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from bubbleproof.schedules.ops import Op, OpKind
from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.program import ActionKind, Group, Program
from bubbleproof.schedules.schedule import Schedule
from bubbleproof.verify.findings import (
    computed,
    finding,
    first_action,
    first_pair,
    ops_in,
    steps_of,
)
from bubbleproof.verify.naming import plural
from bubbleproof.verify.report import Violation
from bubbleproof.verify.torch_version import Version, read_version, words_needed

SPLIT = (OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT)


class Target(StrEnum):
    """A runtime that executes schedules."""

    TORCH = "torch"


@dataclass(frozen=True, slots=True)
class Fitness:
    """What a runtime makes of a schedule or program.

    Parameters
    ----------
    violations
        What it cannot run, or computes wrongly without an error.
    notes
        What it needs from its user to run it as it is meant.
    """

    violations: tuple[Violation, ...]
    notes: tuple[Violation, ...]

    @property
    def fits(self) -> bool:
        """Whether it runs as it is meant, if the notes are heeded."""
        return not self.violations


def verify_for_target(
    plan: Schedule | Program,
    target: Target | str = Target.TORCH,
    *,
    torch_version: str | None = None,
) -> Fitness:
    """Return what a runtime needs of a schedule or program beyond the rules of ``verify``.

    Whatever the rows are, nothing is raised. A schedule is judged as the runtime executes it with
    messages and reductions of its own making, a program as it is written.

    Parameters
    ----------
    plan
        What is to run; that it is valid is for ``verify`` and ``verify_program`` to say.
    target
        The runtime: ``"torch"``.
    torch_version
        The version that is to run it, as ``"2.10"``: what that lacks is a violation. None: notes
        say which versions will do.

    Raises
    ------
    ValueError
        If there is no such target, or the version is none.
    """
    if target not in list(Target):
        raise ValueError(f"target: {str(target)!a} is unknown; torch is accepted")
    given = None if torch_version is None else read_version(torch_version)
    needed = [] if given is None else [word for word in words_needed(plan) if word[0] > given]
    return Fitness(
        violations=(
            *(violation for _, violation in needed),
            *_chain(plan),
            *_devices(plan),
            *_losses(plan),
            *_groups(plan),
            *_reductions(plan),
        ),
        notes=(
            *_two_ways(plan),
            *(note for _, note in (words_needed(plan) if given is None else ())),
            *_overlap(plan),
            *_split(plan),
            *_stages(plan, given),
            *_settings(plan),
        ),
    )


def _chain(plan: Schedule | Program) -> Iterator[Violation]:
    """One chain passes the stages 0, 1, 2, ...: torch's stages send to number + 1 and - 1 only."""
    placement = plan.problem.placement
    hops = [hop for chain in placement.chains for hop in pairwise(chain)]
    for stage, after in hops:
        if after != stage + 1:
            yield finding(
                f"placement: after stage {stage} comes stage {after}, but torch hands what a stage "
                "makes to the next number; number the stages in the order in which microbatches "
                "pass them",
                ops=(f"{stage}F", f"{after}F"),
            )
            return
    if len(placement.chains) > 1:
        starts = " and ".join(str(chain[0]) for chain in placement.chains[:2])
        yield finding(
            f"placement: {placement} has {len(placement.chains)} chains, from stages {starts}; "
            "torch has one first stage, 0, and one last, which computes the loss; solve for one "
            "chain of ascending stages, as placement v, whose family dualpipe_v is half of DualPipe"
        )


def _devices(plan: Schedule | Program) -> Iterator[Violation]:
    """Each device has a stage and a row: torch takes its rank from its first stage."""
    held = plan.problem.placement.stages_of_device
    for device, row in enumerate(plan.rows):
        if device < len(held) and not held[device]:
            yield finding(
                f"device {device} has no stage; torch takes a device's rank from its first stage, "
                "so place one there, or solve for fewer devices",
                device,
            )
        elif not row:
            yield finding(
                f"device {device} has an empty row, which torch reads as no device, or refuses; "
                "give it the ops of its stages",
                device,
            )


def _losses(plan: Schedule | Program) -> Iterator[Violation]:
    """The last stage runs its forwards in the order of their microbatches.

    Torch appends each loss when its forward has run and looks it up by the number of the
    microbatch: out of order, backwards start from the loss of another microbatch.
    """
    last = _last_stage(plan.problem.placement)
    if last is None:
        return
    forwards = [
        (device, position, op)
        for device, row in enumerate(plan.rows)
        for position, step in enumerate(row)
        for op in ops_in(step)
        if op.stage == last and op.kind is OpKind.FORWARD
    ]
    late = [
        (before[2], after)
        for before, after in pairwise(forwards)
        if before[0] == after[0] and after[2].microbatch < before[2].microbatch
    ]
    if late:
        before, (device, position, op) = late[0]
        more = f", and {plural(len(late) - 1, 'more time')}" if len(late) > 1 else ""
        yield finding(
            f"device {device} runs {op} after {before}{more}; torch finds losses by the order of "
            "the last stage's forwards, so gradients are those of other microbatches, without an "
            "error; verify --target torch --renumber OUT gives them the numbers of that order",
            device,
            position,
            (before, op),
        )


def _groups(plan: Schedule | Program) -> Iterator[Violation]:
    """A program has no groups: torch posts each message alone."""
    for device, position, step in steps_of(plan):
        if isinstance(step, Group):
            yield finding(
                f"device {device} posts {step} as one group, which torch does not have; export to "
                "torch-compute-comms writes its messages one after the other and judges that",
                device,
                position,
                (step,),
            )
            return


def _reductions(plan: Schedule | Program) -> Iterator[Violation]:
    """A program reduces gradients: torch adds no REDUCE_GRAD to what it executes as written.

    Where some stages have one, what others lack is for rule weights to say.
    """
    if not isinstance(plan, Program) or first_action(plan, ActionKind.REDUCE_GRAD) is not None:
        return
    stages = sorted(
        {
            op.stage
            for _, _, step in steps_of(plan)
            for op in ops_in(step)
            if op.kind in (OpKind.BACKWARD, OpKind.BACKWARD_WEIGHT)
        }
    )
    if stages:
        yield finding(
            "no stage has a REDUCE_GRAD; torch then leaves gradients undivided by the number of "
            "microbatches, or None with fully_shard, without an error; each stage needs one after "
            f"its last W or B, as {stages[0]}REDUCE_GRAD",
            ops=[f"{stage}REDUCE_GRAD" for stage in stages],
        )


def _two_ways(plan: Schedule | Program) -> Iterator[Violation]:
    """Say what any runtime needs where devices hold copies of each other's weights."""
    placement = plan.problem.placement
    copies = [(s, o) for s, o in enumerate(placement.replica_of) if s != o]
    if not copies:
        return
    ends = [
        (placement.device_of_stage[chain[0]], placement.device_of_stage[chain[-1]])
        for chain in placement.chains
    ]
    if len(ends) > 1:
        crossing = "; ".join(
            f"device {last} needs the labels of what enters at device {first}"
            for first, last in ends
        )
        yield finding(f"labels cross over: {crossing}; give each its own in a runtime for two ways")
    stage, original = copies[0]
    one, other = placement.device_of_stage[original], placement.device_of_stage[stage]
    yield finding(
        f"{plural(len(copies), 'stage')} are copies: stages {original} (device {one}) and {stage} "
        f"(device {other}) must start equal, sum their gradients after the step, and scale losses "
        f"by all {plan.problem.total_microbatches} microbatches"
    )
    if len(ends) > 1:
        yield from _queue(plan)


def _queue(plan: Schedule | Program) -> Iterator[Violation]:
    """Say where W's do not take the oldest gradient, as DualPipe's own runtime always does."""
    for device, row in enumerate(plan.rows):
        waiting: deque[Op] = deque()
        for position, step in enumerate(row):
            for op in ops_in(step):
                if op.kind is OpKind.BACKWARD_INPUT:
                    waiting.append(op)
                elif op.kind is OpKind.BACKWARD_WEIGHT and waiting:
                    oldest = waiting.popleft()
                    if (oldest.stage, oldest.microbatch) != (op.stage, op.microbatch):
                        yield finding(
                            f"device {device} runs {op} while {oldest} waits for its W the "
                            "longest; a runtime that queues weight gradients without a name, as "
                            "DualPipe's own, would run that one's: use one that goes by the number",
                            device,
                            position,
                            (op, oldest),
                        )
                        return


def _overlap(plan: Schedule | Program) -> Iterator[Violation]:
    """Say what makes a pair overlap."""
    pair = first_pair(plan)
    if pair is not None:
        device, position, step = pair
        yield finding(
            "OVERLAP_F_B needs a function registered for it: without one the halves run one after "
            "the other, not in the pair's time",
            device,
            position,
            (step,),
        )


def _split(plan: Schedule | Program) -> Iterator[Violation]:
    """Say what a backward in two halves excludes."""
    for device, position, op in computed(plan):
        if op.kind in SPLIT:
            yield finding(
                "a split backward (I and W) excludes torch.compile, DistributedDataParallel "
                "(its hooks do not run) and reentrant checkpointing, and has counted the gradient "
                "of tied weights (embedding and head) twice (pytorch#180952); solve with backward "
                '= "fused" for those. Stage 0\'s I does nothing, and its W is a whole backward',
                device,
                position,
                (op,),
            )
            return


def _stages(plan: Schedule | Program, given: Version | None) -> Iterator[Violation]:
    """Say in which order stages are given, and where gloo can carry them."""
    for device, stages in enumerate(plan.problem.placement.stages_of_device):
        if len(stages) > 1:
            shown = ", ".join(map(str, stages[:4])) + (", ..." if len(stages) > 4 else "")
            gloo = "with gloo this needs torch 2.12 or newer (one stage each: 2.10)"
            yield finding(
                f"device {device} has stages {shown}: give each device's stages to the runtime in "
                "ascending order" + ("" if given is not None and given >= (2, 12) else f"; {gloo}"),
                device,
            )
            return


def _settings(plan: Schedule | Program) -> Iterator[Violation]:
    """Say what must stay unset."""
    if plan.problem.devices > 1:
        yield finding(
            "never set defer_pp_recv: it changes the order of receives but not of sends, so that "
            "a receive takes other data without an error; leave it False"
        )


def _last_stage(placement: Placement) -> int | None:
    """Return the stage that computes the loss; None where torch would take another one for it."""
    return placement.stages - 1 if placement.in_order else None
