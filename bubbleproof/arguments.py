"""The arguments and options of the command line, with what they accept."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, Token

MOST_SECONDS = 10**7
MOST_WORKERS = 1024
LARGEST_SEED = 2**31 - 1


def whole(least: int, most: int) -> Parameter:
    """Accept a whole number in a range, and no fraction that would have to be rounded."""

    def convert(_: object, tokens: Sequence[Token]) -> int:
        text = tokens[0].value
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
            from bubbleproof.schedules.words import whole_example

            example = whole_example(text, least, most)
            raise ValueError(f"{text!a} is not a whole number; write one, as {example}")
        if not least <= int(text) <= most:
            raise ValueError(f"{text} is out of range; {least}..{most} is accepted")
        return int(text)

    return Parameter(converter=convert)


def positive(what: str, example: str) -> Callable[[object, Sequence[Token]], float]:
    """Return what reads a number above 0, and names what it is and an example where it is none."""

    def read(_: object, tokens: Sequence[Token]) -> float:
        text = tokens[0].value
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not 0 < number <= MOST_SECONDS:
            raise ValueError(f"{text!a} is no {what}; a number above 0 is one, as {example}")
        return number

    return read


def _torch_version(_: object, tokens: Sequence[Token]) -> str:
    from bubbleproof.verify.torch_version import read_version

    text = tokens[0].value
    read_version(text)
    return text


ProblemFile = Annotated[Path, Parameter(help="A problem, JSON or TOML.")]
ScheduleFile = Annotated[
    Path, Parameter(help="A schedule or a program with messages, JSON or torch's CSV.")
]
ProgramFile = Annotated[
    Path, Parameter(help="A program with messages, JSON or torch's compute_comms CSV.")
]
AskedProblem = Annotated[
    Path | None,
    Parameter(name="--problem", help="Take this problem instead of the schedule's own."),
]
OrderOnly = Annotated[
    bool,
    Parameter(
        name="--order-only",
        negative=(),
        help="Drop the start times: each op as early as its order allows. With --problem: how "
        "long does this order take there?",
    ),
]
ShowMeasured = Annotated[
    bool,
    Parameter(
        name="--measured",
        negative=(),
        help="Draw the run that FILE carries under the prediction, and say how far off it was.",
    ),
]
ForAllN = Annotated[
    bool,
    Parameter(
        name="--all-n",
        negative=(),
        help="Find what repeats, and prove the schedule that repeats it for every n; FILE may be "
        "a periodic schedule, too.",
    ),
]
SolveAllN = Annotated[
    bool,
    Parameter(
        name="--all-n",
        negative=(),
        help="Find a schedule for every number of microbatches: a prologue, a kernel that repeats, "
        "an epilogue, with a bound for every n. -o writes it as a periodic schedule (.json).",
    ),
]
InStreams = Annotated[
    bool,
    Parameter(
        name="--streams",
        negative=(),
        help="Order the components of all ops on each device's two streams, not whole blocks; for "
        "problems whose cost has components. -o writes .json.",
    ),
]
TransportName = Annotated[
    Literal["all", "buffered", "rendezvous", "pair-fifo", "rank-fifo"],
    Parameter(name="--transport", help="How messages move; what is valid ends under all."),
]
TargetName = Annotated[
    Literal["torch"] | None,
    Parameter(name="--target", help="Check what this runtime silently needs, too."),
]
TorchVersion = Annotated[
    str | None,
    Parameter(
        name="--torch-version",
        converter=_torch_version,
        help="With --target torch: the version that is to run it, as 2.10; what it lacks is then a "
        "violation.",
    ),
]
Renumbered = Annotated[
    Path | None,
    Parameter(
        name="--renumber",
        help="With --target torch: give the microbatches the numbers of their order on the last "
        "stage, as torch needs them; write that to this file, and judge it.",
    ),
]
Output = Annotated[Path | None, Parameter(name=["--output", "-o"], help="The file to write.")]
AsJson = Annotated[bool, Parameter(name="--json", negative=(), help="Print one JSON object.")]
TimeLimit = Annotated[
    float, Parameter(converter=positive("time limit", "60 (seconds)"), help="Seconds of search.")
]
Workers = Annotated[
    int | None,
    whole(1, MOST_WORKERS),
    Parameter(help="Search threads; one per core, at most 8, if not given."),
]
Seed = Annotated[int, whole(0, LARGEST_SEED), Parameter(help="Seed of the search.")]
Deterministic = Annotated[
    bool,
    Parameter(
        name="--deterministic",
        negative=(),
        help="Count work in place of time: the same problem, limit and seed give the same file, "
        "byte by byte. One thread; up to three times the limit, and a line says so if that was "
        "too short.",
    ),
]
Asymmetric = Annotated[
    bool,
    Parameter(
        name="--asymmetric",
        negative=(),
        help="With overlapped pairs: search among all orders from the start, not first among those "
        "that are their own mirror image. Bounds hold for all orders either way.",
    ),
]
OnPlacements = Annotated[
    bool,
    Parameter(
        name="--placements",
        negative=(),
        help="Cut the same model for every placement, and show all families and the solver on "
        "each; --time-limit is shared.",
    ),
]
ProofFolder = Annotated[
    Path | None,
    Parameter(
        name="--certificate",
        help="Write the schedule with a machine-checkable proof of its bound into this folder; "
        "for problems whose ops all take the same time. May take as long again.",
    ),
]
