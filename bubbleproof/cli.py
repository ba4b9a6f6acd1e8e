"""The command line: solve, family, compare, verify, repair, show, export.

Exit status: 0 fine; 1 an honest no (a rule is broken, no schedule exists); 2 the input could not
be used, with one line that says where, what and what would be right; 130 after Ctrl-C.
"""

import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from os.path import exists, samefile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import (
    App,
    CycloptsError,
    Parameter,
    Token,
    UnknownOptionError,
    UnusedCliTokensError,
)

from bubbleproof import __version__
from bubbleproof.terminal import (
    console,
    drop_stdout,
    prepare_streams,
    put,
    put_json,
    say,
    shown,
    terminable,
)

if TYPE_CHECKING:
    from bubbleproof.schedules.problem import Problem
    from bubbleproof.schedules.program import Program
    from bubbleproof.schedules.schedule import Schedule
    from bubbleproof.solver.result import Progress, Result
    from bubbleproof.verify.report import Report

FINE, NO, UNUSABLE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

MOST_SECONDS = 10**7
MOST_WORKERS = 1024
LARGEST_SEED = 2**31 - 1

SCHEDULE_FORMS, PICTURE_FORMS, TORCH_FORMS = (".json", ".csv"), (".svg", ".png", ".pdf"), (".csv",)

TIMES = frozenset({"timing", "exclusive"})
"""Rules about start times, which an order without them cannot break."""

DRAWABLE = TIMES | {"memory"}
"""Rules that a schedule may break and still have times to be drawn."""

app = App(
    name="bubbleproof",
    help="Pipeline-parallel training schedules: solved with a proven bound, verified, drawn.",
    version=__version__,
    help_format="plaintext",
)


class Refusal(Exception):
    """Input that cannot be used; the message is the line that the user reads."""


def _whole(least: int, most: int) -> Parameter:
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


