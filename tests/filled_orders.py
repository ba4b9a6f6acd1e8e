"""V problems, and what tests ask about orders whose W's fill the gaps."""

import bubbleproof as bp
from bubbleproof.schedules.ops import Op, OpKind, Row
from bubbleproof.schedules.schedule import Schedule


def v_problem(devices: int, microbatches: int, *, limit: int | None = None) -> bp.Problem:
    """Return a V of costs 10/12/8 a device with a transfer of 1; limit in half activations."""
    return bp.Problem(
        devices=devices,
        placement="v",
        microbatches=microbatches,
        cost={"F": 5, "I": 6, "W": 4, "transfer": 1},
        memory={"F": 2, "I": -1, "W": -1, "limit": 4 * devices if limit is None else limit},
        objective="span",
    )


def parts(rows: tuple[Row, ...]) -> list[list[object]]:
    """Return each device's blocks but W's."""
    return [
        [op for op in row if not (isinstance(op, Op) and op.kind is OpKind.BACKWARD_WEIGHT)]
        for row in rows
    ]


def span(problem: bp.Problem, rows: tuple[Row, ...]) -> int:
    """Return the span in ticks, once the verifier has accepted the order."""
    schedule = Schedule(problem, rows)
    assert bp.verify(schedule).valid
    return bp.simulate(schedule).objective_ticks
