"""The public names: that they are there, and what they say to a value of the wrong kind."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import bubbleproof as bp

PROBLEM = bp.Problem(devices=2, microbatches=2, cost={"F": 1, "I": 1, "W": 1})
TIMELINE = bp.simulate(bp.families.zb_h1(PROBLEM))

TAKES_A_SCHEDULE: dict[str, Callable[..., object]] = {
    "plot": bp.plot,
    "save": partial(bp.save, path="never.json"),
    "simulate": bp.simulate,
}
TAKES_A_PROBLEM: dict[str, Callable[..., object]] = {
    "build": partial(bp.families.build, "gpipe"),
    "dependency_graph": bp.dependency_graph,
    **{name: getattr(bp.families, name) for name in bp.families.names()},
}


@pytest.mark.parametrize("name", sorted(TAKES_A_SCHEDULE))
def test_what_is_no_schedule_is_refused_with_where_one_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's name is to be loaded; what has a schedule, as solve's result, is asked for it."""
    monkeypatch.chdir(tmp_path)
    take = TAKES_A_SCHEDULE[name]
    with pytest.raises(TypeError, match="a Schedule is expected, not a str; load_schedule reads"):
        take("schedule.json")
    with pytest.raises(TypeError, match=r"a Schedule is expected, not a Timeline; take its \.sch"):
        take(TIMELINE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(TAKES_A_PROBLEM))
def test_what_is_no_problem_is_refused_with_where_one_is(name: str) -> None:
    """A file's name is to be loaded; what has a problem is asked for it."""
    take = TAKES_A_PROBLEM[name]
    with pytest.raises(TypeError, match="a Problem is expected, not a str; load_problem reads one"):
        take("problem.toml")
    with pytest.raises(TypeError, match=r"a Problem is expected, not a Schedule; take its \.prob"):
        take(TIMELINE.schedule)


def test_every_public_name_is_there() -> None:
    """Each name of ``__all__`` is found, and an unknown one is refused."""
    assert set(bp.__all__) <= set(dir(bp))
    assert all(getattr(bp, name) is not None for name in bp.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'solver_of_everything'"):
        _ = getattr(bp, "solver_of_" + "everything")
