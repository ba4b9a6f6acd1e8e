"""Proofs by clauses: the encoding is right, the checker sound, what is tampered with refused."""

import json
import random
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

import pytest
from bruteforce import least_objective
from hypothesis import given, settings
from hypothesis import strategies as st

import bubbleproof as bp
from bubbleproof.cli import main
from bubbleproof.solver.clauses import question
from bubbleproof.solver.lrat import answer
from bubbleproof.verify.clause_proof import check_clause_proof
from bubbleproof.verify.clauses import clauses_of, slots_of
from bubbleproof.verify.lrat import Addition, Deletion, Step, read_steps, refute

SHAPES: tuple[tuple[int, int, object, object, str], ...] = (
    (2, 2, "linear", 2, "split"),
    (3, 3, "linear", 2, "fused"),
    (2, 2, "linear", 3, "fused"),
    (1, 1, "linear", 2, "split"),
    (2, 4, "v", 1, "split"),
    (2, 4, "v", 2, "fused"),
    (1, 2, "v", 2, "split"),
    (2, 4, "bidirectional", 2, "split"),
    (2, 4, "bidirectional", 3, "fused"),
    (2, 2, {"device_of_stage": [0, 1], "chains": [[0], [1]]}, [1, 2], "split"),
    (3, 4, {"device_of_stage": [1, 0, 1, 2], "chains": [[0, 1], [2, 3]]}, [1, 1], "fused"),
    (2, 3, {"device_of_stage": [0, 1, 1], "chains": [[0, 1], [2]]}, [2, 0], "split"),
)
"""Devices, stages, placement, microbatches, backward."""

MEMORIES: tuple[tuple[tuple[int, int], tuple[int, int], tuple[int, int], int], ...] = (
    ((1, 0), (0, 0), (0, 1), 99),
    ((1, 0), (0, 1), (0, 0), 1),
    ((1, 0), (0, 1), (0, 0), 2),
    ((2, 0), (0, 1), (0, 1), 2),
    ((2, 0), (0, 1), (0, 1), 3),
    ((3, 0), (2, 0), (0, 5), 5),
    ((2, 0), (1, 1), (0, 2), 4),
)
"""What F, I and W allocate and free, and the limit."""


def unit_problem(seed: int) -> bp.Problem:
    """Return a tiny problem whose ops all take the same time; the same one for the same seed."""
    rng = random.Random(seed)
    devices, stages, placement, microbatches, backward = rng.choice(SHAPES)
    *changes, limit = rng.choice(MEMORIES)
    unit = rng.choice((1, 1, 7))
    transfer = unit * rng.choice((0, 0, 1, 2))
    memory: dict[str, object] = {
        kind: [list(change)] * stages for kind, change in zip("FIW", changes, strict=True)
    }
    return bp.Problem(
        devices=devices,
        placement=placement,  # pyright: ignore[reportArgumentType]
        microbatches=microbatches,  # pyright: ignore[reportArgumentType]
        cost={"F": unit, "I": unit, "W": unit, "B": unit, "transfer": transfer},
        memory={**memory, "static": rng.randint(0, 1), "limit": limit},
        backward=backward,
        objective=rng.choice(("makespan", "span")),
    )


def small_problem(limit: int = 3) -> bp.Problem:
    """Return a problem whose least span, 11, needs a search to prove."""
    return bp.Problem(
        devices=3,
        microbatches=3,
        cost={"F": 1, "I": 1, "W": 1},
        memory={"F": 1, "W": -1, "limit": limit},
        objective="span",
    )


def small_proof() -> tuple[bp.Problem, list[str], list[str]]:
    """Return a problem, clauses and proof that it has no span below 11."""
    problem = small_problem()
    asked = question(problem, 11)
    found = answer(asked, time_limit_s=30)
    assert found.satisfiable is False
    return problem, str(asked).splitlines(), found.proof.splitlines()


