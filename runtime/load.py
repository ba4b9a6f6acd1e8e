"""A schedule and the modules of its stages made ready to run on torch.distributed.

Nothing runs that the verifier refuses, and all processes refuse together, so that none waits in a
collective call for one that gave up.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.nn import Module

from bubbleproof.runtime import replicas
from bubbleproof.runtime.agree import all_or_none, everywhere
from bubbleproof.runtime.data_parallel import follow_program
from bubbleproof.runtime.executor import Executor, Loss, Overlap
from bubbleproof.runtime.stage import Live, Recorder, Stage, require_module
from bubbleproof.runtime.step import Runtime
from bubbleproof.runtime.version import INSTALLED, require_backend
from bubbleproof.schedules.files import AnyPath
from bubbleproof.schedules.io import load_schedule_or_program, program_text
from bubbleproof.schedules.lower import lower
from bubbleproof.schedules.placement import Placement
from bubbleproof.schedules.program import Action, ActionKind, Program
from bubbleproof.schedules.schedule import Schedule, require_schedule
from bubbleproof.schedules.torch_comms import ungrouped
from bubbleproof.verify.program_rules import verify_program
from bubbleproof.verify.report import Report
from bubbleproof.verify.rules import verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked for beside the program and the modules; ``load`` says what each means."""

    loss_fn: Loss | None = None
    scale_losses: bool = True
    device: torch.device | None = None
    group: ProcessGroup | None = None
    recorder: Recorder | None = None
    overlap: Overlap | None = None


def load(
    plan: Schedule | Program | AnyPath,
    stage_modules: Mapping[int, Module] | Sequence[Module],
    *,
    loss_fn: Loss | None = None,
    scale_losses: bool = True,
    device: torch.device | str | None = None,
    group: ProcessGroup | None = None,
    recorder: Recorder | None = None,
    overlap: Overlap | None = None,
) -> Runtime:
    """Return what runs a schedule's part of this process; called on every process of a pipeline.

    Parameters
    ----------
    plan
        A schedule, whose messages are then put in an order that no transport can block, a program,
        whose messages are kept as they are, or the file of one; the same on all processes.
    stage_modules
        The modules of this device's stages, by stage, or in ascending order of stages. A forward
        returns a tensor or a tuple of tensors, and the next stage of the chain takes these. Copies
        of the same weights (bidirectional placements) are made equal to the original here. Weights
        may be sharded over pipelines by torch's ``fully_shard``, on the device mesh of these.
    loss_fn
        Makes a scalar of the last stage's output and a microbatch's target. Needed where a chain
        ends.
    scale_losses
        Whether each loss counts as its part of the mean over all microbatches, so that gradients
        are those of the mean. False: of the sum.
    device
        Where the modules are; None: where the first parameter is.
    group
        The processes of the pipeline, one for each device of the schedule; None: all. Pipelines
        beside each other each have their own.
    recorder
        Is told of each op that ran.
    overlap
        Runs pairs of a forward and a backward, as torch's custom function for OVERLAP_F_B. None:
        one after the other, which is right but saves no time.

    Raises
    ------
    ValueError
        On all processes alike, if one of them cannot run: the schedule breaks a rule, with the
        verifier's message; the processes are not as many as the devices; modules or loss are
        missing; copies are not alike; or the processes were given different schedules.
    """
    if not dist.is_initialized():
        raise ValueError(
            "no process group; start with torchrun and call torch.distributed.init_process_group "
            "before load"
        )
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError("group: this process is not in it; call load on its processes only")
    options = Options(
        loss_fn=loss_fn,
        scale_losses=scale_losses,
        device=None if device is None else torch.device(device),
        group=group,
        recorder=recorder,
        overlap=overlap,
    )

    def prepare() -> tuple[Program, dict[int, Module]]:
        program = runnable(plan)
        placement = program.problem.placement
        _require_processes(placement, dist.get_world_size(group))
        require_backend(INSTALLED, dist.get_backend(group), placement.stages_of_device)
        modules = _by_stage(stage_modules, placement, rank)
        follow_program(modules, program)
        if loss_fn is None and any(placement.following[stage] is None for stage in modules):
            raise ValueError(f"loss_fn: missing on rank {rank}, where a chain ends")
        return program, modules

    program, modules = all_or_none(prepare, group)
    _require_one_program(program, group)
    return assemble(program, modules, options)


