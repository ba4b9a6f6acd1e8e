"""Families: valid wherever they accept a problem, and clear where they refuse one."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bubbleproof as bp
from bubbleproof.schedules.families import Form
from bubbleproof.schedules.ops import Block, Op, OpKind, Pair, ops_of
from bubbleproof.schedules.placement import explicit, parse_placement

F, I, W, B = OpKind.FORWARD, OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT, OpKind.BACKWARD  # noqa: E741

NAMES = bp.families.names()
SPLIT = [name for name in NAMES if bp.families.describe(name).form is Form.SPLIT]
FUSED = [name for name in NAMES if bp.families.describe(name).form is Form.FUSED]
MIXED = [name for name in NAMES if bp.families.describe(name).form is Form.MIXED]


def placement_of(name: str, chunks: int = 2) -> str:
    """Return the placement that a family needs, with some number of chunks where it is free."""
    return bp.families.describe(name).placement.replace(":V", f":{chunks}")


def problem_of(
    name: str,
    devices: int,
    microbatches: int | Sequence[int],
    *,
    chunks: int = 2,
    backward: str = "free",
    pair: int | Sequence[int | None] | None = 5,
) -> bp.Problem:
    """Return a problem on a family's placement, with times that are all different."""
    return bp.Problem(
        devices=devices,
        placement=placement_of(name, chunks),
        microbatches=microbatches,
        cost={"F": 3, "I": 4, "W": 2, "pair": pair, "transfer": 1},
        backward=backward,
    )


def accepted(name: str, devices: int, microbatches: int) -> bool:
    """Whether a family's documented condition takes p devices and n microbatches."""
    match name:
        case "interleaved_1f1b":
            return microbatches % max(1, microbatches // devices) == 0
        case "dualpipe":
            return devices % 2 == 0 == microbatches % 2 and microbatches >= 2 * devices
        case "dualpipe_v":
            return microbatches >= 2 * devices
        case "chimera":
            return devices % 2 == 0
        case _:
            return True


def kinds(schedule: bp.Schedule) -> set[OpKind]:
    """Return the kinds of all ops in a schedule, in pairs too."""
    return {op.kind for row in schedule.rows for block in row for op in ops_of(block)}


def test_the_published_families_are_there_by_name() -> None:
    """The names are part of the interface."""
    assert NAMES == (
        "gpipe",
        "one_f_one_b",
        "interleaved_1f1b",
        "looped_bfs",
        "zb_h1",
        "zb_h2",
        "zb_v",
        "v_half",
        "v_min",
        "dualpipe",
        "dualpipe_v",
        "chimera",
        "hanayo",
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_family_is_an_attribute_and_is_built_by_name(name: str) -> None:
    """Both ways give the same schedule, whose source is the name; times are left open."""
    problem = problem_of(name, 2, 4)
    schedule = bp.families.build(name, problem)
    assert getattr(bp.families, name)(problem) == schedule
    assert (schedule.source, schedule.starts, schedule.problem) == (name, None, problem)


@pytest.mark.parametrize("name", NAMES)
def test_a_description_says_what_the_schedule_is(name: str) -> None:
    """The form and the copies of the weights are those of the schedule."""
    family = bp.families.describe(name)
    problem = problem_of(name, 4, 8)
    used = kinds(bp.families.build(name, problem)) - {F}
    assert family.name == name
    assert family.title
    assert family.source
    assert used == {Form.FUSED: {B}, Form.SPLIT: {I, W}, Form.MIXED: {B, I, W}}[family.form]
    assert problem.stages == family.copies * len(set(problem.placement.replica_of))


def test_an_unknown_name_is_refused_with_the_closest() -> None:
    """A typing error gets the name that was meant."""
    meant = r"'dualpip' is unknown; did you mean dualpipe\?"
    with pytest.raises(ValueError, match=meant):
        bp.families.describe("dualpip")
    with pytest.raises(ValueError, match=meant):
        bp.families.build("dualpip", problem_of("dualpipe", 2, 4))
    with pytest.raises(ValueError, match=r"^family: 'zzzz[z]*\.\.\. is unknown"):
        bp.families.describe("z" * 100_000)


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("1f1b", "one_f_one_b"),
        ("1F1B", "one_f_one_b"),
        ("Schedule1F1B", "one_f_one_b"),
        ("PipeDream-Flush", "one_f_one_b"),
        ("interleaved", "interleaved_1f1b"),
        ("ScheduleInterleaved1F1B", "interleaved_1f1b"),
        ("ScheduleLoopedBFS", "looped_bfs"),
        ("zbh1", "zb_h1"),
        ("ZB-H2", "zb_h2"),
        ("zbv", "zb_v"),
        ("ScheduleZBVZeroBubble", "zb_v"),
        ("v-min", "v_min"),
        ("dualpipev", "dualpipe_v"),
    ],
)
def test_a_family_called_as_elsewhere_is_recognized(called: str, name: str) -> None:
    """Papers, torch and people write the names in other ways; the refusal names ours."""
    with pytest.raises(ValueError, match=rf"is unknown; did you mean {name}\?"):
        bp.families.describe(called)


