"""Certificates: theorems hold, the solver's bounds are recomputed, false claims are refused."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from bruteforce import least_objective
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import garbage_schedules, schedules
from tiny_problems import tiny_problem

import bubbleproof as bp
from bubbleproof.cli import main
from bubbleproof.schedules.schedule import Bound, Schedule, parse_rows
from bubbleproof.solver.bounds import bounds
from bubbleproof.verify.alone import Alone, alone_of, least_end
from bubbleproof.verify.arguments import ALONE, NAMES, OWN, Arguments
from bubbleproof.verify.certificate import SEARCHED, Certificate, Standing, certify
from bubbleproof.verify.memory import held
from bubbleproof.verify.reading import read
from bubbleproof.verify.trips import most_work

PLACEMENTS = ("linear", "loop:2", "loop:3", "v", "wave:3", "bidirectional")


def larger_problem(seed: int) -> bp.Problem:
    """Return a random problem too large to try every order of; the same one for the same seed."""
    rng = random.Random(seed)
    devices, placement = rng.randint(1, 8), rng.choice(PLACEMENTS)
    stages = devices * {"linear": 1, "loop:3": 3, "wave:3": 3}.get(placement, 2)
    longest = rng.choice((3, 20, 1000))
    backward = rng.choice(("split", "fused", "free"))

    def times() -> list[int]:
        return [rng.randrange(longest) for _ in range(stages)]

    cost: dict[str, object] = {"F": times(), "I": times(), "W": times()}
    cost["transfer"] = rng.choice((0, 1, longest))
    if rng.random() < 0.5:
        cost["B"] = times()
    if rng.random() < 0.5:
        cost["pair"] = [rng.choice((None, rng.randrange(1, 2 * longest))) for _ in range(devices)]
    kept, more = rng.randint(1, 9), rng.randint(0, 3)
    freed = rng.randint(0, kept)
    return bp.Problem(
        devices=devices,
        placement=placement,
        microbatches=rng.randint(1, 40),
        cost=cost,
        memory={
            "F": [[kept + more, more]] * stages,
            "I": [[more, more + freed]] * stages,
            "W": -(kept - freed),
            "limit": [rng.choice((None, rng.randint(20, 300))) for _ in range(devices)],
            "static": rng.randint(0, 3),
        },
        backward=backward,
        objective=rng.choice(("makespan", "span")),
    )


def _recomputed_alike(problem: bp.Problem) -> None:
    arguments = Arguments(problem)
    given = bounds(problem)
    for bound in given:
        assert bound.device is not None
        alternatives = arguments.of(bound.name, bound.device)
        if not alternatives:
            assert bound.ticks <= 0, bound
            continue
        assert bound.ticks == max(sum(terms.values()) for terms in alternatives), bound
        wanted = {name: ticks for name, ticks in bound.terms.items() if ticks}
        assert any(
            wanted == {name: ticks for name, ticks in terms.items() if ticks}
            for terms in alternatives
        ), (bound, alternatives)
    assert arguments.strongest() == given[0].ticks


@settings(max_examples=150)
@given(st.integers(0, 10**6), st.booleans())
def test_tiny_problems_are_bounded_as_the_solver_says(seed: int, pairs: bool) -> None:
    """Two derivations from one definition give the same ticks and terms, bound for bound."""
    _recomputed_alike(tiny_problem(seed, pairs=pairs))


@settings(max_examples=150)
@given(st.integers(0, 10**6))
def test_larger_problems_are_bounded_as_the_solver_says(seed: int) -> None:
    """The same with up to 8 devices, 3 stages on each, 40 microbatches, any costs and limits."""
    _recomputed_alike(larger_problem(seed))


@pytest.mark.parametrize(
    ("devices", "microbatches", "times", "ticks"),
    [
        (4, 8, (1, 2, 1, 2), 21),
        (8, 16, (1, 2, 1, 2), 43),
        (8, 20, (1, 2, 1, 2), 51),
        (16, 64, (100, 169, 39, 167), 13516),
    ],
)
def test_pairs_are_bounded_from_the_first_backward_of_a_middle_device(
    devices: int, microbatches: int, times: tuple[int, int, int, int], ticks: int
) -> None:
    """DualPipe's problem, and F, B, W and FB; the first three are what the best schedules take.

    By hand for the last: 16 F's and 7 I's until the first backward, 64 pairs, and, after the last
    gradient, 6 I's and a pair, of which 17 W's fill 39 - 2 each.
    """
    forward, backward, weight, pair = times
    problem = bp.Problem(
        devices=devices,
        placement="bidirectional",
        microbatches=microbatches,
        cost={"F": forward, "I": backward - weight, "W": weight, "pair": pair},
        memory={"F": 1, "W": -1, "limit": devices + 1},
        backward="free",
    )
    middle = Arguments(problem).of("turn", devices // 2 - 1)
    assert [sum(terms.values()) for terms in middle] == [ticks]


def test_a_device_waits_for_its_second_stage_with_forwards_of_its_first_alone() -> None:
    """By hand: on a V whose last stage, on device 0, is 1.8 times as long.

    The first microbatch is back after 7 F's of 50 and 6 transfers of 10; until then 7 F's of 50
    fit beside what its next F takes.
    """
    slow = 7
    problem = bp.Problem(
        devices=4,
        placement="v",
        microbatches=8,
        cost={"F": [50] * slow + [90], "I": [60] * slow + [108], "W": [40] * slow + [72]}
        | {"transfer": 10},
        memory={"F": 2, "I": -1, "W": -1, "limit": 16},
        objective="span",
    )
    (terms,) = Arguments(problem).of("warm", 0)
    assert terms == {"work": 8 * 420, "idle before the first backward": 7 * 50 + 60 - 7 * 50}


def test_what_follows_a_middle_devices_last_forward_comes_after_its_work() -> None:
    """By hand, and reached: no other theorem comes to the least span.

    Device 1 works 72, of which 2 F's of others and its own microbatch's I and W, 12, may be open
    when its last F ends; 2 come before its first F; after the last come F and I on device 2, its
    own I, and I and W on device 0.
    """
    problem = bp.Problem(
        devices=3,
        placement="linear",
        microbatches=8,
        cost={"F": [2, 5, 3], "I": [2, 2, 2], "W": [3, 2, 4]},
        memory={"F": 2, "I": -1, "W": -1, "limit": 6},
        objective="span",
    )
    arguments = Arguments(problem)
    others = [name for name in NAMES if name != "tail"]
    strongest = [
        max(sum(terms.values()) for device in range(3) for terms in arguments.of(name, device))
        for name in others
    ]
    assert max(strongest) == 72
    assert {
        "way to it": 2,
        "idle before the first backward": 0,
        "work until its last forward ends": 72 - 12,
        "way on, back and home": 3 + 2 + 2 + 2 + 3,
    } in arguments.of("tail", 0)
    result = bp.solve(problem, time_limit_s=20, workers=1)
    assert (result.objective_ticks, result.status) == (74, "optimal")


@pytest.mark.parametrize("objective", ["makespan", "span"])
def test_no_tail_is_claimed_where_ops_may_pair(objective: str) -> None:
    """The theorem says nothing there; a bound of nothing would have the whole proof refused."""
    problem = bp.Problem(
        devices=2,
        microbatches=3,
        cost={"F": 2, "B": 4, "pair": 5},
        backward="fused",
        objective=objective,
    )
    result = bp.solve(problem, time_limit_s=20, workers=1)
    assert {bound.name for bound in result.proof} >= {"work", "turn"}
    assert certify(result.schedule).standing is not Standing.REFUSED


@settings(max_examples=80)
@given(schedules(), st.sampled_from(["makespan", "span"]))
def test_no_valid_schedule_goes_below_a_theorem(schedule: Schedule, objective: str) -> None:
    """Any valid order, with memory limited to exactly what it holds, is above every bound."""
    problem = replace(schedule.problem, objective=objective)
    peaks = [of_device.peak for of_device in held(read(schedule, problem))]
    problem = replace(problem, memory=replace(problem.memory, limit=tuple(peaks)))
    schedule = replace(schedule, problem=problem)
    assert bp.verify(schedule).valid
    reached = bp.simulate(schedule).objective_ticks
    arguments = Arguments(problem)
    for device in range(problem.devices):
        for name in NAMES:
            for terms in arguments.of(name, device):
                assert sum(terms.values()) <= reached, (name, device, terms)
    assert arguments.strongest() <= reached


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_no_order_of_a_tiny_problem_goes_below_a_theorem(seed: int) -> None:
    """Brute force: the least objective of all orders is at least the strongest bound."""
    for case in range(5):
        for pairs in (False, True):
            problem = tiny_problem(1000 + 5 * seed + case, pairs=pairs)
            best = least_objective(problem)
            assert best is None or Arguments(problem).strongest() <= best, problem


@settings(max_examples=60)
@given(schedules(), st.sampled_from(["makespan", "span"]))
def test_no_valid_schedule_ends_before_a_device_alone(schedule: Schedule, objective: str) -> None:
    """Any valid order, with memory limited to what it holds, is above the bound ``device``."""
    problem = replace(schedule.problem, objective=objective)
    peaks = [of_device.peak for of_device in held(read(schedule, problem))]
    problem = replace(problem, memory=replace(problem.memory, limit=tuple(peaks)))
    reached = bp.simulate(replace(schedule, problem=problem)).objective_ticks
    arguments = Arguments(problem)
    for device in range(problem.devices):
        for terms in arguments.alone(device, 10**6) or ():
            assert sum(terms.values()) <= reached, (device, terms)


@pytest.mark.parametrize(("limit", "expected"), [(1, 3 * 50), (3, 60)])
def test_a_device_alone_waits_for_its_round_trips(limit: int, expected: int) -> None:
    """Three microbatches of F 5, B 5, round trip 45: one after the other, or all at once."""
    problem = bp.Problem(
        devices=3,
        microbatches=3,
        cost={"F": 5, "B": 5, "transfer": 5},
        memory={"F": 1, "B": -1, "limit": limit},
        backward="fused",
        objective="span",
    )
    alone = alone_of(problem, 0, makespan=False)
    assert alone is not None
    assert least_end(alone, 10**6) == expected


def ends_of_all_orders(alone: Alone) -> Iterator[int]:
    """Yield when each order of a device's own ops ends, op by op from the definition."""

    def extend(order: str) -> Iterator[str]:
        whole = order.count("B")  # A B stands for an I and its W.
        counts = [order.count(kind) + whole * (kind != "F") for kind in "FIW"]
        held = sum(keeps * count for keeps, count in zip(alone.keeps, counts, strict=True))
        if min(counts) == alone.microbatches:
            yield order
        before = (alone.microbatches, counts[0], counts[1])
        for kind, count, ahead, takes in zip("FIW", counts, before, alone.takes, strict=True):
            if count < ahead and (alone.room is None or held + takes <= alone.room):
                yield from extend(order + kind)
        whole_fits = alone.whole is not None and (
            alone.room is None or held + alone.whole[1] <= alone.room
        )
        if whole_fits and counts[1] < counts[0]:
            yield from extend(order + "B")

    for order in extend(""):
        now, settled = 0, 0
        forwards: list[int] = []
        backwards = 0
        for kind in order:
            if kind in "IB":
                now = max(now, forwards[backwards] + alone.round_trip)
                backwards += 1
            elif kind == "F":
                forwards.append(now)
            length = {**dict(zip("FIW", alone.ticks, strict=True)), "B": (alone.whole or (0, 0))[0]}
            now += length[kind]
            settled = now + alone.after if kind in "IB" else settled
        yield max(now, settled)


