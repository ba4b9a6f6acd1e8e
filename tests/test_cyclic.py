"""Kernels, their pace, and bounds for every number of microbatches."""

import json
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_problems import tiny_problem

import bubbleproof as bp
from bubbleproof.cli import main
from bubbleproof.schedules.periodic_search import periodic_of
from bubbleproof.schedules.periodic_words import load_periodic
from bubbleproof.schedules.problem import Objective
from bubbleproof.solver import long, reproducible
from bubbleproof.solver.construct import one_by_one
from bubbleproof.solver.cyclic import find_kernel, greedy_kernel, least_period
from bubbleproof.solver.every_n import solve_every_n
from bubbleproof.solver.kernels import Kernels, short_problem
from bubbleproof.solver.limits import shortages
from bubbleproof.solver.line_bound import least_line
from bubbleproof.solver.pace import pace_of, retimed
from bubbleproof.verify.every_n import verify_every_n

PLACEMENTS = ("linear", "v", "loop:2", "wave:3", "bidirectional")
SEEDS = st.integers(0, 10**6)


def ten(
    microbatches: int | tuple[int, ...] = 1,
    *,
    devices: int = 3,
    placement: str = "linear",
    limit: int | None = None,
    objective: str = "span",
) -> bp.Problem:
    """Return a problem with F, I, W of 10, 12, 8 and two units of memory per microbatch."""
    return bp.Problem(
        devices=devices,
        placement=placement,
        microbatches=microbatches,
        cost={"F": 10, "I": 12, "W": 8, "transfer": 1},
        memory={"F": 2, "I": -1, "W": -1, "limit": limit},
        objective=objective,
    )


def with_rounds(problem: bp.Problem, rounds: int) -> bp.Problem:
    """Return a problem with so many rounds; what one chain has more than another stays."""
    fewest = min(problem.microbatches)
    return replace(
        problem, microbatches=tuple(rounds + number - fewest for number in problem.microbatches)
    )


@pytest.mark.parametrize(("limit", "period"), [(3, None), (4, 6)])
def test_v_without_a_bubble_in_its_kernel_needs_what_v_min_holds(
    limit: int, period: int | None
) -> None:
    """Four devices, F = I = W: V-Min's 4 chunks do (arXiv 2405.15362), and 3 are proven too few."""
    problem = bp.Problem(
        devices=4,
        placement="v",
        microbatches=1,
        cost={"F": 1, "I": 1, "W": 1},
        memory={"F": 1, "W": -1, "limit": limit},
    )
    outcome = find_kernel(problem, most=6, time_limit_s=60, workers=1, seed=0)
    assert (outcome.kernel and outcome.kernel.period) == period
    assert outcome.too_short == (period or 7) - 1


def test_no_kernel_is_said_to_be_slower_than_its_order_repeats() -> None:
    """Three microbatches within a way of 100: every 100 / 3 on average, though all times are tens.

    No whole number of tens between 30, in which one device works, and 40 is a period.
    """
    problem = bp.Problem(
        devices=2,
        microbatches=1,
        cost={"F": 10, "B": 20, "transfer": 20},
        memory={"F": 1, "B": -1, "limit": [3, None]},
        backward="fused",
    )
    outcome = find_kernel(problem, most=None, time_limit_s=10, workers=1, seed=0)
    assert outcome.kernel is not None
    assert outcome.kernel.period == 40
    pace = pace_of(outcome.kernel.periodic(problem))
    assert pace is not None
    assert pace.per_round == Fraction(100, 3)
    assert outcome.too_short == 33


@pytest.mark.parametrize(
    ("words", "pace"),
    [
        ({"cost": {"F": 10, "B": 20, "pair": 20}, "backward": "fused"}, 20),
        ({"cost": {"F": 10, "I": [20, 5], "W": [20, 5], "B": [15, 30]}, "backward": "free"}, 25),
    ],
)
def test_a_refused_period_proves_nothing_where_other_kernels_are_possible(
    words: dict[str, object], pace: int
) -> None:
    """Pairs, or one stage's backwards fused and the other's split, repeat faster."""
    problem = bp.Problem(devices=2, microbatches=2, **words)  # pyright: ignore[reportArgumentType]
    outcome = find_kernel(problem, most=None, time_limit_s=10, workers=1, seed=0)
    assert outcome.kernel is not None
    assert outcome.kernel.period > 2 * pace
    assert outcome.too_short < 2 * pace == least_period(problem)


@settings(max_examples=25)
@given(SEEDS, st.integers(1, 2))
def test_a_kernel_repeated_is_valid_for_any_number(seed: int, step: int) -> None:
    """Whatever the placement, memory and form of backward; and no faster than any schedule is."""
    problem = tiny_problem(seed)
    if shortages(problem):
        return
    one_period = replace(problem, microbatches=(step,) * len(problem.microbatches))
    outcome = find_kernel(one_period, most=None, time_limit_s=0.5, workers=1, seed=0)
    assert least_period(one_period) <= outcome.too_short + 1
    if outcome.kernel is None:
        return
    assert outcome.too_short < max(1, outcome.kernel.period)
    if all(min(problem.cost.of(kind)) > 0 for kind in bp.OpKind):
        verdict = verify_every_n(outcome.kernel.periodic(problem))
        assert verdict.valid, verdict.report.violations