def _seconds(_: object, tokens: Sequence[Token]) -> float:
    text = tokens[0].value
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0 < seconds <= MOST_SECONDS:
        raise ValueError(f"{text!a} is no time limit; a number above 0 is one, as 60 (seconds)")
    return seconds


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
ForAllN = Annotated[
    bool,
    Parameter(
        name="--all-n",
        negative=(),
        help="Find what repeats, and prove the schedule that repeats it for every n; FILE may be "
        "a periodic schedule, too.",
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
TimeLimit = Annotated[float, Parameter(converter=_seconds, help="Seconds of search.")]
Workers = Annotated[
    int | None,
    _whole(1, MOST_WORKERS),
    Parameter(help="Search threads; one per core, at most 8, if not given."),
]
Seed = Annotated[int, _whole(0, LARGEST_SEED), Parameter(help="Seed of the search.")]
ProofFolder = Annotated[
    Path | None,
    Parameter(
        name="--certificate",
        help="Write the schedule with a machine-checkable proof of its bound into this folder; "
        "for problems whose ops all take the same time. May take as long again.",
    ),
]


@app.command
def solve(
    problem: ProblemFile,
    /,
    *,
    output: Output = None,
    time_limit: TimeLimit = 60.0,
    workers: Workers = None,
    seed: Seed = 0,
    certificate: ProofFolder = None,
    as_json: AsJson = False,
) -> int:
    """Find the schedule with the least bubble and prove how far it can be from the best.

    Ctrl-C ends the search and keeps the best schedule so far.
    """
    from bubbleproof import answers, report
    from bubbleproof.solver.result import NoScheduleError
    from bubbleproof.verify.rules import verify as judge

    asked = _problem(problem)
    if output is not None:
        _require_place(output, SCHEDULE_FORMS, problem)
    if certificate is not None:
        _require_certifiable(problem, asked, certificate)
    began = time.monotonic()
    try:
        result = _search(asked, output, time_limit=time_limit, workers=workers, seed=seed)
    except NoScheduleError as error:
        if as_json:
            put_json(answers.of_infeasible(error, time.monotonic() - began))
        else:
            put(report.infeasible(error))
        return NO
    if output is not None:
        _save(result.schedule, output)
    verdict = judge(result.schedule)
    if as_json:
        put_json(answers.of_result(result))
    else:
        put(report.summary(result, verdict))
        hint = "to keep the schedule: bubbleproof solve ... -o schedule.json"
        say(hint if output is None else f"written: {output}")
    if result.interrupted:
        return INTERRUPTED
    if certificate is not None and not _certified(result.schedule, certificate, time_limit, seed):
        return NO
    return _judged(verdict, result.schedule)


@app.command
def check(
    folder: Annotated[Path, Parameter(help="What solve --certificate has written.")],
    /,
    *,
    as_json: AsJson = False,
) -> int:
    """Check a schedule and the proof of its bound, trusting no solver."""
    from bubbleproof import proofs

    with _usable():
        checked = proofs.check_folder(folder)
    if as_json:
        put_json(proofs.answer_of(checked))
    else:
        put(proofs.summary(checked))
    return FINE if checked.proven else NO


@app.command
def family(
    name: Annotated[str, Parameter(help="Its name, as zb_h1; bubbleproof compare lists all.")],
    problem: ProblemFile,
    /,
    *,
    output: Output = None,
    as_json: AsJson = False,
) -> int:
    """Build a published schedule on a problem.

    Where it breaks a rule, as a memory limit, it is written all the same.
    """
    from bubbleproof import answers, report
    from bubbleproof.schedules import families
    from bubbleproof.schedules.simulate import simulate
    from bubbleproof.solver.comparison import Candidate
    from bubbleproof.verify.rules import verify as judge

    asked = _problem(problem)
    if output is not None:
        _require_place(output, SCHEDULE_FORMS, problem)
    with _usable():
        schedule = families.build(name, asked)
    if output is not None:
        _save(schedule, output)
    verdict = judge(schedule)
    candidate = Candidate(name, simulate(schedule))
    if as_json:
        put_json(answers.of_candidate(candidate, verdict))
    else:
        put(report.family_summary(candidate, verdict))
        if output is not None:
            say(f"written: {output}")
    return _judged(verdict, schedule)


@app.command
def compare(
    problem: ProblemFile,
    /,
    *,
    time_limit: TimeLimit = 20.0,
    workers: Workers = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Show every published family and the solver side by side."""
    from bubbleproof import answers, report
    from bubbleproof.solver.comparison import compare_families
    from bubbleproof.solver.result import NoScheduleError

    asked = _problem(problem)
    comparison = compare_families(asked)
    interrupted = False
    try:
        outcome = _search(asked, None, time_limit=time_limit, workers=workers, seed=seed)
    except NoScheduleError as error:
        outcome = error
    else:
        interrupted = outcome.interrupted
        comparison = comparison.with_schedule(report.SOLVE, outcome.schedule)
    if as_json:
        put_json(answers.of_comparison(comparison, outcome))
    else:
        put(report.comparison_table(comparison, outcome))
    if interrupted:
        return INTERRUPTED
    return NO if isinstance(outcome, NoScheduleError) else FINE


@app.command
def verify(
    file: ScheduleFile,
    /,
    *,
    problem: AskedProblem = None,
    order_only: OrderOnly = False,
    transport: TransportName = "all",
    target: TargetName = None,
    renumber: Renumbered = None,
    all_n: ForAllN = False,
    as_json: AsJson = False,
) -> int:
    """Judge a schedule or program by every rule, independently of how it was made.

    A program's messages are judged as they are; a schedule gets some first.
    """
    from bubbleproof import answers, proofs, report
    from bubbleproof.judging import judge
    from bubbleproof.schedules.program import Program, schedule_of
    from bubbleproof.verify.certificate import certify
    from bubbleproof.verify.target import Target
    from bubbleproof.verify.transports import Transport

    if all_n:
        if target is not None or renumber is not None:
            raise Refusal("--all-n: is about every n, and --target about one; ask one at a time")
        return _verified_for_every_n(file, problem, as_json=as_json)
    if renumber is not None:
        if target is None:
            raise Refusal("--renumber: numbers matter to a runtime only; add --target torch")
        _require_place(renumber, SCHEDULE_FORMS, file, problem)
    loaded = _schedule_or_program(file, problem, order_only=order_only)
    if renumber is not None:
        loaded = _renumbered(file, loaded, renumber)
    judgement = judge(
        loaded,
        tuple(Transport) if transport == "all" else (Transport(transport),),
        None if target is None else Target(target),
    )
    verdict = judgement.verdict
    claims = certify(schedule_of(loaded) if isinstance(loaded, Program) else loaded)
    worth = proofs.worth(claims, verdict)
    verdict = replace(verdict, violations=(*verdict.violations, *claims.violations))
    for warning in verdict.warnings:
        say(f"{file}: warning: {warning.message}")
    _say_if_of_other_times(file, problem, verdict)
    if as_json:
        put_json(answers.of_report(verdict, judgement.notes))
    else:
        put(report.verdict(verdict, judgement.judged))
        put(judgement.messages)
        put(worth)
        if judgement.notes is not None:
            put(judgement.needs)
    return FINE if verdict.valid else NO


@app.command
def repair(file: ProgramFile, /, *, output: Output = None, problem: AskedProblem = None) -> int:
    """Give a program messages that arrive under every transport; what it computes stays.

    Where the ops alone cannot run, no messages help, and the cycle is shown.
    """
    from bubbleproof.judging import repaired
    from bubbleproof.schedules.io import load_program, program_text

    if output is not None:
        # Over FILE itself is allowed: it becomes the same program, mended.
        _require_place(output, SCHEDULE_FORMS, problem)
    with _usable():
        program = load_program(file, None if problem is None else _problem(problem))
    _say_if_guessed(file, program.problem)
    form = ".csv" if (output or file).suffix.lower() == ".csv" else ".json"
    result = repaired(program, grouped=form != ".csv")
    if result.program is None:
        say(f"{file}: not repaired, since no messages help what is computed")
        return _judged(result.after, result.judged)
    for violation in result.before.violations:
        say(f"{file}: was {violation.rule}: {violation.message}")
    say(f"{file}: {'as it was' if result.before.valid else 'messages rewritten'}")
    if output is None:
        with _usable(f"{file}: "):
            text = program_text(result.program, form)
        sys.stdout.write(text)
    else:
        _save(result.program, output)
        say(f"written: {output}")
    return _judged(result.after, result.judged)


@app.command
def show(
    file: ScheduleFile,
    /,
    *,
    output: Output = None,
    problem: AskedProblem = None,
    order_only: OrderOnly = False,
) -> int:
    """Draw a schedule's timeline and memory: in the terminal, or with -o as .svg, .png or .pdf.

    Where it breaks a rule and still has times, it is drawn all the same.
    """
    from bubbleproof import report
    from bubbleproof.chart import chart
    from bubbleproof.schedules.simulate import simulate
    from bubbleproof.verify.rules import verify as judge

    if output is not None:
        _require_place(output, PICTURE_FORMS, file, problem)
    schedule = _schedule(file, problem, order_only=order_only)
    verdict = judge(schedule)
    _say_if_of_other_times(file, problem, verdict)
    if not {violation.rule for violation in verdict.violations} <= DRAWABLE:
        say(f"{file}: not drawn, since it cannot run as it stands")
        return _judged(verdict, schedule)
    if output is not None:
        _plot(schedule, output)
        say(f"written: {output}")
    else:
        timeline = simulate(schedule)
        put(chart(timeline, console().width))
        put("")
        put(report.devices(timeline))
    return _judged(verdict, schedule)


@app.command
def export(
    file: ScheduleFile,
    /,
    *,
    to: Annotated[
        Literal["torch-compute-only", "torch-compute-comms", "torchtitan"],
        Parameter(help="The form."),
    ],
    output: Output = None,
    problem: AskedProblem = None,
    order_only: OrderOnly = False,
) -> int:
    """Write what is valid as another program reads it, and say which settings that needs.

    torch-compute-comms has the messages and the steps on weights: those of FILE where it has some,
    else an order that is safe under every transport.
    """
    from bubbleproof.exports import Target, prepare
    from bubbleproof.schedules.files import write_file
    from bubbleproof.schedules.torch_target import settings

    if output is not None:
        _require_place(output, TORCH_FORMS, file, problem)
    target = Target(to)
    prepared = prepare(_schedule_or_program(file, problem, order_only=order_only), target)
    if not prepared.verdict.valid:
        _say_if_of_other_times(file, problem, prepared.verdict)
        say(f"{file}: not exported to {to}, since it is not valid")
        return _judged(prepared.verdict, prepared.judged)
    with _usable(f"{file}: "):
        text = prepared.text(target)
    if output is None:
        sys.stdout.write(text)
    else:
        with _usable():
            write_file(output, text.encode())
    path = "schedule.csv" if output is None else str(output)
    for line in settings(prepared.schedule, path, to):
        say(line)
    return FINE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Parameters
    ----------
    arguments
        Without the program's name; None: those of the process.
    """
    prepare_streams()
    try:
        command, bound, _ = app.parse_args(
            sys.argv[1:] if arguments is None else list(arguments),
            exit_on_error=False,
            print_error=False,
        )
        status = command(*bound.args, **bound.kwargs) or FINE
        sys.stdout.flush()
    except CycloptsError as error:
        say(f"{_wrong_words(error)}; see bubbleproof --help")
        return UNUSABLE
    except Refusal as error:
        say(str(error))
        return UNUSABLE
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except OSError as error:
        # Files are read and written behind ValueErrors, so this is the output stream.
        drop_stdout()
        if isinstance(error, BrokenPipeError):
            return BROKEN_PIPE
        say(f"cannot write the output: {error.strerror}")
        return UNUSABLE
    return status


def _wrong_words(error: CycloptsError) -> str:
    match error:
        case UnusedCliTokensError(unused_tokens=list(unused)) if unused:
            many = "are arguments" if len(unused) > 1 else "is an argument"
            return f"{' '.join(map(ascii, unused))} {many} too many"
        case UnknownOptionError(token=Token(keyword="-") | Token(value="-")):
            return "- is no file; give its name, or /dev/stdin for what comes through a pipe"
        case _:
            return str(error).rstrip(".")


def _search(
    problem: "Problem", output: Path | None, *, time_limit: float, workers: int | None, seed: int
) -> "Result":
    """Solve, keep the best schedule in a file, and show the progress where someone can see it."""
    from bubbleproof.report import progress_line
    from bubbleproof.solver.portfolio import solve as search

    best: list[Progress] = []

    def improved(progress: "Progress") -> None:
        best[:] = [progress]
        if output is not None:
            # A write that fails here is tried once more at the end, and reported then: the
            # search is not to be lost, and it calls from threads that an error would not leave.
            with suppress(Refusal):
                _save(progress.schedule, output)

    end = time.monotonic() + time_limit

    def line() -> str:
        return progress_line(best[0] if best else None, problem, end - time.monotonic())

    with terminable(), shown(line), _usable():
        return search(
            problem,
            time_limit_s=time_limit,
            workers=workers,
            seed=seed,
            on_progress=improved,
        )


def _problem(file: Path) -> "Problem":
    from bubbleproof.schedules.io import load_problem

    with _usable():
        problem = load_problem(file)
    for warning in problem.warnings():
        say(f"{file}: warning: {warning}")
    return problem


def _schedule(file: Path, problem: Path | None, *, order_only: bool) -> "Schedule":
    from bubbleproof.schedules.program import Program, schedule_of

    loaded = _schedule_or_program(file, problem, order_only=order_only)
    return schedule_of(loaded) if isinstance(loaded, Program) else loaded


def _schedule_or_program(
    file: Path, problem: Path | None, *, order_only: bool
) -> "Schedule | Program":
    from bubbleproof.schedules.io import load_schedule_or_program

    asked = None if problem is None else _problem(problem)
    with _usable():
        loaded = load_schedule_or_program(file, asked, order_only=order_only)
    _say_if_guessed(file, loaded.problem)
    return loaded


def _renumbered(file: Path, loaded: "Schedule | Program", output: Path) -> "Schedule | Program":
    """Write a file with other numbers of microbatches, and return what is in it."""
    from bubbleproof.schedules.renumber import renumbered

    result = renumbered(loaded)
    _save(result, output)
    say(f"{file}: {'as it was' if result == loaded else 'microbatches renumbered'}")
    say(f"written and judged: {output}")
    return result


def _verified_for_every_n(file: Path, problem: Path | None, *, as_json: bool) -> int:
    """Judge a periodic schedule, or the one that a schedule repeats, for every n."""
    from bubbleproof import periodics
    from bubbleproof.schedules.schedule import Schedule
    from bubbleproof.verify.every_n import verify_every_n
    from bubbleproof.verify.rules import verify as judge

    asked = None if problem is None else _problem(problem)
    with _usable():
        periodic = periodics.load(file, asked)
    if isinstance(periodic, Schedule):
        _say_if_guessed(file, periodic.problem)
        verdict = judge(periodic)
        if not verdict.valid:
            say(f"{file}: no kernel is looked for, since it is not valid as it stands")
            return _judged(verdict, periodic)
        found = periodics.found(periodic)
        if found is None:
            say(f"{file}: valid for its own n, but nothing in it repeats; more microbatches may do")
            return NO
        periodic = found
    with _usable(f"{file}: "):
        every = verify_every_n(periodic)
    if as_json:
        put_json(periodics.answer_of(every))
    else:
        put(periodics.summary(every, periodic))
    return FINE if every.valid else NO


def _say_if_of_other_times(file: Path, problem: Path | None, verdict: "Report") -> None:
    if problem is not None and not TIMES.isdisjoint(v.rule for v in verdict.violations):
        say(
            f"{file}: its start times do not fit the times of {problem}; --order-only asks how "
            "long its order takes there"
        )


def _say_if_guessed(file: Path, problem: "Problem") -> None:
    from bubbleproof.schedules.torch_csv import GUESSED

    if problem.name == GUESSED:
        say(
            f"{file}: its problem is guessed: F, I and W take 1, transfers nothing, and memory has "
            "no limit; --problem gives the real one, by which times and memory are checked"
        )


def _save(value: "Schedule | Program", output: Path) -> None:
    from bubbleproof.schedules.io import save

    with _usable():
        save(value, output)


def _require_certifiable(file: Path, problem: "Problem", folder: Path) -> None:
    """Refuse before a long search what could not be proven, or not be written, after it."""
    from bubbleproof.proofs import require_certifiable

    with _usable(f"{file}: "):
        require_certifiable(problem)
    if not (folder if folder.exists() else folder.parent).is_dir():
        raise Refusal(f"{folder}: is no folder, and none can be made there; give another")


def _certified(schedule: "Schedule", folder: Path, time_limit: float, seed: int) -> bool:
    """Write a schedule with a proof of its bound, and check both as they stand in the folder."""
    from bubbleproof import proofs

    with terminable(), _usable():
        if not proofs.write_proof(schedule, folder, time_limit_s=time_limit, seed=seed):
            say(f"{folder}: no certificate: the proof took longer than --time-limit")
            return False
        checked = proofs.check_folder(folder)
    say(f"written and checked: {folder} ({checked.clause_proof.steps} steps)")
    return checked.proven


def _require_place(output: Path, forms: Sequence[str], *inputs: Path | None) -> None:
    """Refuse before a long search what could not, or should not, be written after it."""
    from bubbleproof.schedules.files import printable, require_writable

    name = printable(output)
    if output.suffix.lower() not in forms:
        raise Refusal(f"{name}: this is written as {' or '.join(forms)}; name it so")
    with _usable():
        require_writable(output)
    for file in inputs:
        if file is not None and exists(file) and exists(output) and samefile(file, output):
            raise Refusal(f"{name}: is what is read here and would be lost; give another name")


def _plot(schedule: "Schedule", output: Path) -> None:
    from bubbleproof.schedules.plot import plot

    try:
        with _usable():
            plot(schedule, output)
    except ModuleNotFoundError as error:
        raise Refusal(f"{output}: {error}, or leave -o out for the terminal") from error


def _judged(verdict: "Report", schedule: "Schedule | Program") -> int:
    """Return the exit status of a verdict; what is wrong goes to stderr."""
    if verdict.valid:
        return FINE
    from bubbleproof import report

    put(report.verdict(verdict, schedule), error=True)
    return NO


@contextmanager
def _usable(where: str = "") -> Generator[None, None, None]:
    """Turn a ValueError about the input into the one line that the user reads."""
    try:
        yield
    except ValueError as error:
        raise Refusal(f"{where}{error}") from error
