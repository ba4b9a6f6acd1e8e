"""What torchtitan can run of a schedule, and the settings that it and torch's runtime need.

Read from torch.distributed.pipelining 2.13 and from torchtitan, which picks the placement of
stages by the name of a schedule even where the order comes from a file.
"""

from bubbleproof.schedules.ops import OpKind, Pair, ops_of
from bubbleproof.schedules.placement import loop, v
from bubbleproof.schedules.schedule import Schedule


def require_torchtitan(schedule: Schedule) -> None:
    """Refuse what torchtitan cannot run from a file, where torch's runtime alone could.

    Raises
    ------
    ValueError
        If torchtitan has no schedule name that builds this placement.
    """
    if _torchtitan_name(schedule) is None:
        raise ValueError(
            f"placement: {schedule.problem.placement} is none that torchtitan builds; it takes the "
            'placement from a schedule\'s name, which gives "linear", "loop:V" or "v", so solve '
            "for one of these, or export to torch-compute-only and build the stages yourself"
        )


def settings(schedule: Schedule, path: str, target: str) -> tuple[str, ...]:
    """Return what a user of an exported file must set, a line each.

    Parameters
    ----------
    schedule
        The schedule that was exported.
    path
        Where the file is.
    target
        What it was exported to: ``torch-compute-only``, ``torch-compute-comms`` (with messages and
        steps on weights) or ``torchtitan``.
    """
    problem = schedule.problem
    lines = [
        f"stages: {problem.stages} on {problem.devices} devices, "
        + "; ".join(
            f"device {device}: {', '.join(map(str, stages))}"
            for device, stages in enumerate(problem.placement.stages_of_device)
        ),
        f"microbatches: {problem.total_microbatches}; scale losses by that number once",
    ]
    if target != "torchtitan":
        form = "compute_comms" if target == "torch-compute-comms" else "compute_only"
        lines.append(
            f"torch: _PipelineScheduleRuntime(stages, {problem.total_microbatches}, loss_fn=...), "
            f'then _load_csv({path!r}, format="{form}")'
        )
    if target == "torch-compute-comms":
        lines += [
            "messages: executed as written, each posted alone; leave defer_pp_recv unset, since it "
            "changes the order of receives but not of sends",
            "weights: REDUCE_GRAD needs torch 2.10 or newer; UNSHARD and RESHARD do nothing to "
            "stages that are not sharded (FSDP)",
            "torchtitan: takes compute_only files; export to torchtitan for it",
        ]
    else:
        lines += _torchtitan_settings(schedule, path)
    blocks = [block for row in schedule.rows for block in row]
    if any(isinstance(block, Pair) for block in blocks):
        lines.append(
            "pairs: torch 2.9 or newer; it runs both halves one after the other unless a function "
            "is registered for OVERLAP_F_B"
        )
    if any(op.kind is OpKind.BACKWARD_INPUT for block in blocks for op in ops_of(block)):
        lines.append(
            "split backward (I and W): not with DistributedDataParallel, torch.compile or "
            'reentrant checkpointing; solve with backward = "fused" for those'
        )
    return tuple(lines)


def _torchtitan_settings(schedule: Schedule, path: str) -> list[str]:
    problem = schedule.problem
    name = _torchtitan_name(schedule)
    if name is None:
        return ["torchtitan: no schedule name of its has this placement; build the stages yourself"]
    lines = [
        f"torchtitan: parallelism.pipeline_parallel_schedule_csv = {path!r}",
        f'torchtitan: parallelism.pipeline_parallel_schedule = "{name}" (for its placement)',
        f"torchtitan: parallelism.pipeline_parallel_degree = {problem.devices}",
        f"torchtitan: num_pp_microbatches = {problem.total_microbatches} (in versions without it, "
        "local_batch_size / pipeline_parallel_microbatch_size)",
    ]
    chunks = problem.stages // problem.devices
    if chunks > 2:
        lines.append(
            "torchtitan: parallelism.pipeline_parallel_layers_per_stage such that there are "
            f"{problem.stages} stages; without it each device gets 2, and here it has {chunks}"
        )
    return lines


def _torchtitan_name(schedule: Schedule) -> str | None:
    placement, devices = schedule.problem.placement, schedule.problem.devices
    chunks = placement.stages // devices
    device_of = placement.device_of_stage
    if device_of == tuple(range(devices)):
        return "1F1B"
    if device_of == v(devices).device_of_stage:
        return "ZBVZeroBubble"
    if chunks and device_of == loop(devices, chunks).device_of_stage:
        return "Interleaved1F1B"
    return None