@settings(max_examples=60)
@given(st.data())
def test_the_best_order_of_a_device_alone_is_the_best_of_all(data: st.DataObject) -> None:
    """Random times, round trips and memory: the search finds what trying every order finds."""
    number = st.integers(0, 9)
    kept, more, freed = data.draw(st.tuples(number, number, number))
    alone = Alone(
        microbatches=data.draw(st.integers(1, 3)),
        ticks=data.draw(st.tuples(number, number, number)),
        has_weights=True,
        round_trip=data.draw(st.integers(0, 60)),
        after=data.draw(st.integers(0, 30)),
        takes=(kept, more, 0),
        keeps=(kept, more - min(freed, kept + more), min(freed, kept + more) - kept - more),
        room=data.draw(st.one_of(st.none(), st.integers(0, 50))),
        whole=data.draw(st.one_of(st.none(), st.tuples(st.integers(0, 18), number))),
    )
    best = min(ends_of_all_orders(alone), default=10**6)
    assert least_end(alone, 10**6) == best
    assert least_end(alone, best - 1) == best - 1


def test_a_device_that_runs_pairs_has_no_bound_of_its_own_ops() -> None:
    """Three microbatches of F 5, B 5 and pair 6 end at 22, where one op at a time would take 30."""
    problem = bp.Problem(
        devices=1, microbatches=3, cost={"F": 5, "B": 5, "pair": 6}, backward="fused"
    )
    rows = ("0F0 (0F1;0B0)OVERLAP_F_B (0F2;0B1)OVERLAP_F_B 0B2",)
    claim = Bound(ALONE, 30, "no pairs", 0, {OWN: 30})
    schedule = Schedule(problem, parse_rows(rows), bound=30, proof=(claim,))
    assert bp.verify(schedule).valid
    messages = [each.message for each in certify(schedule).violations]
    assert "bound 'device' of device 0: no such bound holds for this device" in messages


