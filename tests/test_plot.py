# pyright: reportUnknownMemberType=false
# matplotlib's own types leave the keyword arguments of its drawing methods open.
"""Pictures: what is drawn is what the timeline says, and the same schedule is the same file."""

import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import networkx as nx
import numpy as np
import pytest
from file_strategies import problems
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bubbleproof.schedules import families
from bubbleproof.schedules.graph import dependency_graph
from bubbleproof.schedules.ops import Op, OpKind
from bubbleproof.schedules.palette import INK, LIMIT, op_colour, shade, text_colour
from bubbleproof.schedules.plot import plot
from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Schedule, Status, parse_rows
from bubbleproof.schedules.simulate import simulate

COST = {"F": 10, "I": 12, "W": 8}
PROBLEM = Problem(
    devices=4,
    microbatches=6,
    cost=COST | {"transfer": 0.5},
    memory={"F": 2, "I": -1, "W": -1, "limit": [8, 8, 8, None], "unit": "GiB"},
    time_unit="ms",
)
SCHEDULE = families.zb_h1(PROBLEM)
PAIRS = Problem(
    devices=4,
    placement="bidirectional",
    microbatches=8,
    cost=COST | {"pair": 26},
    backward="free",
)


def tiles(figure: Figure) -> list[PolyCollection]:
    """Return the collections of rectangles: the ops, and where there are any, their feet."""
    (axes,) = figure.axes
    found = {item.get_gid(): item for item in axes.collections if isinstance(item, PolyCollection)}
    return [found[name] for name in ("ops", "feet") if name in found]


def boxes(collection: PolyCollection) -> list[tuple[float, float, float, float]]:
    """Return left, right, top and bottom of each rectangle."""
    found: list[tuple[float, float, float, float]] = []
    for path in collection.get_paths():
        box = path.get_extents()
        found.append((box.x0, box.x1, box.y0, box.y1))
    return found


def words(figure: Figure) -> list[str]:
    """Return all texts of a picture."""
    (axes,) = figure.axes
    return [text.get_text() for text in (*figure.texts, *axes.texts)]


def test_every_op_is_a_rectangle_at_its_time_on_its_device() -> None:
    """In the user's unit, in row order."""
    timeline = simulate(SCHEDULE)
    drawn = boxes(tiles(plot(SCHEDULE))[0])
    expected = [
        (PROBLEM.time(start), PROBLEM.time(end), device)
        for device in range(4)
        for start, end in zip(timeline.starts[device], timeline.ends[device], strict=True)
    ]
    assert [(left, right, int(top)) for left, right, top, _ in drawn] == expected


def test_a_pair_is_one_block_with_its_forward_above_its_backward() -> None:
    """Both halves have the same time, and together the height of any other op."""
    schedule = families.dualpipe(PAIRS)
    drawn = boxes(tiles(plot(schedule))[0])
    heights = {round(bottom - top, 6) for *_, top, bottom in drawn}
    assert len(heights) == 2
    half, whole = sorted(heights)
    assert whole == pytest.approx(2 * half)
    halves = [box for box in drawn if box[3] - box[2] < 0.9 * whole]
    for upper, lower in zip(halves[::2], halves[1::2], strict=True):
        assert upper[:2] == lower[:2]
        assert upper[3] == pytest.approx(lower[2])


def test_the_other_chain_has_feet_and_a_single_stage_none() -> None:
    """One foot for each op of the second stage of a device."""
    schedule = families.dualpipe(PAIRS)
    feet = tiles(plot(schedule))[1]
    ops_of_chain_1 = 8 // 2 * 4 * 3
    full = sum(str(schedule).count(f"{stage}B") for stage in range(4, 8))
    assert len(boxes(feet)) == ops_of_chain_1 - full
    assert len(tiles(plot(SCHEDULE))) == 1


