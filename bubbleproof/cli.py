"""The command line: solve, family, compare, frontier, overlap, verify, repair, show, export, run.

Exit status: 0 fine; 1 an honest no (a rule is broken, no schedule exists); 2 the input could not
be used, with one line that says where, what and what would be right; 130 after Ctrl-C, 143 after
SIGTERM.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import (
    App,
    CycloptsError,
    Parameter,
    Token,
    UnknownOptionError,
    UnusedCliTokensError,
)

from bubbleproof import __version__
from bubbleproof.arguments import (
    AsJson,
    AskedProblem,
    Asymmetric,
    Deterministic,
    ForAllN,
    InStreams,
    OnPlacements,
    OrderOnly,
    Output,
    ProblemFile,
    ProgramFile,
    ProofFolder,
    Renumbered,
    ScheduleFile,
    Seed,
    ShowMeasured,
    SolveAllN,
    TargetName,
    TimeLimit,
    TorchVersion,
    TransportName,
    Workers,
)
from bubbleproof.frontier_command import frontier
from bubbleproof.run_commands import profile, run
from bubbleproof.steps import (
    BROKEN_PIPE,
    FINE,
    INTERRUPTED,
    NO,
    TIMES,
    UNUSABLE,
    Refusal,
    certified,
    draw,
    ended,
    judged,
    read_plan,
    read_problem,
    renumbered_into,
    require_certifiable,
    require_place,
    say_if_guessed,
    say_if_of_other_times,
    search,
    solved_for_every_n,
    usable,
    verified_for_every_n,
    write,
)
from bubbleproof.stream_commands import overlap, solved_in_streams, verified_streams
from bubbleproof.terminal import console, drop_stdout, prepare_streams, put, put_json, say

SCHEDULE_FORMS, TORCH_FORMS = (".json", ".csv"), (".csv",)
PICTURE_FORMS = (".svg", ".png", ".pdf", ".html", ".trace.json")

DRAWABLE = TIMES | {"memory"}
"""Rules that a schedule may break and still have times to be drawn."""

app = App(
    name="bubbleproof",
    help="Pipeline-parallel training schedules: solved with a proven bound, verified, drawn.",
    version=__version__,
    help_format="plaintext",
)


@app.command
def solve(
    problem: ProblemFile,
    /,
    *,
    output: Output = None,
    time_limit: TimeLimit = 60.0,
    workers: Workers = None,
    seed: Seed = 0,
    deterministic: Deterministic = False,
    certificate: ProofFolder = None,
    all_n: SolveAllN = False,
    streams: InStreams = False,
    asymmetric: Asymmetric = False,
    as_json: AsJson = False,
) -> int:
    """Find the schedule with the least bubble and prove how far it can be from the best.

    Ctrl-C ends the search and keeps the best schedule so far.
    """
    from bubbleproof import answers, report
    from bubbleproof.solver.result import NoScheduleError
    from bubbleproof.verify.rules import verify as judge

    asked = read_problem(problem)
    if streams and (all_n or deterministic or certificate is not None):
        raise Refusal("--streams: takes no --all-n, --deterministic or --certificate; leave it out")
    if output is not None:
        require_place(output, (".json",) if all_n or streams else SCHEDULE_FORMS, problem)
    if certificate is not None:
        if all_n:
            raise Refusal("--certificate: proves a bound for one n; leave --all-n out")
        require_certifiable(problem, asked, certificate)
    began = time.monotonic()
    try:
        if all_n:
            return solved_for_every_n(
                asked,
                output,
                time_limit=time_limit,
                workers=workers,
                seed=seed,
                deterministic=deterministic,
                as_json=as_json,
            )
        if streams:
            return solved_in_streams(
                problem,
                asked,
                output,
                time_limit=time_limit,
                workers=workers,
                seed=seed,
                asymmetric=asymmetric,
                as_json=as_json,
            )
        result = search(
            asked,
            output,
            time_limit=time_limit,
            workers=workers,
            seed=seed,
            deterministic=deterministic,
            asymmetric=asymmetric,
        )
    except NoScheduleError as error:
        if as_json:
            put_json(answers.of_infeasible(error, time.monotonic() - began))
        else:
            put(report.infeasible(error))
        return NO
    if output is not None:
        write(result.schedule, output)
    verdict = judge(result.schedule)
    if as_json:
        put_json(answers.of_result(result))
    else:
        put(report.summary(result, verdict))
        hint = "to keep the schedule: bubbleproof solve ... -o schedule.json"
        say(hint if output is None else f"written: {output}")
    if result.interrupted:
        return INTERRUPTED
    if certificate is not None and not certified(result.schedule, certificate, time_limit, seed):
        return NO
    return judged(verdict, result.schedule)


@app.command
def check(
    folder: Annotated[Path, Parameter(help="What solve --certificate has written.")],
    /,
    *,
    as_json: AsJson = False,
) -> int:
    """Check a schedule and the proof of its bound, trusting no solver."""
    from bubbleproof import proofs

    with usable():
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

    asked = read_problem(problem)
    if output is not None:
        require_place(output, SCHEDULE_FORMS, problem)
    with usable():
        schedule = families.build(name, asked)
    if output is not None:
        write(schedule, output)
    verdict = judge(schedule)
    candidate = Candidate(name, simulate(schedule))
    if as_json:
        put_json(answers.of_candidate(candidate, verdict))
    else:
        put(report.family_summary(candidate, verdict))
        if output is not None:
            say(f"written: {output}")
    return judged(verdict, schedule)


@app.command
def compare(
    problem: ProblemFile,
    /,
    *,
    time_limit: TimeLimit = 20.0,
    workers: Workers = None,
    seed: Seed = 0,
    placements: OnPlacements = False,
    as_json: AsJson = False,
) -> int:
    """Show every published family and the solver side by side."""
    from bubbleproof import answers, report
    from bubbleproof.solver.comparison import compare_families
    from bubbleproof.solver.result import NoScheduleError

    if placements:
        from bubbleproof.placements import compare_placements

        return compare_placements(
            read_problem(problem),
            time_limit=time_limit,
            workers=workers,
            seed=seed,
            as_json=as_json,
        )
    asked = read_problem(problem)
    comparison = compare_families(asked)
    interrupted = False
    try:
        outcome = search(asked, None, time_limit=time_limit, workers=workers, seed=seed)
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
    torch_version: TorchVersion = None,
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
    from bubbleproof.schedules.stream_words import holds_streams
    from bubbleproof.verify.certificate import certify
    from bubbleproof.verify.target import Target
    from bubbleproof.verify.transports import Transport

    with usable():
        of_streams = holds_streams(file)
    if of_streams:
        return verified_streams(file, problem, as_json=as_json)
    if all_n:
        if target is not None or renumber is not None or torch_version is not None:
            raise Refusal("--all-n: is about every n, and --target about one; ask one at a time")
        if transport != "all":
            raise Refusal(
                "--all-n: messages are proven under all transports; leave --transport out"
            )
        return verified_for_every_n(file, problem, as_json=as_json)
    if torch_version is not None and target is None:
        raise Refusal("--torch-version: matters to torch only; add --target torch")
    if renumber is not None:
        if target is None:
            raise Refusal("--renumber: numbers matter to a runtime only; add --target torch")
        require_place(renumber, SCHEDULE_FORMS, file, problem)
    loaded = read_plan(file, problem, order_only=order_only)
    if renumber is not None:
        loaded = renumbered_into(file, loaded, renumber)
    judgement = judge(
        loaded,
        tuple(Transport) if transport == "all" else (Transport(transport),),
        None if target is None else Target(target),
        torch_version,
    )
    verdict = judgement.verdict
    claims = certify(schedule_of(loaded) if isinstance(loaded, Program) else loaded)
    worth = proofs.with_rows(claims, verdict)
    verdict = replace(verdict, violations=(*verdict.violations, *claims.violations))
    for warning in verdict.warnings:
        say(f"{file}: warning: {warning.message}")
    say_if_of_other_times(file, problem, verdict)
    if as_json:
        put_json(answers.of_report(verdict, judgement.notes, worth))
    else:
        put(report.verdict(verdict, judgement.judged))
        put(judgement.messages)
        put(proofs.worth(worth))
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
        require_place(output, SCHEDULE_FORMS, problem)
    with usable():
        program = load_program(file, None if problem is None else read_problem(problem))
    say_if_guessed(file, program.problem)
    form = ".csv" if (output or file).suffix.lower() == ".csv" else ".json"
    result = repaired(program, grouped=form != ".csv")
    if result.program is None:
        say(f"{file}: not repaired, since no messages help what is computed")
        return judged(result.after, result.judged)
    for violation in result.before.violations:
        say(f"{file}: was {violation.rule}: {violation.message}")
    say(f"{file}: {'as it was' if result.before.valid else 'messages rewritten'}")
    if output is None:
        with usable(f"{file}: "):
            text = program_text(result.program, form)
        sys.stdout.write(text)
    else:
        write(result.program, output)
        say(f"written: {output}")
    return judged(result.after, result.judged)


@app.command
def show(
    file: ScheduleFile,
    /,
    *,
    output: Output = None,
    problem: AskedProblem = None,
    order_only: OrderOnly = False,
    measured: ShowMeasured = False,
) -> int:
    """Draw a schedule's timeline and memory: in the terminal, or with -o into a file.

    .svg, .png and .pdf are pictures, .html is a page in which ops say what they are, .trace.json is
    for Perfetto. Where it breaks a rule and still has times, it is drawn all the same.
    """
    from bubbleproof import runs
    from bubbleproof.schedules.program import Program, schedule_of
    from bubbleproof.verify.rules import verify as judge

    if output is not None:
        require_place(output, PICTURE_FORMS, file, problem)
    plan = read_plan(file, problem, order_only=order_only)
    schedule = schedule_of(plan) if isinstance(plan, Program) else plan
    if measured and schedule.measured is None:
        raise Refusal(
            f"{file}: has no measured timeline; bubbleproof run -o writes one into a copy"
        )
    verdict = judge(schedule)
    say_if_of_other_times(file, problem, verdict)
    if not {violation.rule for violation in verdict.violations} <= DRAWABLE:
        say(f"{file}: not drawn, since it cannot run as it stands")
        return judged(verdict, schedule)
    if output is not None:
        draw(plan, schedule, output, measured=measured)
        say(f"written: {output}")
    else:
        put(runs.charts(schedule, console().width, measured=measured))
    return judged(verdict, schedule)


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
        require_place(output, TORCH_FORMS, file, problem)
    target = Target(to)
    prepared = prepare(read_plan(file, problem, order_only=order_only), target)
    if not prepared.verdict.valid:
        say_if_of_other_times(file, problem, prepared.verdict)
        say(f"{file}: not exported to {to}, since it is not valid")
        return judged(prepared.verdict, prepared.judged)
    with usable(f"{file}: "):
        text = prepared.text(target)
    if output is None:
        sys.stdout.write(text)
    else:
        with usable():
            write_file(output, text.encode())
    path = "schedule.csv" if output is None else str(output)
    for line in settings(prepared.schedule, path, to):
        say(line)
    return FINE


app.command(frontier)
app.command(overlap)
app.command(profile)
app.command(run)


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
        status = ended(command(*bound.args, **bound.kwargs) or FINE)
        sys.stdout.flush()
    except CycloptsError as error:
        say(f"{_wrong_words(error)}; see bubbleproof --help")
        return UNUSABLE
    except Refusal as error:
        say(str(error))
        return UNUSABLE
    except KeyboardInterrupt:
        say("interrupted")
        return ended(INTERRUPTED)
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
