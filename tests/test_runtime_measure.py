"""Profiles of models: times without waits, bytes to the byte, transfers, and where models are."""

import json
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from emulated_runs import ROWS, WIDTH, measured, offset_of_clock
from processes import World, world

import bubbleproof as bp
from bubbleproof.cli import main
from bubbleproof.runtime.bytes import allocated
from bubbleproof.runtime.model import Model, find_builder, require_model
from bubbleproof.schedules.ops import OpKind
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.profile import Profile, problem_of_profile

NS_PER_MS = 10**6

NUMBER_BYTES = 8
ACTIVATION = ROWS * WIDTH * NUMBER_BYTES
"""Bytes of what the small model's stages hand on."""

WEIGHTS = 2 * (WIDTH * WIDTH + WIDTH) * NUMBER_BYTES
"""Bytes of a stage's parameters."""

MODEL = f"""
import torch
from torch import nn
from torch.distributed.pipelining import SplitPoint, pipeline
from bubbleproof.runtime import Model

def make(stage, problem):
    rows = problem.total_microbatches * 4
    return Model(
        stage=stage,
        batch=lambda step: (torch.ones(rows, {WIDTH}), torch.zeros(rows, {WIDTH})),
        loss_fn=nn.functional.mse_loss,
    )

def build(problem):
    return make(lambda number: nn.Linear({WIDTH}, {WIDTH}), problem)

def split(problem):
    whole = nn.Sequential(*(nn.Linear({WIDTH}, {WIDTH}) for _ in range(2)))
    pipe = pipeline(whole, (torch.ones(4, {WIDTH}),), split_spec={{"1": SplitPoint.BEGINNING}})
    return make(pipe.get_stage_module, problem)

def listing(problem):
    class Bad(nn.Linear):
        def forward(self, value):
            return [super().forward(value)]
    return make(lambda number: Bad({WIDTH}, {WIDTH}), problem)

def function(problem):
    return make(lambda number: nn.functional.relu, problem)

def raising(problem):
    raise ArithmeticError("cannot be built")

nothing = 3
"""