PROVEN = small_proof()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_clauses_are_satisfiable_exactly_when_a_schedule_exists(seed: int) -> None:
    """Against every order of tiny problems, at bounds around the optimum; the rest is proven."""
    for case in range(6):
        problem = unit_problem(6 * seed + case)
        unit = problem.cost.F[0]
        best = least_objective(problem)
        at = 8 * unit if best is None else best
        for bound in range(at - 2 * unit, at + 2 * unit + 1, max(1, unit // 2)):
            asked = question(problem, bound)
            found = answer(asked, time_limit_s=30)
            assert found.satisfiable is (best is not None and best < bound), (bound, problem)
            if not found.satisfiable:
                steps = read_steps(found.proof.splitlines())
                proof = check_clause_proof(problem, bound, str(asked).splitlines(), steps)
                assert not proof.fault, (bound, problem)


@settings(max_examples=30)
@given(
    st.integers(0, 10**6),
    st.integers(-3, 12),
    st.sampled_from(["linear", "loop:2", "v", "wave:3", "bidirectional"]),
    st.booleans(),
)
def test_two_encoders_from_one_definition_agree(
    seed: int, bound: int, placement: str, large: bool
) -> None:
    """The solver's clauses are the verifier's, one by one and in order."""
    problem = unit_problem(seed)
    if large:
        rng = random.Random(seed)
        problem = bp.Problem(
            devices=rng.randint(1, 3),
            placement=placement,
            microbatches=rng.randint(1, 4),
            cost={"F": 2, "I": 2, "W": 2, "B": 2, "transfer": 2 * rng.randint(0, 2)},
            memory={"F": 1, "W": -1, "limit": rng.randint(1, 5)},
            backward=rng.choice(("split", "fused")),
            objective=rng.choice(("makespan", "span")),
        )
    asked = question(problem, bound)
    slots = slots_of(problem, bound)
    assert slots.variables == asked.variables
    assert list(clauses_of(slots)) == list(map(tuple, asked.clauses))


@pytest.mark.slow
def test_eight_devices_and_sixteen_microbatches_have_no_makespan_of_54() -> None:
    """F = I = W = 1, memory for 8: 55 is the least, by a proof that is checked line by line."""
    problem = bp.Problem(
        devices=8,
        microbatches=16,
        cost={"F": 1, "I": 1, "W": 1},
        memory={"F": 1, "W": -1, "limit": 8},
    )
    asked = question(problem, 55)
    found = answer(asked, time_limit_s=300)
    assert found.satisfiable is False
    steps = read_steps(found.proof.splitlines())
    proof = check_clause_proof(problem, 55, str(asked).splitlines(), steps)
    assert (proof.variables, proof.clauses, proof.fault) == (20352, 224304, "")
    assert answer(question(problem, 56), time_limit_s=300).satisfiable is True


def test_a_larger_bound_is_not_proven_by_the_proof_of_a_smaller() -> None:
    """The clauses of another bound, or of another problem, are other clauses."""
    problem, cnf, proof = PROVEN
    steps = read_steps(proof)
    assert not check_clause_proof(problem, 11, cnf, steps).fault
    assert "the problem stands for" in check_clause_proof(problem, 12, cnf, steps).fault
    other = small_problem(limit=2)
    assert "the problem stands for" in check_clause_proof(other, 11, cnf, steps).fault


def test_comments_in_the_clauses_are_skipped() -> None:
    """DIMACS files may have lines that start with c."""
    problem, cnf, proof = PROVEN
    commented = ["c a comment", *cnf, "c another"]
    assert not check_clause_proof(problem, 11, commented, read_steps(proof)).fault


@settings(max_examples=100)
@given(st.data())
def test_no_change_of_the_clauses_goes_unnoticed(data: st.DataObject) -> None:
    """A line dropped, doubled, exchanged or with another literal is refused."""
    problem, cnf, proof = PROVEN
    changed = list(cnf)
    at = data.draw(st.integers(0, len(cnf) - 1))
    match data.draw(st.sampled_from(["drop", "double", "swap", "flip"])):
        case "drop":
            del changed[at]
        case "double":
            changed.insert(at, changed[at])
        case "swap":
            other = data.draw(st.integers(0, len(cnf) - 1))
            changed[at], changed[other] = changed[other], changed[at]
        case _:
            words = changed[at].split()
            place = data.draw(st.integers(0, len(words) - 1))
            words[place] = data.draw(
                st.sampled_from(["1", "-1", "2", "0", "x", "-" + words[place]])
            )
            changed[at] = " ".join(words)
    judged = check_clause_proof(problem, 11, changed, read_steps(proof))
    assert bool(judged.fault) is (changed != cnf)


@settings(max_examples=100)
@given(st.data())
def test_no_proof_of_what_is_satisfiable_is_accepted(data: st.DataObject) -> None:
    """Soundness: whatever the steps are, clauses that an assignment satisfies stand."""
    variables = data.draw(st.integers(1, 4))
    literal = st.integers(1, variables).flatmap(lambda v: st.sampled_from([v, -v]))
    clauses = data.draw(st.lists(st.lists(literal, max_size=3), max_size=8))
    satisfiable = any(
        all(any((number > 0) is values[abs(number) - 1] for number in clause) for clause in clauses)
        for values in product((True, False), repeat=variables)
    )
    names = st.integers(1, 16)
    additions = st.builds(
        Addition,
        names,
        st.lists(literal, max_size=2).map(tuple),
        st.lists(names, max_size=6).map(tuple),
    )
    steps = data.draw(
        st.lists(st.one_of(additions, st.builds(Deletion, st.tuples(names))), max_size=8)
    )
    assert refute(clauses, steps).fault or not satisfiable


def test_every_step_of_a_proof_matters_to_the_checker() -> None:
    """A proof cut short, or with one hint missing from a step that needs it, is refused."""
    problem, cnf, proof = PROVEN
    for cut in range(0, len(proof) - 1, 60):
        fault = check_clause_proof(problem, 11, cnf, read_steps(proof[:cut])).fault
        assert fault == "the proof shows nothing: it ends without the empty clause"
    rng = random.Random(0)
    refused = 0
    steps = read_steps(proof)
    additions = [i for i, step in enumerate(steps) if isinstance(step, Addition)]
    for at in rng.sample(additions, min(40, len(additions))):
        step = steps[at]
        assert isinstance(step, Addition)
        short = Addition(step.name, step.clause, step.hints[:-1])
        changed = [*steps[:at], short, *steps[at + 1 :]]
        refused += bool(check_clause_proof(problem, 11, cnf, changed).fault)
    assert refused == min(40, len(additions))


SQUARE = ((1, 2), (1, -2), (-1, 2), (-1, -2))
"""Every pair of two variables, contradictory."""

GOOD: tuple[Step, ...] = (Addition(5, (1,), (1, 2)), Addition(6, (), (5, 3, 4)))


@pytest.mark.parametrize(
    ("steps", "fault"),
    [
        (GOOD, ""),
        ((GOOD[0], Deletion((1, 2)), GOOD[1]), ""),
        ((*GOOD, Addition(7, (9,), (99,))), ""),
        ((), "ends without the empty clause"),
        (GOOD[:1], "ends without the empty clause"),
        (GOOD[1:], "step 1 uses clause 5, which is not there"),
        ((GOOD[0], Deletion((3,)), GOOD[1]), "step 3 uses clause 3, which is not there"),
        ((GOOD[0], Deletion((9,)), GOOD[1]), "step 2 deletes clause 9, which is not there"),
        ((Addition(4, (1,), (1, 2)), GOOD[1]), "step 1 derives clause 4 a second time"),
        ((Addition(5, (1,), (1,)), GOOD[1]), "step 1 ends without a contradiction"),
        ((Addition(5, (), (1, 2)), GOOD[1]), "step 1 uses clause 1, which leaves 2 literals open"),
        ((Addition(5, (3,), (-1, 2)), GOOD[1]), "step 1 is a RAT step, which is not accepted"),
    ],
)
def test_the_checker_tells_proofs_from_others(steps: tuple[Step, ...], fault: str) -> None:
    """Each way in which a proof can fail has its own words."""
    found = refute(SQUARE, steps)
    assert fault in found.fault
    assert bool(fault) is bool(found.fault)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "x",
        "5",
        "5 1 0",
        "5 1 0 1 2",
        "5 1 0 1 2 0 0",
        "0 1 0 1 0",
        "5 01 0 1 0",
        "5  1 0 1 0",
        "5 1 0 1 0\t",
        "5 d 1",
        "5 d -1 0",
        "5 1 0 " + "9" * 5000 + " 0",
    ],
    ids=lambda line: line[:12],
)
def test_a_line_that_is_no_step_is_told_with_its_number(line: str) -> None:
    """The grammar is strict: nothing else is read as something."""
    with pytest.raises(ValueError, match=r"^2:1: .* is no step; a clause's number"):
        read_steps(["5 1 0 1 2 0", line])