def test_memory_is_drawn_with_a_limit_where_there_is_one() -> None:
    """Three of four devices have one; without memory nothing of it is left."""
    (axes,) = plot(SCHEDULE).axes

    def limits(lines: Iterable[Line2D]) -> int:
        return sum(to_rgb(line.get_color()) == to_rgb(LIMIT) for line in lines)

    assert limits(axes.lines) == 3
    assert "peak 8 / 8 GiB" in words(plot(SCHEDULE))
    assert "peak 5 GiB" in words(plot(SCHEDULE))
    (bare,) = plot(SCHEDULE, memory=False).axes
    assert not bare.lines
    assert not any("peak" in text for text in words(plot(SCHEDULE, memory=False)))


def test_a_peak_above_its_limit_is_marked() -> None:
    """Its note has the colour of the limit."""
    tight = replace(PROBLEM, memory={"F": 2, "I": -1, "W": -1, "limit": 7})
    (axes,) = plot(replace(SCHEDULE, problem=tight)).axes
    marked = {text.get_text() for text in axes.texts if text.get_color() == LIMIT}
    assert marked == {"peak 8 / 7"}


def test_the_head_has_the_numbers_and_what_is_proven() -> None:
    """Makespan in the user's unit, the bound, or that it is optimal."""
    timeline = simulate(SCHEDULE)
    head = "\n".join(words(plot(SCHEDULE)))
    assert f"makespan {timeline.makespan} ms" in head
    assert f"bubble {timeline.bubble_ratio:.1%}" in head
    bounded = plot(replace(SCHEDULE, bound=300))
    assert any("no makespan is below 150 ms" in text for text in words(bounded))
    (axes,) = bounded.axes
    assert any(np.array_equal(line.get_xdata(), [150, 150]) for line in axes.lines)
    optimal = replace(SCHEDULE, status=Status.OPTIMAL)
    assert any("makespan proven optimal" in text for text in words(plot(optimal)))
    assert "mine" in words(plot(SCHEDULE, title="mine"))
    assert "pipeline schedule · zb_h1" in words(plot(SCHEDULE))
    named = replace(SCHEDULE, problem=replace(PROBLEM, name="ours"))
    assert "ours · zb_h1" in words(plot(named))


def test_the_legend_has_what_is_drawn_and_fits() -> None:
    """The bound's line and the two-tone boxes of pairs are explained where there are any."""

    def legend(figure: Figure) -> set[str]:
        return {text.get_text() for text in figure.legends[0].get_texts()}

    assert not {"proven bound", "pair: F above B"} & legend(plot(SCHEDULE))
    assert "proven bound" in legend(plot(replace(SCHEDULE, bound=300)))
    assert "proven bound" not in legend(plot(replace(SCHEDULE, bound=10**6)))
    limited = replace(PAIRS, memory={"F": 1, "W": -1, "limit": 9})
    figure = plot(replace(families.dualpipe(limited), bound=100))
    assert {"proven bound", "pair: F above B", "foot: chain 1", "limit"} <= legend(figure)
    for each in (figure, plot(replace(SCHEDULE, bound=300))):
        extent = each.legends[0].get_window_extent()
        assert extent.x1 <= each.get_figwidth() * each.dpi


def test_names_are_text_whatever_is_in_them(tmp_path: Path) -> None:
    """Dollars are no mathematics, and a line end does not break the headline."""
    problem = replace(PROBLEM, name="$\\frac$ 5$\nnext", time_unit="$")
    plot(replace(SCHEDULE, problem=problem), tmp_path / "x.svg")
    assert (tmp_path / "x.svg").stat().st_size


@pytest.mark.parametrize("form", ["svg", "png", "pdf"])
def test_the_same_schedule_is_the_same_file(form: str, tmp_path: Path) -> None:
    """No date, no random ids."""
    for name in ("a", "b"):
        plot(SCHEDULE, tmp_path / f"{name}.{form}")
    first = (tmp_path / f"a.{form}").read_bytes()
    assert first == (tmp_path / f"b.{form}").read_bytes()
    magic = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[form]
    assert first.startswith(magic)


def test_an_svg_is_well_formed_and_of_the_asked_width(tmp_path: Path) -> None:
    """In points."""
    plot(SCHEDULE, tmp_path / "x.svg", width_inches=10)
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    assert root.get("width") == "720pt"