@pytest.fixture(scope="module")
def two() -> Generator[World]:
    """Two processes of one group."""
    with world(2) as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with a file of models."""
    (tmp_path / "models.py").write_text(MODEL, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def of(placement: str, *, devices: int = 2, microbatches: int = 4) -> Problem:
    """Return what is measured: a placement and a number of microbatches."""
    return Problem(
        devices=devices,
        placement=placement,
        microbatches=microbatches,
        cost={"F": 10, "I": 12, "W": 8, "B": 15},
        time_unit="ms",
        backward="free",
    )


def profile_of(two: World, problem: Problem) -> Profile:
    """Return the profile of the small model, which both processes report alike."""
    first, second = two.results(measured, problem, rounds=3)
    assert first == second
    return first


@pytest.mark.parametrize("placement", ["linear", "v", "loop:2", "bidirectional"])
def test_every_stage_and_kind_is_measured(two: World, placement: str) -> None:
    """F runs with either backward; the least is at most the median, and that at most the most."""
    problem = of(placement)
    profile = profile_of(two, problem)
    assert sorted(profile.times) == [
        (stage, kind) for stage in range(problem.stages) for kind in sorted(OpKind)
    ]
    for (_, kind), spread in profile.times.items():
        assert spread.count == (6 if kind is OpKind.FORWARD else 3)
        assert 0 < spread.least_ns <= spread.median_ns <= spread.most_ns


def test_a_profile_is_a_problem_that_solve_takes(two: World, tmp_path: Path) -> None:
    """It survives its file, has both forms of the backward, and is solved and verified."""
    problem = problem_of_profile(profile_of(two, of("v")), microbatches=6, name="ours")
    bp.save(problem, tmp_path / "ours.toml")
    loaded = bp.load_problem(tmp_path / "ours.toml")
    assert loaded.cost == problem.cost
    assert (loaded.backward.value, loaded.placement.name) == ("free", "v")
    assert (loaded.time_unit, loaded.memory.unit) == ("us", "B")
    assert bp.verify(bp.solve(loaded, time_limit_s=0.5, workers=1).schedule).valid


def test_what_a_forward_holds_is_counted_to_the_byte(two: World) -> None:
    """GELU keeps its input and the layer behind it keeps its own; what is sent is static."""
    profile = profile_of(two, of("linear"))
    assert profile.memory is not None
    first, last = profile.memory
    assert first.forward == 2 * ACTIVATION
    # I leaves the gradients of both layers' outputs for W; the one at the output was received.
    assert (first.backward_input, last.backward_input >= 0) == (0, True)
    # The last stage keeps its output and what the loss keeps of it.
    assert last.forward >= 3 * ACTIVATION
    # Weights and gradients; for 4 microbatches an output and a gradient, on each side of the link.
    assert first.static == last.static == 2 * WEIGHTS + 2 * 4 * ACTIVATION


def test_what_stays_on_a_device_is_not_static(two: World) -> None:
    """In a V the two stages of the last device hand on without a message."""
    profile = profile_of(two, of("v"))
    assert profile.memory is not None
    _, down, up, _ = profile.memory
    assert down.forward == up.forward + ACTIVATION == 3 * ACTIVATION
    assert down.static == up.static == 2 * WEIGHTS + 2 * 4 * ACTIVATION


def test_transfers_are_measured_between_neighbours(two: World) -> None:
    """The same both ways; a device sends itself nothing."""
    (own, there), (back, other) = profile_of(two, of("linear")).transfer_ns or ((1, 0), (0, 1))
    assert own == other == 0
    assert there == back > 0


def test_sleeping_modules_take_the_times_of_their_problem(two: World) -> None:
    """Each op its own, also where B is not I and W; a first stage does all of B in W."""
    first, _ = two.results(measured, of("linear"), rounds=3, unit_ns=NS_PER_MS)
    expected = {(0, "F"): 10, (0, "I"): 0, (0, "W"): 15, (0, "B"): 15}
    expected |= {(1, "F"): 10, (1, "I"): 12, (1, "W"): 8, (1, "B"): 15}
    for (stage, kind), ms in expected.items():
        least = first.times[stage, OpKind(kind)].least_ns
        assert ms * NS_PER_MS <= least < (ms + 5) * NS_PER_MS, f"{stage}{kind}"


def test_clocks_of_other_machines_are_brought_to_that_of_the_first(two: World) -> None:
    """A clock that is late by 10 s is found late by 10 s; one machine has one clock."""
    ten_s = 10**10
    (here, none), (there, late) = two.results(offset_of_clock, ten_s)
    assert (here, none, there) == (0, 0, 0)
    assert abs(late - ten_s) < 20 * NS_PER_MS


def test_bytes_that_are_freed_again_do_not_count() -> None:
    """What an op leaves is what counts, of allocations and of frees."""
    cpu = torch.device("cpu")

    def work() -> torch.Tensor:
        passing = torch.ones(1000, dtype=torch.float64)
        return passing[:100].clone()

    kept, size = allocated(work, cpu)
    assert size == 800

    def free() -> None:
        nonlocal kept
        kept = torch.empty(0)

    assert allocated(free, cpu)[1] == -800


def test_one_process_measures_all_stages(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says that it cannot measure transfers, and writes a problem for all devices."""
    arguments = ["profile", "models.py:build", "--microbatches", "4", "--rounds", "1"]
    assert main([*arguments, "--devices", "2", "--placement", "v", "-o", "ours.json"]) == 0
    captured = capsys.readouterr()
    assert "transfers are not measured by one process" in captured.err
    assert "written: ours.json" in captured.err
    assert "static B" in captured.out
    problem = bp.load_problem("ours.json")
    assert (problem.devices, problem.stages, problem.cost.transfer) == (2, 4, 0)
    assert main([*arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["times"]) == 4
    assert shown["memory"][0]["static_bytes"] == 2 * 4 * (WIDTH * WIDTH + WIDTH)


def test_the_model_of_the_documentation_is_one(folder: Path) -> None:
    """It is measured as it stands there."""
    text = (Path(__file__).parent.parent / "docs" / "measuring.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(# model\.py.*?)```", text, flags=re.DOTALL)
    (folder / "model.py").write_text(code, encoding="utf-8")
    arguments = ["--microbatches", "2", "--devices", "2", "--rounds", "1", "-o", "ours.toml"]
    assert main(["profile", "model.py:build", *arguments]) == 0
    assert bp.load_problem("ours.toml").stages == 2


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_a_split_of_torch_s_pipeline_is_a_model(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its stage modules are taken as they are."""
    arguments = ["--microbatches", "2", "--devices", "2", "--rounds", "1", "-o", "ours.json"]
    assert main(["profile", "models.py:split", *arguments]) == 0
    assert bp.load_problem("ours.json").stages == 2


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("models.py", "'models.py' is no PATH:callable; write a Python file or module"),
        ("models.py:", "'models.py:' is no PATH:callable"),
        ("nosuch.py:build", r"there is no such file: nosuch\.py \(/"),
        ("no.such.module:build", r"there is no module no\.such\.module"),
        ("models.py:nothing", "models.py has no callable nothing; it has build, function, list"),
        ("models.py:bulid", "models.py has no callable bulid"),
    ],
)
def test_a_name_of_no_model_is_refused(folder: Path, reference: str, expected: str) -> None:
    """With what there is instead."""
    with pytest.raises(ValueError, match=expected):
        find_builder(reference)


def test_models_are_found_in_files_and_in_modules(folder: Path) -> None:
    """From the current folder, as Python itself finds them."""
    (folder / "package").mkdir()
    (folder / "package" / "ours.py").write_text(MODEL, encoding="utf-8")
    problem = of("linear")
    for reference in ("models.py:build", "package/ours.py:build", "package.ours:build"):
        made = require_model(find_builder(reference)(problem), reference)
        assert isinstance(made, Model)
    with pytest.raises(ValueError, match=r"models\.py:x returned a int; it must return a bub"):
        require_model(3, "models.py:x")


def test_a_file_that_cannot_be_imported_keeps_its_error(folder: Path) -> None:
    """As the cause of ours, which names the file."""
    (folder / "broken.py").write_text("1 / 0", encoding="utf-8")
    with pytest.raises(ImportError, match=r"broken\.py cannot be imported: division") as refusal:
        find_builder("broken.py:build")
    assert isinstance(refusal.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["profile", "models.py:build"], "--microbatches is missing; how many has a step?"),
        (["profile", "models.py:make", "--microbatches", "0"], "0 is out of range"),
        (["profile", "models.py:build", "--microbatches", "2", "--placement", "w"], "placement"),
        (["profile", "models.py:build", "--microbatches", "2", "-o", "x.csv"], "x.csv: this is"),
        (
            ["profile", "models.py:listing", "--microbatches", "2", "--devices", "2"],
            "stage 0 returned a list; a tensor or a tuple of tensors can be handed on",
        ),
        (
            ["profile", "models.py:listing", "--microbatches", "2", "--devices", "1"],
            "stage 0 returned a list; a tensor or a tuple of tensors can be handed on",
        ),
        (
            ["profile", "models.py:function", "--microbatches", "2", "--devices", "1"],
            r"stage 0: a function is no torch\.nn\.Module; give one",
        ),
        (
            ["profile", "models.py"],
            r"models\.py: add what in it makes the model, as models\.py:build",
        ),
        (["run", "schedule.json"], "give --model PATH:callable, or --emulate for modules"),
        (["run", "schedule.json", "--emulate", "--model", "m.py:x"], "give --model PATH:call"),
        (["run", "nosuch.json", "--emulate"], "nosuch.json: there is no such file"),
        (["run", "schedule.json", "--emulate"], "2 devices needs as many processes, not 1; start"),
        (["run", "schedule.json", "--emulate", "--unit-ms", "0"], "'0' is no time; a number abo"),
        (["run", "one.json", "--emulate"], "'' is no time on a clock; .* or give --unit-ms"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    """With status 2 and no traceback."""
    bp.save(bp.families.zb_h1(of("linear")), "schedule.json")
    alone = Problem(devices=1, microbatches=1, cost={"F": 1, "I": 1, "W": 1})
    bp.save(bp.families.zb_h1(alone), "one.json")
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    with pytest.raises(ValueError, match=expected):
        raise ValueError(err)


def test_one_device_is_emulated_without_torchrun(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A unit that is no time on a clock is given by --unit-ms."""
    alone = Problem(devices=1, microbatches=2, cost={"F": 1, "I": 2, "W": 1})
    bp.save(bp.families.zb_h1(alone), "one.json")
    assert main(["run", "one.json", "--emulate", "--unit-ms", "5", "-o", "ran.json"]) == 0
    captured = capsys.readouterr()
    assert "written: ran.json" in captured.err
    assert "1 unit of the problem: 5 ms of the clock" in captured.out
    assert "makespan" in captured.out
    measured_of = bp.load_schedule("ran.json").measured
    assert measured_of is not None
    assert measured_of.ticks_per_unit == 5 * NS_PER_MS
    assert max(measured_of.ends[0]) >= 8 * 5 * NS_PER_MS


def test_an_error_in_the_user_s_code_keeps_its_traceback(folder: Path) -> None:
    """Nothing of it is hidden where it is not about the input."""
    with pytest.raises(ArithmeticError, match="cannot be built"):
        main(["profile", "models.py:raising", "--microbatches", "2", "--devices", "1"])
    assert not torch.distributed.is_initialized()


def test_without_torch_the_extra_is_named() -> None:
    """One line, and status 2; all else works."""
    code = (
        "import sys; sys.modules['torch'] = None; import bubbleproof; "
        "from bubbleproof.cli import main; "
        "sys.exit(main(['profile', 'm.py:build', '--microbatches', '2']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'pip install "bubbleproof[torch]"' in done.stderr
    assert done.stderr.count("\n") == 1