def close_ratios() -> tuple[bp.Problem, Schedule, int]:
    """Return a problem with two kinds of F whose ticks per grain differ by 1e-16, and its optimum.

    Device 0 fits one F of stage 1 before its first backward, which comes after n + 50 ticks.
    Ticks per grain are (n-1)/n and n/(n+1): floats cannot tell them apart, and by the smaller
    one the memory would be good for n-1 ticks of work, not n.
    """
    n = next(n for n in range(10**8, 2 * 10**8) if (n - 1) / n == n / (n + 1))
    problem = bp.Problem(
        devices=2,
        placement={"device_of_stage": [0, 0, 0, 1, 1, 1], "chains": [[0, 3], [1, 4], [2, 5]]},
        microbatches=[2, 1, 1],
        cost={
            "F": [n - 1, n, 1, 100, 50, n + 100],
            "I": [1, 1, 1, 0, 0, 0],
            "W": [200, 2 * n, 200, 0, 0, 0],
        },
        memory={
            "F": [n, n + 1, n + 1, 0, 0, 0],
            "I": [-n, -n - 1, -n - 1, 0, 0, 0],
            "limit": [n + 1, None],
        },
        objective="span",
    )
    rows = (
        "1F2 1I2 2F3 1W2 2I3 0F0 2W3 0I0 0F1 0W0 0I1 0W1",
        "4F2 4I2 4W2 5F3 5I3 5W3 3F0 3I0 3W0 3F1 3I1 3W1",
    )
    return problem, Schedule(problem, parse_rows(rows)), n


