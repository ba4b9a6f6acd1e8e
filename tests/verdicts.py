"""Short forms for tests that judge rows of text."""

from collections.abc import Sequence

import bubbleproof as bp
from bubbleproof.schedules.schedule import Schedule, parse_rows


def judge(
    problem: bp.Problem, rows: Sequence[str], starts: Sequence[Sequence[int]] | None = None
) -> bp.Report:
    """Return the verdict on rows written as text, with starts in ticks or without."""
    given = None if starts is None else tuple(map(tuple, starts))
    return bp.verify(Schedule(problem, parse_rows(rows), given))


def only(report: bp.Report, rule: str) -> bp.Violation:
    """Return the one violation of a report and check its rule."""
    (violation,) = report.violations
    assert violation.rule == rule
    return violation


def rules(report: bp.Report) -> list[str]:
    """Return the broken rules in the order of the report, each once."""
    return list(dict.fromkeys(violation.rule for violation in report.violations))