@pytest.mark.parametrize("name", NAMES)
def test_every_family_verifies_on_a_grid(name: str) -> None:
    """Devices 1 to 16, microbatches around every border: valid, or refused as documented."""
    for devices in range(1, 17):
        for microbatches in sorted({1, devices - 1, devices, 2 * devices, 2 * devices + 1} - {0}):
            problem = problem_of(name, devices, microbatches)
            if accepted(name, devices, microbatches):
                assert bp.verify(bp.families.build(name, problem)).violations == ()
            else:
                with pytest.raises(ValueError, match=r"is accepted"):
                    bp.families.build(name, problem)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_family_verifies_on_the_whole_grid(name: str) -> None:
    """Devices 1 to 16, microbatches 1 to 40."""
    for devices in range(1, 17):
        for microbatches in filter(lambda n: accepted(name, devices, n), range(1, 41)):
            problem = problem_of(name, devices, microbatches)
            assert bp.verify(bp.families.build(name, problem)).violations == ()


@given(data=st.data())
def test_every_family_verifies_in_every_form(data: st.DataObject) -> None:
    """Whatever the chunks, the backward and the devices that allow pairs, what is built runs."""
    name = data.draw(st.sampled_from(NAMES))
    devices, microbatches = data.draw(
        st.sampled_from([(p, n) for p in range(1, 9) for n in range(1, 21) if accepted(name, p, n)])
    )
    problem = problem_of(
        name,
        devices,
        microbatches,
        chunks=data.draw(st.integers(1, 4)),
        backward=data.draw(st.sampled_from(["split", "free"] + ["fused"] * (name in FUSED))),
        pair=data.draw(st.lists(st.sampled_from([None, 4]), min_size=devices, max_size=devices)),
    )
    assert bp.verify(bp.families.build(name, problem)).violations == ()


def test_chimera_takes_any_number_in_each_chain() -> None:
    """The two directions need not carry the same number, and one may carry none."""
    for microbatches in ([0, 5], [7, 1], [3, 8]):
        schedule = bp.families.chimera(problem_of("chimera", 4, microbatches))
        assert bp.verify(schedule).violations == ()


@pytest.mark.parametrize("microbatches", [2, 4, 8])
def test_chimera_on_two_devices_grows_with_the_microbatches(microbatches: int) -> None:
    """Every microbatch passes once, in one direction (ParCIS/Chimera issue 3)."""
    schedule = bp.families.chimera(problem_of("chimera", 2, microbatches))
    assert [len(row) for row in schedule.rows] == [2 * microbatches] * 2
    passing = [op.microbatch for row in schedule.rows for block in row for op in ops_of(block)]
    assert sorted(passing) == sorted(4 * list(range(microbatches)))


@pytest.mark.parametrize("name", NAMES)
def test_another_placement_is_refused_by_its_name(name: str) -> None:
    """The refusal says what is needed and what the problem has."""
    other = "v" if placement_of(name) == "linear" else "linear"
    if name in ("interleaved_1f1b", "looped_bfs", "hanayo"):
        other = "bidirectional"
    problem = bp.Problem(
        devices=4, placement=other, microbatches=8, cost={"F": 1, "I": 1, "W": 1}, backward="free"
    )
    needed = bp.families.describe(name).placement
    with pytest.raises(
        ValueError, match=f'^{name} needs placement "{needed}"; the problem has "{other}"$'
    ):
        bp.families.build(name, problem)


def test_a_loop_is_refused_where_a_wave_is_needed() -> None:
    """An explicit placement is shown by its devices."""
    problem = bp.Problem(
        devices=2,
        placement=explicit(2, [0, 1, 0, 1]),
        microbatches=2,
        cost={"F": 1, "I": 1, "W": 1},
    )
    with pytest.raises(ValueError, match=r"the problem has explicit \[0, 1, 0, 1\]$"):
        bp.families.hanayo(problem)


@pytest.mark.parametrize("name", NAMES)
def test_an_explicit_placement_with_the_same_stages_is_accepted(name: str) -> None:
    """What counts is where the stages are and in which order they are passed."""
    named = problem_of(name, 4, 8)
    same = explicit(4, named.placement.device_of_stage, named.placement.chains)
    problem = bp.Problem(
        devices=4, placement=same, microbatches=8, cost=named.cost, backward="free"
    )
    assert bp.families.build(name, problem).rows == bp.families.build(name, named).rows


def test_equal_placements_with_other_names_are_accepted() -> None:
    """A V is a wave of two chunks; a loop of one is linear."""
    assert bp.verify(bp.families.hanayo(problem_of("zb_v", 3, 4))).valid
    assert bp.verify(bp.families.zb_v(problem_of("hanayo", 3, 4))).valid
    assert bp.families.interleaved_1f1b(problem_of("gpipe", 4, 8)).rows == (
        bp.families.one_f_one_b(problem_of("gpipe", 4, 8)).rows
    )