def test_ratios_that_floats_cannot_tell_apart_do_not_break_a_bound() -> None:
    """The knapsack relaxation orders exactly; a bound of one tick more is refused."""
    problem, schedule, n = close_ratios()
    assert most_work([(n, n - 1, 2), (n + 1, n, 1), (n + 1, 1, 1)], n + 1) == n
    reached = bp.simulate(schedule).objective_ticks
    assert bp.verify(schedule).valid
    assert Arguments(problem).strongest() == reached
    terms = {"work": reached - 50, "idle before the first backward": 51}
    claim = Bound("warm", reached + 1, "one tick too many", 0, terms)
    certificate = certify(replace(schedule, bound=claim.ticks, proof=(claim,)))
    assert certificate.standing is Standing.REFUSED
    assert any("but recomputed it is" in violation.message for violation in certificate.violations)


def test_the_knapsack_is_exact_for_two_kinds_and_never_too_small_for_more() -> None:
    """Against every choice of pieces, on a hundred random sets."""
    rng = random.Random(0)
    for _ in range(100):
        kinds = [(rng.randrange(6), rng.randrange(9), rng.randrange(4)) for _ in range(4)]
        kinds = kinds[: rng.randint(1, 4)]
        room = rng.randrange(20)
        choices = [(0, 0)]
        for grains, ticks, count in kinds:
            choices = [
                (used + k * grains, time + k * ticks)
                for used, time in choices
                for k in range(count + 1)
            ]
        best = max(time for used, time in choices if used <= room)
        found = most_work(kinds, room)
        assert found == best if len(kinds) <= 2 else found >= best, (kinds, room)


