"""The command line: solve, family, compare, frontier, overlap, verify, repair, show, export, run.

Exit status: 0 fine; 1 an honest no (a rule is broken, no schedule exists); 2 the input could not
be used, with one line that says where, what and what would be right; 130 after Ctrl-C, 143 after
SIGTERM.
"""

import sys
from collections.abc import Sequence
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
    OnPlacements,
    OrderOnly,
    Output,
    ProblemFile,
    ScheduleFile,
    Seed,
    ShowMeasured,
    TimeLimit,
    Workers,
)
from bubbleproof.frontier_command import frontier
from bubbleproof.run_commands import profile, run
from bubbleproof.solve_commands import check, solve
from bubbleproof.steps import (
    BROKEN_PIPE,
    FINE,
    INTERRUPTED,
    NO,
    SCHEDULE_FORMS,
    TIMES,
    UNUSABLE,
    Refusal,
    draw,
    ended,
    judged,
    read_plan,
    read_problem,
    require_place,
    say_if_of_other_times,
    search,
    usable,
    write,
)
from bubbleproof.stream_commands import overlap
from bubbleproof.terminal import console, drop_stdout, prepare_streams, put, put_json, say
from bubbleproof.verify_commands import repair, verify

TORCH_FORMS = (".csv",)
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


for _command in (check, frontier, overlap, profile, repair, run, solve, verify):
    app.command(_command)


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