@pytest.mark.parametrize("name", [*SPLIT, *MIXED])
def test_a_family_with_i_and_w_is_refused_on_fused(name: str) -> None:
    """The reason and what would do are in the message."""
    problem = problem_of(name, 2, 4, backward="fused")
    with pytest.raises(
        ValueError, match=f'^{name}: backward is "fused", .*"split" and "free" are accepted$'
    ):
        bp.families.build(name, problem)


@pytest.mark.parametrize(
    ("name", "devices", "microbatches", "message", "instead"),
    [
        ("dualpipe", 4, 7, r"microbatches is 7, .* 2 x devices = 8; 8 is accepted", (4, 8)),
        ("dualpipe", 4, 9, r"microbatches is 9, but it must be even .*; 10 is accepted", (4, 10)),
        ("dualpipe", 3, 8, r"devices is 3, but it must be even; 4 is accepted", (4, 8)),
        ("dualpipe_v", 4, 7, r"microbatches is 7, .* = 8; 8 is accepted", (4, 8)),
        ("chimera", 1, 2, r"devices is 1, but it must be even; 2 is accepted", (2, 2)),
        ("interleaved_1f1b", 4, 9, r"microbatches is 9, .* devices = 4 .*; 8 is acc", (4, 8)),
        ("interleaved_1f1b", 4, 13, r"microbatches is 13, .* of 3, .*; 12 is accept", (4, 12)),
    ],
)
def test_a_refusal_names_the_field_and_a_number_that_is_accepted(
    name: str, devices: int, microbatches: int, message: str, instead: tuple[int, int]
) -> None:
    """The number in the message really is accepted."""
    with pytest.raises(ValueError, match=f"^{name}: {message}"):
        bp.families.build(name, problem_of(name, devices, microbatches))
    assert bp.verify(bp.families.build(name, problem_of(name, *instead))).valid


def test_dualpipe_wants_chains_of_one_length() -> None:
    """A total that would do, dealt out unevenly, is refused with the even deal."""
    with pytest.raises(ValueError, match=r"microbatches is \[6, 10\], .*; \[8, 8\] is accepted"):
        bp.families.dualpipe(problem_of("dualpipe", 4, [6, 10]))


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_family_writes_each_b_as_i_and_w_on_split(name: str) -> None:
    """I is directly followed by W, where B stood."""
    fused = bp.families.build(name, problem_of(name, 4, 8, backward="fused"))
    split = bp.families.build(name, problem_of(name, 4, 8, backward="split"))
    assert kinds(fused) == {F, B}
    assert split.rows == tuple(tuple(_apart(row)) for row in fused.rows)


@pytest.mark.parametrize("name", MIXED)
def test_a_mixed_family_writes_everything_apart_on_split(name: str) -> None:
    """A pair becomes its forward and then its backward, as I and W."""
    own = bp.families.build(name, problem_of(name, 4, 8))
    split = bp.families.build(name, problem_of(name, 4, 8, backward="split"))
    assert any(isinstance(block, Pair) for row in own.rows for block in row)
    assert split.rows == tuple(tuple(_apart(row)) for row in own.rows)


@pytest.mark.parametrize("name", MIXED)
def test_pairs_are_written_only_where_the_device_allows_them(name: str) -> None:
    """Elsewhere the pair's forward and then its backward stand in its place."""
    everywhere = bp.families.build(name, problem_of(name, 4, 8))
    some = bp.families.build(name, problem_of(name, 4, 8, pair=[5, None, 0, None]))
    for device, (row, own) in enumerate(zip(some.rows, everywhere.rows, strict=True)):
        if device % 2:
            assert row == tuple(op for block in own for op in ops_of(block))
        else:
            assert row == own


@pytest.mark.parametrize("name", NAMES)
def test_n_equal_to_p_and_n_equal_to_the_stages_run(name: str) -> None:
    """No special case where microbatches and stages are as many (ColossalAI issue 2156)."""
    for devices in range(2, 7, 2):
        for microbatches in (devices, 2 * devices):
            if accepted(name, devices, microbatches):
                problem = problem_of(name, devices, microbatches)
                assert bp.verify(bp.families.build(name, problem)).valid


def test_placements_of_the_descriptions_are_known() -> None:
    """Every placement that a description names can be written in a problem file."""
    for name in NAMES:
        assert parse_placement(placement_of(name), 4).devices == 4


def _apart(row: Sequence[Block]) -> list[Block]:
    return [
        part
        for block in row
        for op in ops_of(block)
        for part in (
            [Op(op.stage, I, op.microbatch), Op(op.stage, W, op.microbatch)]
            if op.kind is B
            else [op]
        )
    ]