def proven() -> Schedule:
    """Return a schedule that is proven optimal by theorems: ZB-H1 at its own memory."""
    problem = bp.Problem(
        devices=4,
        microbatches=8,
        cost={"F": 10, "I": 12, "W": 8, "transfer": 1},
        memory={"F": 2, "I": -1, "W": -1, "limit": 8},
        objective="span",
        time_unit="us",
    )
    return bp.solve(problem, time_limit_s=10, workers=1).schedule


def searched() -> Schedule:
    """Return a schedule whose optimality is a search's report: no theorem here goes that far."""
    problem = bp.Problem(
        devices=4,
        placement="v",
        microbatches=8,
        cost={"F": 10, "I": 12, "W": 8, "transfer": 1},
        memory={"F": 1, "W": -1, "limit": 8},
    )
    schedule = bp.families.zb_v(problem)
    reached = bp.simulate(schedule).objective_ticks
    assert Arguments(problem).strongest() < reached
    report = Bound("cp-sat", reached, "searched all orders")
    proof = (report, *bounds(problem)[:3])
    return replace(
        schedule, objective=reached, bound=reached, status=bp.Status.OPTIMAL, proof=proof
    )


def test_a_bound_that_follows_from_theorems_is_confirmed() -> None:
    """What solve proves by its bounds holds without it."""
    certificate = certify(proven())
    assert (certificate.standing, certificate.objective, certificate.bound) == (
        Standing.CONFIRMED,
        294,
        294,
    )
    assert "no span is below 294 us" in certificate.reason


def test_a_bound_that_only_a_search_reports_is_marked() -> None:
    """It is neither refused nor called confirmed, and the confirmed part is told."""
    schedule = searched()
    certificate = certify(schedule)
    assert certificate.standing is Standing.WORD
    assert certificate.violations == ()
    assert certificate.bound == Arguments(schedule.problem).strongest()


def test_a_search_that_reports_no_more_than_a_theorem_is_not_needed() -> None:
    """The bound is confirmed, whoever reported it."""
    schedule = proven()
    report = Bound("cp-sat", 294, "searched all orders")
    assert certify(replace(schedule, proof=(report,))).standing is Standing.CONFIRMED


def test_a_bound_without_a_proof_is_recomputed() -> None:
    """294 holds with an empty proof, 295 does not."""
    schedule = replace(proven(), proof=(), status=None)
    assert certify(schedule).standing is Standing.CONFIRMED
    certificate = certify(replace(schedule, bound=295))
    assert "the proof goes no further than 0 us" in certificate.violations[-1].message


def test_a_smaller_bound_is_true_and_accepted() -> None:
    """A bound that says less than its theorem is no fault."""
    schedule = proven()
    weak = Bound("work", 200, "some of the work", 2, {"work": 200})
    weaker = replace(schedule, bound=200, status=bp.Status.FEASIBLE, proof=(weak,))
    assert certify(weaker).standing is Standing.CONFIRMED


def test_a_schedule_without_claims_has_no_certificate() -> None:
    """A family's schedule claims nothing."""
    assert certify(bp.families.one_f_one_b(proven().problem)).standing is Standing.NOTHING


