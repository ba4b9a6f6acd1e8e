"""The commands ``solve`` and ``check``: a schedule with its bound, and the proof of that."""

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bubbleproof.arguments import (
    AsJson,
    Asymmetric,
    Deterministic,
    InStreams,
    Output,
    ProblemFile,
    ProofFolder,
    Seed,
    SolveAllN,
    TimeLimit,
    Workers,
)
from bubbleproof.steps import (
    FINE,
    INTERRUPTED,
    NO,
    SCHEDULE_FORMS,
    Refusal,
    certified,
    judged,
    read_problem,
    require_certifiable,
    require_place,
    search,
    solved_for_every_n,
    usable,
    write,
)
from bubbleproof.stream_commands import solved_in_streams
from bubbleproof.terminal import put, put_json, say


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