def test_another_extension_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    """With the accepted ones."""
    with pytest.raises(ValueError, match=r"x\.gif: a picture is written as \.svg, \.png, \.pdf"):
        plot(SCHEDULE, tmp_path / "x.gif")
    with pytest.raises(ValueError, match=r"the folder .* does not exist"):
        plot(SCHEDULE, tmp_path / "no" / "x.svg")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else of the package needs it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'matplotlib>=3\.8'") as caught:
        plot(SCHEDULE)
    assert caught.value.name == "matplotlib"


def test_importing_plot_imports_no_matplotlib() -> None:
    """The command line stays quick."""
    code = (
        "import sys, bubbleproof.schedules.plot, bubbleproof.schedules.io;"
        "sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_drawing_leaves_no_global_state(tmp_path: Path) -> None:
    """No pyplot, no changed settings."""
    code = (
        "import sys, bubbleproof as bp;"
        "p = bp.Problem(devices=2, microbatches=2, cost={'F': 1, 'I': 1, 'W': 1});"
        "bp.plot(bp.families.zb_h1(p), sys.argv[1]);"
        "import matplotlib; assert matplotlib.rcParams['svg.hashsalt'] is None;"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "x.svg")]
    assert subprocess.run(arguments, check=False).returncode == 0


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=problems(), name=st.text(st.characters(codec="latin-1"), max_size=12))
def test_every_problem_can_be_drawn(problem: Problem, name: str, tmp_path: Path) -> None:
    """Any placement, cost and name that the font has; ops without time leave no rectangle."""
    memory = replace(problem.memory, unit=name)
    order = dependency_order(replace(problem, name=name, time_unit=name, memory=memory))
    figure = plot(order, tmp_path / "x.svg")
    ElementTree.parse(tmp_path / "x.svg")
    timeline = simulate(order)
    drawn = sum(
        start < end
        for starts, ends in zip(timeline.starts, timeline.ends, strict=True)
        for start, end in zip(starts, ends, strict=True)
    )
    assert sum(len(boxes(item)) for item in tiles(figure)[:1]) == drawn


def dependency_order(problem: Problem) -> Schedule:
    """Return a schedule in the order of the DAG."""
    rows: list[list[str]] = [[] for _ in range(problem.devices)]
    for op in nx.topological_sort(dependency_graph(problem)):
        rows[problem.placement.device_of_stage[op.stage]].append(str(op))
    return Schedule(problem=problem, rows=parse_rows(rows))


def test_shades_go_from_light_to_full_within_each_chain() -> None:
    """And labels stand out on every one of them."""
    chain_1 = Problem(devices=2, placement="bidirectional", microbatches=[2, 3], cost=COST)
    for kind in OpKind:
        lightness = [sum(shade(kind, part / 10)) for part in range(11)]
        assert lightness == sorted(lightness, reverse=True)
        for part in range(11):
            assert contrast(to_rgb(text_colour(shade(kind, part / 10))), shade(kind, part / 10)) > 3

    assert op_colour(chain_1, Op(2, OpKind.FORWARD, 2)) == shade(OpKind.FORWARD, 0.0)
    assert op_colour(chain_1, Op(2, OpKind.FORWARD, 4)) == shade(OpKind.FORWARD, 1.0)
    assert text_colour((1.0, 1.0, 1.0)) == INK


def contrast(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    """Return the contrast ratio of two colours (WCAG 2, with the simple gamma)."""
    weights = (0.2126, 0.7152, 0.0722)
    light, dark = sorted(
        (sum(w * c**2.2 for w, c in zip(weights, colour, strict=True)) for colour in (one, other)),
        reverse=True,
    )
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.slow
def test_a_large_schedule_is_drawn_in_seconds(tmp_path: Path) -> None:
    """12,288 ops, without labels."""
    problem = Problem(devices=16, microbatches=256, cost=COST)
    schedule = families.zb_h1(problem)
    before = time.perf_counter()
    figure = plot(schedule, tmp_path / "x.png")
    assert time.perf_counter() - before < 10
    assert len(figure.axes[0].texts) == 2 * 16