def first_bound(schedule: Schedule, **changes: object) -> Schedule:
    """Return the schedule with its first proof entry changed."""
    return replace(schedule, proof=(replace(schedule.proof[0], **changes), *schedule.proof[1:]))


def more(schedule: Schedule, name: str, ticks: int) -> Schedule:
    """Return the schedule with one term of its first bound, and the bound, larger."""
    bound = schedule.proof[0]
    terms: Mapping[str, int] = {**bound.terms, name: bound.terms.get(name, 0) + ticks}
    return first_bound(schedule, ticks=bound.ticks + ticks, terms=terms)


def shifted(schedule: Schedule) -> Schedule:
    """Return the schedule with ticks moved from one term of its first bound to another."""
    terms = dict(schedule.proof[0].terms)
    one, other = list(terms)[:2]
    terms[one] += 5
    terms[other] -= 5
    return first_bound(schedule, terms=terms)


TAMPERED: Mapping[str, tuple[Callable[[Schedule], Schedule], str]] = {
    "objective": (
        lambda s: replace(s, objective=293),
        "objective is given as 293 us, but the starts have a span of 294 us",
    ),
    "objective of the earliest starts": (
        lambda s: replace(s, starts=None, objective=293),
        "but the earliest starts have",
    ),
    "bound and objective": (
        lambda s: replace(s, bound=290),
        "the status is optimal, but the objective is 294 us and the bound is 290 us",
    ),
    "no objective": (lambda s: replace(s, objective=None), "the objective is missing"),
    "above the schedule": (
        lambda s: replace(s, bound=295, status=bp.Status.FEASIBLE),
        "said to be below 295 us, but this schedule has 294 us",
    ),
    "infeasible": (
        lambda s: replace(s, status=bp.Status.INFEASIBLE),
        "the status is infeasible, but here is a schedule",
    ),
    "larger term": (lambda s: more(s, "work", 1), "given as 295 us, but recomputed it is 294 us"),
    "new term": (lambda s: more(s, "luck", 1), "given as 295 us, but recomputed it is 294 us"),
    "ticks": (lambda s: first_bound(s, ticks=295), "its terms add up to 294 us, not to 295 us"),
    "shifted terms": (shifted, "its term '.*' is given as .*, but recomputed it is"),
    "renamed term": (
        lambda s: first_bound(s, terms={"luck": 294}),
        "it has no term 'luck'; accepted are work, idle before",
    ),
    "no terms": (lambda s: first_bound(s, terms={}), "its terms add up to 0 us, not to 294 us"),
    "name": (lambda s: first_bound(s, name="hope"), "bound 'hope' .* there is no such bound"),
    "other name": (lambda s: first_bound(s, name="area"), "given as 294 us, but recomputed"),
    "device": (lambda s: first_bound(s, device=4), "holds for one device; accepted are 0..3"),
    "other device": (lambda s: first_bound(s, device=3), "bound '.*' of device 3: "),
    "no device": (lambda s: first_bound(s, device=None), "holds for one device"),
    "search above the schedule": (
        lambda s: replace(s, proof=(*s.proof, Bound("cp-sat", 300, "searched"))),
        "said to be below 300 us",
    ),
    "search with odd terms": (
        lambda s: replace(s, proof=(*s.proof, Bound("cp-sat", 294, "searched", None, {"x": 1}))),
        "bound 'cp-sat': its terms add up to 1 us",
    ),
    "rows that cannot run": (
        lambda s: replace(s, starts=None, rows=(s.rows[0][::-1], *s.rows[1:])),
        "the order cannot run, so it has no objective",
    ),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_false_claim_is_refused(case: str) -> None:
    """Whatever is changed in a true certificate is told, as a violation of rule certificate."""
    change, message = TAMPERED[case]
    with pytest.raises(AssertionError, match=message):
        require(certify(change(proven())))


def require(certificate: Certificate) -> None:
    """Fail with the violations' messages unless there are none."""
    assert {violation.rule for violation in certificate.violations} <= {"certificate"}
    assert (certificate.standing is Standing.REFUSED) is bool(certificate.violations)
    if certificate.violations:
        raise AssertionError("\n".join(each.message for each in certificate.violations))


@settings(max_examples=100)
@given(st.integers(0, 10**6), st.data())
def test_any_larger_bound_is_refused_and_any_smaller_one_is_not(
    seed: int, data: st.DataObject
) -> None:
    """On random problems: a proof entry is accepted exactly up to what its theorem gives."""
    problem = larger_problem(seed)
    entry = data.draw(st.sampled_from(bounds(problem)))
    positive = [name for name, ticks in entry.terms.items() if ticks > 0]
    if not positive:
        return
    term = data.draw(st.sampled_from(positive))
    step = data.draw(st.integers(-entry.terms[term], 3))
    claim = replace(
        entry, ticks=entry.ticks + step, terms={**entry.terms, term: entry.terms[term] + step}
    )
    schedule = Schedule(problem, ((),) * problem.devices, proof=(claim,))
    messages = [each.message for each in certify(schedule).violations]
    about = [message for message in messages if message.startswith("bound ")]
    assert bool(about) is (step > 0), (claim, messages)


@settings(max_examples=40)
@given(garbage_schedules(), st.data())
def test_any_garbage_gets_a_verdict(schedule: Schedule, data: st.DataObject) -> None:
    """Senseless rows, starts and claims are judged, without an exception."""
    number = st.one_of(st.none(), st.integers(-(10**30), 10**30))
    whole = st.integers(-5, 10**30)
    entries = st.builds(
        Bound,
        st.one_of(st.sampled_from([*NAMES, ALONE, "cp-sat"]), st.text(max_size=3)),
        whole,
        st.just(""),
        st.one_of(st.none(), st.integers(-2, 5)),
        st.dictionaries(st.text(max_size=3), whole, max_size=2),
    )
    claimed = replace(
        schedule,
        objective=data.draw(number),
        bound=data.draw(number),
        status=data.draw(st.one_of(st.none(), st.sampled_from(bp.Status))),
        proof=tuple(data.draw(st.lists(entries, max_size=3))),
    )
    certificate = certify(claimed)
    assert (certificate.standing is Standing.REFUSED) is bool(certificate.violations)


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 10**6))
def test_whatever_solve_claims_is_never_refused(seed: int) -> None:
    """Its answers are confirmed, or rest on the word of a search of all schedules."""
    problem = tiny_problem(seed)
    try:
        result = bp.solve(problem, time_limit_s=2, workers=1)
    except bp.NoScheduleError:
        return
    certificate = certify(result.schedule)
    assert certificate.violations == ()
    searched_for = any(bound.name in SEARCHED for bound in result.proof)
    assert certificate.standing is (Standing.WORD if searched_for else Standing.CONFIRMED)


@pytest.mark.parametrize(
    ("schedule", "line", "status"),
    [
        (proven, "certificate  confirmed: no span is below 294 us", 0),
        (searched, "certificate  rests on the solver's word: a search reports", 0),
        (lambda: first_bound(proven(), name="hope"), "certificate  refused: 1 claim", 1),
        (
            lambda: replace(
                proven(), rows=(proven().rows[0][:-1], *proven().rows[1:]), starts=None
            ),
            "certificate  refused: a schedule that is not valid proves nothing",
            1,
        ),
        (lambda: bp.families.zb_h1(proven().problem), "certificate  nothing is claimed", 0),
    ],
    ids=["confirmed", "word", "refused", "not valid", "nothing"],
)
def test_the_command_line_tells_what_the_claims_are_worth(
    schedule: Callable[[], Schedule],
    line: str,
    status: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``bubbleproof verify`` has one line on the certificate, and exits with 1 for a false one."""
    path = tmp_path / "schedule.json"
    bp.save(schedule(), path)
    assert main(["verify", str(path)]) == status
    assert line in " ".join(capsys.readouterr().out.splitlines())
