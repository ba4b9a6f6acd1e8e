"""The commands ``verify`` and ``repair``: what is judged, and mended messages."""

import sys
from dataclasses import replace

from bubbleproof.arguments import (
    AsJson,
    AskedProblem,
    ForAllN,
    OrderOnly,
    Output,
    ProgramFile,
    Renumbered,
    ScheduleFile,
    TargetName,
    TorchVersion,
    TransportName,
)
from bubbleproof.steps import (
    FINE,
    NO,
    SCHEDULE_FORMS,
    Refusal,
    judged,
    read_plan,
    read_problem,
    renumbered_into,
    require_place,
    say_if_guessed,
    say_if_of_other_times,
    usable,
    verified_for_every_n,
    write,
)
from bubbleproof.stream_commands import verified_streams
from bubbleproof.terminal import put, put_json, say


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
        asked = (order_only, transport != "all", target, torch_version, renumber, all_n)
        if any(asked):
            raise Refusal(f"{file}: a schedule of components takes no option but --problem, --json")
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
