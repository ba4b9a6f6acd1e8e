"""The objects that ``--json`` prints, in the user's units."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Bound, Status
from bubbleproof.schedules.simulate import Timeline
from bubbleproof.solver.comparison import Candidate, Comparison
from bubbleproof.solver.result import NoScheduleError, Result
from bubbleproof.verify.certificate import Certificate
from bubbleproof.verify.infeasible import certify_infeasible
from bubbleproof.verify.report import Report, Violation

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


def of_result(result: Result) -> Json:
    """Return what a search found and proved."""
    timeline = result.timeline
    return {
        "status": result.status.value,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        **_measures(timeline),
        "seconds": round(result.seconds, 3),
        **({} if result.cut is None else {"cut": result.cut}),
        "source": result.source,
        "proof": [_bound(bound, result.problem) for bound in result.proof],
        **_forms(result),
    }


def _forms(result: Result) -> dict[str, Json]:
    """Return how the backwards run, and what all in one form give, where that is a choice."""
    if result.problem.backward is not Backward.FREE:
        return {}
    time = result.problem.time
    return {
        "backwards": {backward.value: count for backward, count in result.backwards.items()},
        "forms": {
            form.backward.value: {
                "objective": time(form.objective_ticks),
                "bound": time(form.bound_ticks),
            }
            for form in result.forms
        },
    }


def of_infeasible(error: NoScheduleError, seconds: float) -> Json:
    """Return the same object for a problem that has no schedule.

    Its proof bounds no time, so it has no terms; beside the keys of every proof it has the memory
    limit, the least that would do, and what the verifier, which recomputes both, makes of it.
    """
    return {
        "status": Status.INFEASIBLE.value,
        "objective": None,
        "bound": error.bound,
        "gap": None,
        "makespan": None,
        "span": None,
        "bubble_ratio": None,
        "peak_memory": None,
        "seconds": round(seconds, 3),
        "source": "",
        "proof": [
            {
                "name": "memory",
                "bound": None,
                "device": error.device,
                "terms": {},
                "text": str(error),
                "limit": error.limit,
                "least": error.least,
                "standing": certify_infeasible(
                    error.problem, error.device, error.least
                ).standing.value,
            }
        ],
    }


def of_candidate(candidate: Candidate, report: Report) -> Json:
    """Return a family's schedule as a comparison sees it, with the verdict on it."""
    return {
        **_candidate(candidate),
        "valid": report.valid,
        "violations": _places(report.violations),
    }


def of_comparison(comparison: Comparison, result: Result | NoScheduleError) -> Json:
    """Return all candidates, the families that do not apply, and what the solver proved."""
    problem = comparison.problem
    proven: dict[str, Json]
    if isinstance(result, NoScheduleError):
        proven = {"status": Status.INFEASIBLE.value, "bound": result.bound, "reason": str(result)}
    else:
        proven = {"status": result.status.value, "bound": result.bound}
    return {
        "problem": problem.name,
        "minimized": problem.objective.value,
        **proven,
        "candidates": [_candidate(candidate) for candidate in comparison.candidates],
        "refused": [{"name": name, "reason": reason} for name, reason in comparison.refused],
    }


def of_report(
    report: Report,
    notes: Sequence[Violation] | None = None,
    claims: Certificate | None = None,
) -> Json:
    """Return the verdict on a schedule or program.

    ``deadlock`` concerns messages; where the ops alone cannot run, that is a violation of the rule
    ``causal``. ``notes``, in the form of violations, are what a target needs from its user; they
    are there where a target was asked for. ``certificate`` says what the schedule's own claims are
    worth: "confirmed", "rests on the solver's word", "refused" or "nothing is claimed".
    """
    return {
        "valid": report.valid,
        "makespan": report.makespan,
        "span": report.span,
        "peak_memory": report.peak_memory,
        "violations": _places(report.violations),
        "deadlock": _deadlock(report),
        **({} if notes is None else {"notes": _places(notes)}),
        **({} if claims is None else {"certificate": _worth(claims)}),
    }


def _worth(claims: Certificate) -> Json:
    return {"standing": claims.standing.value, "reason": claims.reason}


def _deadlock(report: Report) -> Json:
    if report.deadlock is None:
        return None
    return {"transport": report.deadlock["transport"], "blocked": report.deadlock["blocked"]}


def _measures(timeline: Timeline) -> dict[str, Json]:
    return {
        "makespan": timeline.makespan,
        "span": timeline.span,
        "bubble_ratio": timeline.bubble_ratio,
        "peak_memory": timeline.peak_memory,
    }


def _candidate(candidate: Candidate) -> dict[str, Json]:
    problem = candidate.timeline.schedule.problem
    return {
        "name": candidate.name,
        "objective": problem.time(candidate.objective_ticks),
        **_measures(candidate.timeline),
        "zb_bubble_ratio": candidate.timeline.zb_bubble_ratio,
        "fits": candidate.fits,
        "weight_copies": candidate.weight_copies,
        "source": candidate.timeline.schedule.source,
    }


def _bound(bound: Bound, problem: Problem) -> Json:
    return {
        "name": bound.name,
        "bound": problem.time(bound.ticks),
        "device": bound.device,
        "terms": {name: problem.time(ticks) for name, ticks in bound.terms.items()},
        "text": bound.text,
    }


def _places(violations: Sequence[Violation]) -> Json:
    return [
        {
            "rule": violation.rule,
            "device": violation.device,
            "position": violation.position,
            "ops": violation.ops,
            "message": violation.message,
        }
        for violation in violations
    ]
