"""The colours of a picture: one per op kind, one shade per microbatch."""

from typing import TypeAlias

from bubbleproof.schedules.ops import Op, OpKind
from bubbleproof.schedules.problem import Problem

Colour: TypeAlias = tuple[float, float, float]

INK = "#1f2733"
MUTED = "#6b7480"
PAPER = "#f3f4f6"
HATCH = "#d3d8de"
MEMORY = "#93a0b0"
LIMIT = "#c0262d"

KIND_NAMES = {
    OpKind.FORWARD: "F  forward",
    OpKind.BACKWARD_INPUT: "I  backward, input",
    OpKind.BACKWARD_WEIGHT: "W  backward, weights",
    OpKind.BACKWARD: "B  backward",
}

_BASE: dict[OpKind, Colour] = {
    OpKind.FORWARD: (0.13, 0.36, 0.68),
    OpKind.BACKWARD_INPUT: (0.87, 0.44, 0.05),
    OpKind.BACKWARD_WEIGHT: (0.16, 0.51, 0.34),
    OpKind.BACKWARD: (0.60, 0.19, 0.43),
}
_WHITE_AT_FIRST = 0.58
_INK_ABOVE = 0.22
"""The luminance at which white and ink stand out equally."""


def shade(kind: OpKind, part: float) -> Colour:
    """Return a kind's colour, from light at part 0 to full at part 1."""
    white = _WHITE_AT_FIRST * (1 - part)
    red, green, blue = _BASE[kind]
    return (_mixed(red, white), _mixed(green, white), _mixed(blue, white))


def op_colour(problem: Problem, op: Op) -> Colour:
    """Return the colour of an op; the microbatches of a chain go from light to full."""
    if not 0 <= op.microbatch < problem.total_microbatches:
        return shade(op.kind, 1.0)
    chain = problem.placement.chain_of_stage[op.stage]
    numbers = problem.microbatches_of(chain)
    part = (op.microbatch - numbers.start) / max(1, len(numbers) - 1)
    return shade(op.kind, min(1.0, max(0.0, part)))


def text_colour(colour: Colour) -> str:
    """Return white or ink, whichever stands out on a colour."""
    red, green, blue = (channel**2.2 for channel in colour)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return INK if luminance > _INK_ABOVE else "white"


def _mixed(channel: float, white: float) -> float:
    return channel * (1 - white) + white