@settings(max_examples=30)
@given(SEEDS, st.integers(0, 3))
def test_no_schedule_is_below_the_line(seed: int, more: int) -> None:
    """From its first number of rounds on, the bound for every n holds for what solve finds."""
    problem = tiny_problem(seed)
    if shortages(problem):
        return
    line = least_line(problem)
    rounds = line.first + more
    if rounds * problem.stages > 60:
        return
    result = bp.solve(with_rounds(problem, rounds), time_limit_s=0.3, workers=1)
    assert line.per_round * rounds + line.constant <= result.objective_ticks
    assert f"device {line.device}: rounds x" in line.text


def test_the_line_of_1f1b_is_its_closed_form() -> None:
    """P = 4 at 1x: 30 a round, and the 54 that the optima 294 at n = 8 and 414 at 12 leave."""
    line = least_line(ten(devices=4, limit=8))
    assert (line.per_round, line.constant, line.first) == (30, 54, 5)
    assert "30 work" in line.text


def test_where_memory_decides_the_line_is_a_fraction() -> None:
    """Half a pipeline's memory: a round takes its memory x time over the limit."""
    line = least_line(ten(devices=8, limit=8))
    assert line.name == "area"
    assert line.per_round == Fraction(97, 2)


@pytest.mark.parametrize("objective", ["makespan", "span"])
@pytest.mark.parametrize("name", ["one_f_one_b", "zb_h1", "gpipe"])
def test_the_pace_of_a_family_tells_its_time_for_any_number(name: str, objective: str) -> None:
    """What pace says equals what the starts give, and the starts are valid."""
    schedule = bp.families.build(name, ten(16, objective=objective, limit=None))
    periodic = periodic_of(schedule)
    if periodic is None:
        assert name == "gpipe"
        return
    pace = pace_of(periodic)
    assert pace is not None
    pace = retimed(pace, bound=0, deadline=float("inf"))
    for more in (0, 1, 9):
        rounds = pace.rounds + more * pace.periodic.step[0]
        unrolled = pace.unrolled(rounds)
        assert bp.verify(unrolled).valid
        assert bp.simulate(unrolled).objective_ticks == pace.constant + rounds * pace.per_round
        assert len(unrolled.rows[0]) == sum(len(row) for row in unrolled.rows) // 3


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_without_any_time_there_is_a_kernel_all_the_same(placement: str) -> None:
    """No search is needed for one that is valid for every n, and as fast as one at a time."""
    short = short_problem(ten(placement=placement, limit=12))
    kernels = Kernels(short, rounds=None, line=least_line(short))
    kernels.try_schedules([], 0.0)
    assert verify_every_n(kernels.pace.periodic).valid
    line = least_line(short)
    alone = bp.simulate(one_by_one(with_rounds(short, 1)))
    assert line.per_round <= kernels.pace.per_round <= alone.makespan_ticks


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_schedule_for_every_n_is_proven_and_keeps_its_word(placement: str) -> None:
    """Its time for some n is the line's, never below the bound's, and it is valid for all."""
    solved = solve_every_n(ten(placement=placement, limit=14), time_limit_s=1.5, workers=1)
    assert verify_every_n(solved.periodic).valid
    assert solved.gap >= 0
    step = solved.periodic.step[0]
    for more in (0, 5):
        rounds = solved.rounds + more * step
        ticks = solved.pace.constant + rounds * solved.pace.per_round
        assert bp.simulate(solved.pace.unrolled(rounds)).objective_ticks == ticks
        assert ticks >= solved.bound.constant + rounds * solved.bound.per_round


def test_a_line_that_meets_its_bound_is_optimal_for_every_n() -> None:
    """P = 4 at 1x: no schedule is faster for any n."""
    solved = solve_every_n(ten(devices=4, limit=8), time_limit_s=5, workers=1)
    assert solved.status is bp.Status.OPTIMAL
    assert (solved.pace.per_round, solved.pace.constant) == (30, 54)


def test_long_problems_repeat_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """No schedule of the whole is searched, and yet the answer is optimal; a rest stays whole."""
    monkeypatch.setattr(long, "LONG_OPS", 500)
    result = bp.solve(ten(101, devices=4, limit=8), time_limit_s=4, workers=1)
    assert "its kernel repeated" in result.source
    assert bp.verify(result.schedule).valid
    assert (result.objective, result.status) == (30 * 101 + 54, "optimal")


@pytest.mark.parametrize("microbatches", [(90, 88), (88, 90)])
def test_one_chain_may_have_more_microbatches(
    monkeypatch: pytest.MonkeyPatch, microbatches: tuple[int, int]
) -> None:
    """What one chain has more stays outside of the kernel."""
    monkeypatch.setattr(long, "LONG_OPS", 500)
    problem = ten(microbatches, placement="bidirectional", limit=14)
    result = bp.solve(problem, time_limit_s=2, workers=1)
    assert "its kernel repeated" in result.source
    assert bp.verify(result.schedule).valid


