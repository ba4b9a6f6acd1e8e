"""What several commands do: read, search, write, judge, and refuse in one line."""

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from os.path import exists, samefile
from pathlib import Path
from typing import TYPE_CHECKING

from bubbleproof.terminal import put, put_json, say, shown, terminable, was_terminated

if TYPE_CHECKING:
    from bubbleproof.schedules.periodic import Periodic
    from bubbleproof.schedules.periodic_program import PeriodicProgram
    from bubbleproof.schedules.problem import Problem
    from bubbleproof.schedules.program import Program
    from bubbleproof.schedules.schedule import Schedule
    from bubbleproof.solver.result import Progress, Result
    from bubbleproof.verify.every_n import EveryN
    from bubbleproof.verify.report import Report

FINE, NO, UNUSABLE, INTERRUPTED, BROKEN_PIPE, TERMINATED = 0, 1, 2, 130, 141, 143
"""Exit statuses: see ``cli``."""

SCHEDULE_FORMS = (".json", ".csv")
"""Forms of a schedule's file."""

TIMES = frozenset({"timing", "exclusive"})
"""Rules about start times, which an order without them cannot break."""


class Refusal(Exception):
    """Input that cannot be used; the message is the line that the user reads."""


def search(
    problem: "Problem",
    output: Path | None,
    *,
    time_limit: float,
    workers: int | None,
    seed: int,
    deterministic: bool = False,
    asymmetric: bool = False,
) -> "Result":
    """Solve, keep the best schedule in a file, and show the progress where someone can see it."""
    from bubbleproof.report import progress_line
    from bubbleproof.solver.portfolio import solve

    best: list[Progress] = []

    def improved(progress: "Progress") -> None:
        best[:] = [progress]
        if output is not None:
            # A write that fails here is tried once more at the end, and reported then: the
            # search is not to be lost, and it calls from threads that an error would not leave.
            with suppress(Refusal):
                write(progress.schedule, output)

    end = time.monotonic() + time_limit

    def line() -> str:
        return progress_line(best[0] if best else None, problem, end - time.monotonic())

    with terminable(), shown(line), usable():
        result = solve(
            problem,
            time_limit_s=time_limit,
            workers=workers,
            seed=seed,
            deterministic=deterministic,
            asymmetric=asymmetric,
            on_progress=improved,
        )
    if result.cut:
        say("--deterministic: stopped at three times --time-limit; another run may differ")
    return result


def ended(status: int) -> int:
    """Return the exit status of a command: after SIGTERM it is that of a signal, too."""
    return TERMINATED if status == INTERRUPTED and was_terminated() else status


def read_problem(file: Path) -> "Problem":
    """Read a problem; what is probably not meant goes to stderr.

    Costs of blocks that components leave open are derived from them.
    """
    from bubbleproof.schedules.io import load_problem

    with usable():
        problem = load_problem(file)
    for warning in problem.warnings():
        say(f"{file}: warning: {warning}")
    if problem.cost.components is not None:
        from bubbleproof.solver.block_order import with_block_costs

        problem = with_block_costs(problem)
    return problem


def read_plan(file: Path, problem: Path | None, *, order_only: bool) -> "Schedule | Program":
    """Read a schedule or a program, on its own problem or another."""
    from bubbleproof.schedules.io import load_schedule_or_program

    asked = None if problem is None else read_problem(problem)
    with usable():
        loaded = load_schedule_or_program(file, asked, order_only=order_only)
    say_if_guessed(file, loaded.problem)
    return loaded


def renumbered_into(file: Path, loaded: "Schedule | Program", output: Path) -> "Schedule | Program":
    """Write a file with other numbers of microbatches, and return what is in it."""
    from bubbleproof.schedules.renumber import renumbered

    result = renumbered(loaded)
    write(result, output)
    say(f"{file}: {'as it was' if result == loaded else 'microbatches renumbered'}")
    say(f"written and judged: {output}")
    return result


