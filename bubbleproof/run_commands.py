"""The commands ``profile`` and ``run``, which need torch and start under torchrun."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bubbleproof.arguments import (
    AsJson,
    AskedProblem,
    Output,
    ScheduleFile,
    positive,
    whole,
)
from bubbleproof.steps import Refusal

MOST_STEPS = 10_000
MOST_MICROBATCHES = 1_000_000
MOST_DEVICES = 100_000

ModelName = Annotated[
    str | None,
    Parameter(
        name="--model",
        help="What is trained: PATH:callable, a Python file or module and what in it makes a "
        "bubbleproof.runtime.Model of a problem, as model.py:build.",
    ),
]
Emulate = Annotated[
    bool,
    Parameter(
        name="--emulate", negative=(), help="Train modules that sleep for the problem's times."
    ),
]
UnitMs = Annotated[
    float | None,
    Parameter(
        name="--unit-ms",
        converter=positive("time", "10 (milliseconds)"),
        help="Milliseconds in one unit of the problem's time, where its time_unit does not say it "
        "or --emulate shall be slower.",
    ),
]
Steps = Annotated[
    int, whole(1, MOST_STEPS), Parameter(help="Steps after one that is not measured.")
]
Rounds = Annotated[int, whole(1, MOST_STEPS), Parameter(help="How often each op is measured.")]
Skipped = Annotated[
    int, whole(0, MOST_STEPS), Parameter(help="How many first times of each op are not counted.")
]
Microbatches = Annotated[
    int | None,
    whole(1, MOST_MICROBATCHES),
    Parameter(help="How many the problem has; with traces as many as they show if not given."),
]
Devices = Annotated[
    int | None,
    whole(1, MOST_DEVICES),
    Parameter(help="How many the problem has; one for each process if not given."),
]


def profile(
    *sources: Annotated[
        str,
        Parameter(
            help="PATH:callable, what makes a model (as --model of run), measured here or under "
            "torchrun; or the traces of torch.profiler, one for each rank."
        ),
    ],
    output: Output = None,
    microbatches: Microbatches = None,
    devices: Devices = None,
    placement: Annotated[str, Parameter(help="Where stages are, as in a problem.")] = "linear",
    rounds: Rounds = 5,
    skip: Skipped = 1,
    as_json: AsJson = False,
) -> int:
    """Measure a model's stages, or read traces of a run, and write the problem that they make.

    torchrun --nproc-per-node 4 -m bubbleproof profile model.py:build --microbatches 8 -o ours.toml
    measures transfers as well.
    """
    from bubbleproof import running

    if not sources:
        raise Refusal("profile of what? PATH:callable of a model, or traces of torch.profiler")
    for source in sources:
        if source.endswith(".py"):
            raise Refusal(f"{source}: add what in it makes the model, as {source}:build")
    model = sources[0] if len(sources) == 1 else ""
    if ":" not in model or Path(model).is_file():
        return running.profile_traces(
            [Path(source) for source in sources],
            output,
            microbatches=microbatches,
            skip=skip,
            as_json=as_json,
        )
    if microbatches is None:
        raise Refusal("--microbatches is missing; how many has a step? As --microbatches 8")
    return running.profile_model(
        model,
        output,
        microbatches=microbatches,
        devices=devices,
        placement=placement,
        rounds=rounds,
        as_json=as_json,
    )


def run(
    file: ScheduleFile,
    /,
    *,
    model: ModelName = None,
    emulate: Emulate = False,
    output: Output = None,
    problem: AskedProblem = None,
    steps: Steps = 3,
    unit_ms: UnitMs = None,
    as_json: AsJson = False,
) -> int:
    """Train some steps of a schedule under torchrun, and say how far off its prediction was.

    torchrun --nproc-per-node 4 -m bubbleproof run schedule.json --model model.py:build -o ran.json
    writes the schedule with its measured timeline, which show --measured draws.
    """
    from bubbleproof import running

    if emulate == (model is not None):
        raise Refusal("give --model PATH:callable, or --emulate for modules that sleep")
    return running.run_schedule(
        file, problem, model, output, steps=steps, unit_ms=unit_ms, as_json=as_json
    )
