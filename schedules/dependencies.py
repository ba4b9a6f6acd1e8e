"""What an op waits for and what it hands on.

F(s, m) waits for F(previous stage of its chain, m). I and B wait for F(s, m) and for the I or B of
the next stage; W(s, m) waits for I(s, m). A B hands on its gradient at its end. Between stages on
different devices comes a transfer's time.
"""

from bubbleproof.schedules.ops import Op, OpKind
from bubbleproof.schedules.problem import Problem


def output(op: Op) -> Op:
    """Return the name of what an op hands on: a B hands on the same gradient as an I."""
    if op.kind is OpKind.BACKWARD:
        return Op(op.stage, OpKind.BACKWARD_INPUT, op.microbatch)
    return op


def inputs(problem: Problem, op: Op) -> list[tuple[Op, int]]:
    """Return the outputs that an op waits for, each with its lag in ticks."""
    stage, microbatch = op.stage, op.microbatch
    match op.kind:
        case OpKind.FORWARD:
            previous = problem.placement.previous[stage]
            if previous is None:
                return []
            return [(Op(previous, OpKind.FORWARD, microbatch), problem.lag(previous, stage))]
        case OpKind.BACKWARD_WEIGHT:
            return [(Op(stage, OpKind.BACKWARD_INPUT, microbatch), 0)]
        case OpKind.BACKWARD_INPUT | OpKind.BACKWARD:
            own = (Op(stage, OpKind.FORWARD, microbatch), 0)
            following = problem.placement.following[stage]
            if following is None:
                return [own]
            gradient = Op(following, OpKind.BACKWARD_INPUT, microbatch)
            return [own, (gradient, problem.lag(following, stage))]