def verified_for_every_n(file: Path, problem: Path | None, *, as_json: bool) -> int:
    """Judge a periodic schedule, or the one that a schedule repeats, for every n."""
    from bubbleproof import periodics
    from bubbleproof.schedules.periodic_program import PeriodicProgram
    from bubbleproof.schedules.program import Program
    from bubbleproof.schedules.schedule import Schedule
    from bubbleproof.verify.every_n import verify_every_n
    from bubbleproof.verify.every_n_program import verify_program_every_n
    from bubbleproof.verify.program_rules import verify_program
    from bubbleproof.verify.rules import verify as judge

    asked = None if problem is None else read_problem(problem)
    with usable():
        periodic = periodics.load(file, asked)
    if isinstance(periodic, (Schedule, Program)):
        say_if_guessed(file, periodic.problem)
        of_program = isinstance(periodic, Program)
        verdict = verify_program(periodic) if of_program else judge(periodic)
        if not verdict.valid:
            say(f"{file}: no kernel is looked for, since it is not valid as it stands")
            return judged(verdict, periodic)
    if isinstance(periodic, Program):
        repeated = periodics.proven(periodic)
        if repeated is None:
            say(
                f"{file}: valid for its own n, and not proven for others: nothing in it repeats "
                "with its messages; more microbatches may do, or the ops without messages"
            )
            return NO
        return told_for_every_n(repeated[1], repeated[0], as_json=as_json)
    if isinstance(periodic, Schedule):
        found = periodics.found(periodic)
        if found is None:
            say(f"{file}: valid for its own n, but nothing in it repeats; more microbatches may do")
            return NO
        periodic = found
    with usable(f"{file}: "):
        if isinstance(periodic, PeriodicProgram):
            every = verify_program_every_n(periodic)
        else:
            every = verify_every_n(periodic)
    return told_for_every_n(every, periodic, as_json=as_json)


def told_for_every_n(
    every: "EveryN", periodic: "Periodic | PeriodicProgram", *, as_json: bool
) -> int:
    """Tell a verdict for every n."""
    from bubbleproof import periodics

    if as_json:
        put_json(periodics.answer_of(every))
    else:
        put(periodics.summary(every, periodic))
    return FINE if every.valid else NO


def solved_for_every_n(
    problem: "Problem",
    output: Path | None,
    *,
    time_limit: float,
    workers: int | None,
    seed: int,
    deterministic: bool,
    as_json: bool,
) -> int:
    """Find a schedule for every n, judge it for every n, and write it."""
    from bubbleproof import periodics
    from bubbleproof.schedules.periodic_words import save_periodic
    from bubbleproof.solver.every_n import solve_every_n
    from bubbleproof.verify.every_n import verify_every_n

    with terminable(), usable():
        solved = solve_every_n(
            problem,
            time_limit_s=time_limit,
            workers=workers,
            seed=seed,
            deterministic=deterministic,
        )
        if output is not None:
            save_periodic(solved.periodic, output)
    verdict = verify_every_n(solved.periodic)
    if as_json:
        put_json(periodics.solved_answer(solved, verdict))
    else:
        put(periodics.solved_summary(solved, verdict))
        hint = "to keep the schedule: bubbleproof solve --all-n ... -o periodic.json"
        say(hint if output is None else f"written: {output}")
    if solved.interrupted:
        return INTERRUPTED
    return FINE if verdict.valid else NO


def say_if_of_other_times(file: Path, problem: Path | None, verdict: "Report") -> None:
    """Point to --order-only where only the start times do not fit another problem."""
    if problem is not None and not TIMES.isdisjoint(v.rule for v in verdict.violations):
        say(
            f"{file}: its start times do not fit the times of {problem}; --order-only asks how "
            "long its order takes there"
        )


