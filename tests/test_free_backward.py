"""Free backwards: for each op a B, or an I and a W; and what either form alone would give."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bubbleproof as bp
from bubbleproof.cli import main
from bubbleproof.schedules.cost import Backward
from bubbleproof.solver.bounds import bounds
from bubbleproof.solver.result import Form, Result

COST = {"F": 1, "B": 1.6, "I": 1, "W": 1}


def problem_of(**words: object) -> bp.Problem:
    """Return four devices with 32 microbatches whose B takes less than I and W, or another one."""
    known: dict[str, object] = {
        "devices": 4,
        "microbatches": 32,
        "cost": COST,
        "backward": "free",
    }
    return bp.Problem(**(known | words))  # pyright: ignore[reportArgumentType]


def forms_of(result: Result) -> dict[Backward, Form]:
    """Return what either form alone gives."""
    return {form.backward: form for form in result.forms}


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["makespan", "span"])
def test_the_better_form_is_chosen_and_the_other_told(objective: str) -> None:
    """With 32 microbatches a B of 1.6 beats an I and a W of 2 (torchtitan#773): 91 all fused."""
    result = bp.solve(problem_of(objective=objective), time_limit_s=4, workers=1)
    assert bp.verify(result.schedule).valid
    assert result.objective <= 91
    assert result.backwards[Backward.FUSED] > result.backwards[Backward.SPLIT]
    forms = forms_of(result)
    time = result.problem.time
    assert time(forms[Backward.FUSED].objective_ticks) == 91
    assert time(forms[Backward.SPLIT].objective_ticks) == (99 if objective == "makespan" else 96)
    assert all(form.objective_ticks == form.bound_ticks for form in result.forms)


@pytest.mark.slow
def test_a_mixture_may_beat_both_forms() -> None:
    """With one pipeline's worth of memory some backwards are better split, most are not."""
    memory = {"F": 2, "I": -1, "W": -1, "limit": 8}
    problem = problem_of(microbatches=8, memory=memory)
    result = bp.solve(problem, time_limit_s=20, workers=1)
    assert bp.verify(result.schedule).valid
    assert all(result.objective_ticks < form.objective_ticks for form in result.forms)
    assert min(result.backwards.values()) > 0


@pytest.mark.slow
def test_the_choice_holds_at_scale() -> None:
    """Eight devices in a V, 64 microbatches: no worse than either form, whatever is searched."""
    problem = problem_of(
        devices=8,
        placement="v",
        microbatches=64,
        cost={"F": 1, "B": 1.8, "I": 1, "W": 1, "transfer": 0.1},
        memory={"F": 2, "I": -1, "W": -1, "limit": 32},
        objective="span",
    )
    result = bp.solve(problem, time_limit_s=5, workers=1)
    assert bp.verify(result.schedule).valid
    assert len(result.forms) == 2
    assert all(result.objective_ticks <= form.objective_ticks for form in result.forms)


def test_a_form_that_does_not_fit_is_left_out() -> None:
    """Where an I allocates more than the limit leaves, every backward is fused."""
    memory = {"F": 2, "I": [2, 0], "W": -4, "B": -2, "limit": 3}
    result = bp.solve(problem_of(microbatches=3, memory=memory), time_limit_s=1.5, workers=1)
    assert [form.backward for form in result.forms] == [Backward.FUSED]
    assert result.backwards == {Backward.FUSED: 12, Backward.SPLIT: 0}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 8),
    st.integers(1, 12),
    st.tuples(*[st.integers(0, 5)] * 4),
    st.sampled_from(["linear", "v", "loop:2"]),
    st.sampled_from(["makespan", "span"]),
)
def test_a_bound_for_free_backwards_holds_for_either_form(
    devices: int,
    microbatches: int,
    times: tuple[int, int, int, int],
    placement: str,
    objective: str,
) -> None:
    """What holds for every mixture holds for all fused and all split: no bound is above theirs."""
    cost = dict(zip("FIWB", times, strict=True)) | {"transfer": 1}
    words: dict[str, object] = {
        "devices": devices,
        "microbatches": microbatches,
        "placement": placement,
        "objective": objective,
        "cost": cost,
    }
    free = bounds(problem_of(**words))[0].ticks
    for name in ("zb_h1", "one_f_one_b", "zb_v", "hanayo", "looped_bfs"):
        try:
            schedule = bp.families.build(name, problem_of(**words))
        except ValueError:
            continue  # Another placement's.
        assert free <= bp.simulate(schedule).objective_ticks


@pytest.mark.slow
def test_the_command_line_tells_what_was_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The summary and the object say how many are fused, and what the other form would give."""
    file = tmp_path / "free.json"
    words = {"format": "bubbleproof.problem/1", "devices": 2, "microbatches": 4, "backward": "free"}
    file.write_text(json.dumps(words | {"cost": COST}), encoding="utf-8")
    assert main(["solve", str(file), "--json", "--time-limit", "2", "--workers", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["backwards"].values()) == 8
    assert set(found["forms"]) == {"fused", "split"}
    assert found["objective"] <= min(form["objective"] for form in found["forms"].values())
    assert main(["solve", str(file), "--time-limit", "2", "--workers", "1"]) == 0
    assert "all fused: 13 (optimal); all split: 13 (optimal)" in " ".join(
        capsys.readouterr().out.split()
    )