UNFIT: Mapping[str, tuple[Mapping[str, object], str, str]] = {
    "unequal": (
        {"cost": {"F": 1, "I": 2, "W": 1}},
        "all ops take the same time above 0, not 1 to 2",
        "F takes 1 and I 2; a proof by clauses is for problems whose ops all take the same time",
    ),
    "empty": (
        {"cost": {"F": 0, "I": 0, "W": 0}},
        "all ops take the same time above 0, not 0 to 0",
        "the ops take no time; a proof by clauses needs a time above 0",
    ),
    "transfer": (
        {"cost": {"F": 2, "I": 2, "W": 2, "transfer": 3}},
        "a transfer takes a multiple of an op's time, not 3",
        "3 is no multiple of the ops' time 2",
    ),
    "free": (
        {"backward": "free"},
        'backward is "split" or "fused", not "free"',
        '"free" has no proof by clauses; "split" and "fused" problems do',
    ),
    "pairs": (
        {"cost": {"F": 1, "B": 1, "pair": 1}, "backward": "fused"},
        "cost.pair is null",
        "a problem with pairs has no proof by clauses; null does",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_problems_that_clauses_cannot_express_are_refused(case: str) -> None:
    """Both sides refuse them, each with what would do."""
    changes, asking, judging = UNFIT[case]
    words: dict[str, object] = {"devices": 2, "microbatches": 2, "cost": {"F": 1, "I": 1, "W": 1}}
    problem = bp.Problem(**{**words, **changes})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=asking):
        question(problem, 5)
    with pytest.raises(ValueError, match=judging):
        slots_of(problem, 5)


def test_a_question_with_too_many_clauses_is_refused() -> None:
    """Three stages on a device: the states of nine groups that hold too much are too many."""
    problem = bp.Problem(
        devices=1,
        placement="loop:3",
        microbatches=6,
        cost={"F": 1, "I": 1, "W": 1},
        memory={"F": 3, "I": -1, "W": -2, "limit": 20},
    )
    with pytest.raises(ValueError, match="a certificate would take more than 4000000 clauses"):
        question(problem, 200)
    with pytest.raises(ValueError, match="what device 0 may not hold takes more than"):
        list(clauses_of(slots_of(problem, 200)))


def test_too_little_time_is_no_answer() -> None:
    """A search that is cut short says neither yes nor no."""
    problem = bp.Problem(
        devices=6,
        microbatches=10,
        cost={"F": 1, "I": 1, "W": 1},
        memory={"F": 1, "W": -1, "limit": 6},
    )
    assert answer(question(problem, 35), time_limit_s=1e-6).satisfiable is None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder that solve --certificate has written."""
    problem = {
        "format": "bubbleproof.problem/1",
        "devices": 3,
        "microbatches": 5,
        "cost": {"F": 1, "I": 1, "W": 1},
        "memory": {"F": 1, "W": -1, "limit": 3},
    }
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(problem), encoding="utf-8")
    written = tmp_path / "proof"
    assert main(["solve", str(path), "--certificate", str(written), "--time-limit", "30"]) == 0
    return written


def test_a_written_certificate_is_checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Solve writes three files, and check proves the schedule optimal from them alone."""
    assert sorted(path.name for path in folder.iterdir()) == [
        "proof.cnf",
        "proof.lrat",
        "schedule.json",
    ]
    capsys.readouterr()
    assert main(["check", str(folder)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "no schedule has a makespan below 17: this one is proven optimal" in out
    assert main(["check", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["proven"], told["bound"], told["objective"], told["fault"]) == (True, 17, 17, None)


def _edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Return a change of the first place of a text."""

    def change(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


def _cut(name: str) -> Callable[[Path], None]:
    """Return a change that drops the last line."""

    def change(folder: Path) -> None:
        lines = (folder / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:-1]), encoding="utf-8")

    return change


def _claim(**changes: object) -> Callable[[Path], None]:
    """Return a change of the schedule's fields; None drops one."""

    def change(folder: Path) -> None:
        path = folder / "schedule.json"
        words = {**json.loads(path.read_text(encoding="utf-8")), **changes}
        words = {name: value for name, value in words.items() if value is not None}
        path.write_text(json.dumps(words), encoding="utf-8")

    return change


TAMPERED: Mapping[str, tuple[Callable[[Path], None], int, str]] = {
    "a clause less": (_cut("proof.cnf"), 1, "is missing; the problem stands for"),
    "a clause changed": (_edit("proof.cnf", " 0\n", " 1 0\n"), 1, "the problem stands for"),
    "no conclusion": (_cut("proof.lrat"), 1, "it ends without the empty clause"),
    "another bound": (_claim(bound=16, status="feasible"), 1, "the problem stands for"),
    "another objective": (_claim(objective=18, status="feasible"), 1, "the starts have a makespan"),
    "other rows": (_claim(rows=["0F0", "1F0", ""], starts=None), 1, "but the schedule is refused"),
    "another problem": (_edit("schedule.json", '"limit": 3', '"limit": 4'), 1, "stands for"),
    "no bound": (_claim(bound=None, status=None), 2, "schedule.json: bound is missing"),
    "unequal times": (_edit("schedule.json", '"F": 1', '"F": 2'), 2, "in problem: cost: F takes"),
    "no proof file": (lambda at: (at / "proof.lrat").unlink(), 2, "lrat: there is no such file"),
    "no step": (_edit("proof.lrat", " 0", " 0 q"), 2, "proof.lrat:1:1: "),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_whatever_is_tampered_with_is_refused(
    case: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1 for files that prove nothing, 2 for files that cannot be read as such."""
    change, status, message = TAMPERED[case]
    change(folder)
    capsys.readouterr()
    assert main(["check", str(folder)]) == status
    captured = capsys.readouterr()
    assert message in " ".join((captured.out + captured.err).split())


def test_a_certificate_that_cannot_be_is_refused_before_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unequal times, or no place for the folder: one line, at once."""
    small = Path(__file__).parent.parent / "examples" / "small.toml"
    assert main(["solve", str(small), "--certificate", str(tmp_path / "proof")]) == 2
    assert "all ops take the same time above 0, not 8 to 12" in capsys.readouterr().err
    problem = tmp_path / "unit.json"
    words = {"format": "bubbleproof.problem/1", "devices": 1, "microbatches": 1}
    cost = {"F": 1, "I": 1, "W": 1}
    problem.write_text(json.dumps({**words, "cost": cost}), encoding="utf-8")
    assert main(["solve", str(problem), "--certificate", str(tmp_path / "no" / "proof")]) == 2
    assert "is no folder, and none can be made there" in capsys.readouterr().err