@pytest.mark.slow
def test_ten_thousand_microbatches_on_64_devices_are_proven_optimal() -> None:
    """Nearly two million ops: the bound is met, within half a minute of one core."""
    result = bp.solve(ten(10_000, devices=64, limit=128), time_limit_s=20, workers=1)
    assert result.status == "optimal"
    assert result.objective == 30 * 10_000 + 1134


@settings(max_examples=15)
@given(SEEDS)
@example(0)
def test_bounds_of_runs_with_one_and_two_workers_never_contradict(seed: int) -> None:
    """Each run's bound holds for the other's schedule."""
    problem = tiny_problem(seed)
    if shortages(problem):
        return
    one = bp.solve(problem, time_limit_s=0.5, workers=1)
    two = bp.solve(problem, time_limit_s=0.5, workers=2)
    assert one.bound <= two.objective
    assert two.bound <= one.objective


@pytest.mark.parametrize("objective", list(Objective))
def test_deterministic_files_are_equal_byte_by_byte(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    objective: Objective,
) -> None:
    """The same problem, limit and seed; each search takes part, and none is cut."""
    # However busy the machine is, the clock is not to end a run.
    monkeypatch.setattr(reproducible, "SLACK", 1000)
    problem = ten(9, devices=4, placement="v", limit=16, objective=objective.value)
    bp.save(problem, tmp_path / "problem.json")
    for name in ("a.json", "b.json"):
        arguments = ["solve", str(tmp_path / "problem.json"), "--deterministic"]
        arguments += ["--time-limit", "1.5", "--seed", "3", "-o", str(tmp_path / name), "--json"]
        assert main(arguments) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["cut"] is False
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert bp.verify(bp.load_schedule(tmp_path / "a.json")).valid


def test_a_deterministic_run_that_is_cut_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the clock ends it, JSON and stderr tell that another run may differ."""
    bp.save(ten(40, devices=4, placement="v", limit=8), tmp_path / "problem.json")
    arguments = ["solve", str(tmp_path / "problem.json"), "--deterministic", "--json"]
    assert main([*arguments, "--time-limit", "0.001"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["cut"] is True
    assert "another run may differ" in captured.err


def test_solve_for_every_n_prints_lines_and_writes_a_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words for people, lines for programs, and a file that proves itself."""
    bp.save(ten(4, devices=4, limit=8), tmp_path / "problem.json")
    command = ["solve", "--all-n", str(tmp_path / "problem.json"), "--time-limit", "4"]
    assert main([*command, "-o", str(tmp_path / "periodic.json")]) == 0
    text = capsys.readouterr().out
    assert "30 x rounds + 54, with n rounds" in text
    assert "no schedule takes less than" in text
    assert verify_every_n(load_periodic(tmp_path / "periodic.json")).valid
    assert main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["status"] == "optimal"
    assert answer["objective"] == {"per_round": 30.0, "constant": 54.0}
    assert answer["bound"]["per_round"] == 30.0
    assert answer["valid"] is True


def test_a_certificate_is_for_one_n(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Together with --all-n it is refused before any search."""
    bp.save(ten(4, devices=4, limit=8), tmp_path / "problem.json")
    command = ["solve", "--all-n", str(tmp_path / "problem.json")]
    assert main([*command, "--certificate", str(tmp_path / "proof")]) == 2
    assert "leave --all-n out" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("limit", [1, 256])
def test_a_huge_problem_overruns_its_time_limit_by_seconds_only(limit: int) -> None:
    """256 devices, 300 microbatches, 2 s: counted in the time of the processor, not of the wall.

    A few looks at 230,000 ops take 3 to 6 s, which is more than the limit and 2 s.
    """
    problem = ten(300, devices=256, limit=2 * limit)
    began = time.process_time()
    result = bp.solve(problem, time_limit_s=2, workers=1)
    assert time.process_time() - began < 10
    assert bp.verify(result.schedule).valid


@settings(max_examples=40)
@given(SEEDS, st.integers(1, 2))
@example(152473, 1)
def test_a_greedy_kernel_is_valid_for_every_n(seed: int, step: int) -> None:
    """With its two ramps, whatever the placement, memory and form of backward."""
    problem = tiny_problem(seed)
    if shortages(problem) or any(min(problem.cost.of(kind)) == 0 for kind in bp.OpKind):
        return
    one_period = replace(problem, microbatches=(step,) * len(problem.microbatches))
    kernel = greedy_kernel(one_period, deadline=float("inf"))
    assert kernel is not None
    assert kernel.period >= least_period(one_period)
    verdict = verify_every_n(kernel.periodic(problem))
    assert verdict.valid, verdict.report.violations


def test_a_greedy_kernel_meets_the_bound_where_memory_does_not_press() -> None:
    """64 devices at 1x: 30 a microbatch, without any search."""
    kernel = greedy_kernel(ten(devices=64, limit=128), deadline=float("inf"))
    assert kernel is not None
    assert kernel.period == 30