def say_if_guessed(file: Path, problem: "Problem") -> None:
    """Say that a CSV brought no problem, and what is taken for it."""
    from bubbleproof.schedules.torch_csv import GUESSED

    if problem.name == GUESSED:
        say(
            f"{file}: its problem is guessed: F, I and W take 1, transfers nothing, and memory has "
            "no limit; --problem gives the real one, by which times and memory are checked"
        )


def write(value: "Problem | Schedule | Program", output: Path) -> None:
    """Write a problem, a schedule or a program; the extension decides the form."""
    from bubbleproof.schedules.io import save

    with usable():
        save(value, output)


def require_certifiable(file: Path, problem: "Problem", folder: Path) -> None:
    """Refuse before a long search what could not be proven, or not be written, after it."""
    from bubbleproof.proofs import require_certifiable

    with usable(f"{file}: "):
        require_certifiable(problem)
    require_folder(folder)


def require_folder(folder: Path) -> None:
    """Refuse before a long search a folder that could not be written into after it."""
    if not (folder if folder.exists() else folder.parent).is_dir():
        raise Refusal(f"{folder}: is no folder, and none can be made there; give another")


def certified(schedule: "Schedule", folder: Path, time_limit: float, seed: int) -> bool:
    """Write a schedule with a proof of its bound, and check both as they stand in the folder."""
    from bubbleproof import proofs

    with terminable(), usable():
        if not proofs.write_proof(schedule, folder, time_limit_s=time_limit, seed=seed):
            say(f"{folder}: no certificate: the proof took longer than --time-limit")
            return False
        checked = proofs.check_folder(folder)
    say(f"written and checked: {folder} ({checked.clause_proof.steps} steps)")
    return checked.proven


def require_place(output: Path, forms: Sequence[str], *inputs: Path | None) -> None:
    """Refuse before a long search what could not, or should not, be written after it."""
    from bubbleproof.schedules.files import printable, require_writable

    name = printable(output)
    if not output.suffix or not output.name.lower().endswith(tuple(forms)):
        raise Refusal(f"{name}: this is written as {' or '.join(forms)}; name it so")
    with usable():
        require_writable(output)
    for file in inputs:
        if file is not None and exists(file) and exists(output) and samefile(file, output):
            raise Refusal(f"{name}: is what is read here and would be lost; give another name")


def draw(plan: "Schedule | Program", schedule: "Schedule", output: Path, *, measured: bool) -> None:
    """Draw a schedule, or the one of a program, into a picture, a page or a trace."""
    from bubbleproof.schedules.files import write_file
    from bubbleproof.schedules.plot import plot

    if output.suffix.lower() not in (".html", ".json"):
        try:
            with usable():
                plot(schedule, output, measured=measured)
        except ModuleNotFoundError as error:
            raise Refusal(f"{output}: {error}, or leave -o out for the terminal") from error
        return
    from bubbleproof.schedules.deviation import deviation
    from bubbleproof.schedules.marks import marks_of
    from bubbleproof.schedules.page import page_text
    from bubbleproof.schedules.program import Program
    from bubbleproof.schedules.simulate import simulate
    from bubbleproof.schedules.trace import trace_text

    timeline = simulate(schedule)
    compared = deviation(schedule) if measured else None
    marks = tuple(marks_of(plan, timeline)) if isinstance(plan, Program) else ()
    if output.suffix.lower() == ".html":
        text = page_text(timeline, compared=compared, marks=marks)
    else:
        run = None if compared is None else compared.measured
        text = trace_text(timeline, measured=run, marks=marks)
    with usable():
        write_file(output, text.encode())


def judged(verdict: "Report", schedule: "Schedule | Program") -> int:
    """Return the exit status of a verdict; what is wrong goes to stderr."""
    if verdict.valid:
        return FINE
    from bubbleproof import report

    put(report.verdict(verdict, schedule), error=True)
    return NO


@contextmanager
def usable(where: str = "") -> Generator[None, None, None]:
    """Turn a ValueError about the input into the one line that the user reads."""
    try:
        yield
    except ValueError as error:
        raise Refusal(f"{where}{error}") from error