def runnable(plan: Schedule | Program | AnyPath) -> Program:
    """Return the program that runs a plan, which the verifier has passed.

    Raises
    ------
    ValueError
        If the file cannot be read, a rule is broken, or torch's runtime cannot run it.
    TypeError
        If it is none of these, with what was meant.
    """
    if isinstance(plan, (str, os.PathLike)):
        plan = load_schedule_or_program(plan)
    if not isinstance(plan, Program):
        require_schedule(plan)
    if isinstance(plan, Schedule):
        _require_valid(verify(plan))
        program = lower(plan, grouped=False)
    else:
        _require_valid(verify_program(plan))
        program = ungrouped(plan)
    if program != plan:
        # Torch posts the messages of a group one after the other: that has to end, too.
        _require_valid(verify_program(program))
    for rank, stages in enumerate(program.problem.placement.stages_of_device):
        if not stages:
            raise ValueError(
                f"device {rank} has no stage, and a process without one has nothing to run; "
                "place a stage there, or solve for fewer devices"
            )
    if not any(
        isinstance(step, Action) and step.kind is ActionKind.REDUCE_GRAD
        for row in program.rows
        for step in row
    ):
        raise ValueError(
            "no stage has a REDUCE_GRAD, without which gradients of copies and of sharded weights "
            "are never summed; each stage needs one after its last W or B, as lower writes it"
        )
    return program


def assemble(program: Program, modules: Mapping[int, Module], options: Options) -> Runtime:
    """Return what runs a program, whatever it is: ``load`` behind its checks.

    Raises
    ------
    ValueError
        On all processes alike, if copies of the same weights are not alike.
    """
    placement, group = program.problem.placement, options.group
    rank = dist.get_rank(group)
    device = _device_of(modules) if options.device is None else options.device
    live = Live()
    stages = {
        stage: Stage(
            module,
            stage,
            placement=placement,
            device=device,
            group=group,
            recorder=options.recorder,
            live=live,
        )
        for stage, module in modules.items()
    }
    copies = replicas.copies_of(placement)
    if copies:
        held = everywhere({stage: replicas.layout(each) for stage, each in modules.items()}, group)
        layouts = {stage: each for one in held for stage, each in one.items()}
        replicas.require_same_layout(copies, layouts)
        replicas.connect(stages, placement, group)
    microbatches = program.problem.total_microbatches
    executor = Executor(
        sorted(stages.values(), key=lambda stage: stage.stage_index),
        program,
        loss=options.loss_fn,
        weight=1 / microbatches if options.scale_losses else 1,
        overlap=options.overlap,
    )
    return Runtime(program, stages, executor, rank=rank, group=group, live=live)


def _require_valid(report: Report) -> None:
    if report.valid:
        return
    first = report.violations[0]
    more = len(report.violations) - 1
    raise ValueError(
        f"rule {first.rule} is broken: {first.message}"
        + (f" (and {more} more; bubbleproof verify shows all)" if more else "")
    )


def _require_processes(placement: Placement, processes: int) -> None:
    if processes != placement.devices:
        raise ValueError(
            f"{processes} processes for a schedule of {placement.devices} devices; start one for "
            "each, or give the group of those that belong together"
        )


def _require_one_program(program: Program, group: ProcessGroup | None) -> None:
    digests = everywhere(sha256(program_text(program, ".json").encode()).hexdigest(), group)
    for rank, digest in enumerate(digests):
        if digest != digests[0]:
            raise ValueError(f"rank {rank} was given another schedule than rank 0; give all one")


def _by_stage(
    given: Mapping[int, Module] | Sequence[Module], placement: Placement, rank: int
) -> dict[int, Module]:
    stages = placement.stages_of_device[rank]
    own = ", ".join(map(str, stages))
    if isinstance(given, Mapping):
        if sorted(given) != list(stages):
            raise ValueError(
                f"stage_modules: rank {rank} has stages {own}, "
                f"but was given {', '.join(map(str, sorted(given))) or 'none'}"
            )
        return {stage: require_module(given[stage], stage) for stage in stages}
    if len(given) != len(stages):
        raise ValueError(
            f"stage_modules: rank {rank} has stages {own}, but was given {len(given)} modules"
        )
    return {stage: require_module(each, stage) for stage, each in zip(stages, given, strict=True)}


def _device_of(modules: Mapping[int, Module]) -> torch.device:
    for module in modules.values():
        for parameter in module.parameters():
            return parameter.device
    return torch.device("cpu")
