"""Close the gap between a bound and a schedule by asking whether times in between can be kept.

What takes too many states for now is asked again later with more of them. The best question is the
one just below the best schedule: a no is a proof that it is the best of all. While that takes too
many states, shorter times are asked, where more states are dropped.
"""

from collections.abc import Callable, Iterator

from bubbleproof.schedules.problem import Problem
from bubbleproof.schedules.schedule import Bound
from bubbleproof.solver.background import Stop
from bubbleproof.solver.incumbent import Incumbent
from bubbleproof.solver.retime import objective_of
from bubbleproof.solver.search import Found
from bubbleproof.solver.state_problem import has_states
from bubbleproof.solver.states import States

SOURCE = "search among states"

FEW_STATES = 400_000
"""What is searched in about two seconds."""

MOST_STATES = 100_000_000

_MOST_OPS = 4_000
_FIRST_STATES = 5_000
_MORE = 4
_PRICED_STATES = _FIRST_STATES * _MORE**2
"""With so many, prices are worth their while."""

_PRICES_S = 10.0


def decidable(problem: Problem) -> bool:
    """Whether a problem can be searched like this, and is small enough for it."""
    ops = sum(len(problem.microbatches_of_stage(stage)) for stage in range(problem.stages))
    return 2 * ops <= _MOST_OPS and has_states(problem)


def decided(
    problem: Problem,
    found: Incumbent,
    stopped: Callable[[], bool],
    *,
    most: int,
    stop: Stop | None = None,
) -> Iterator[Bound | Found]:
    """Yield better bounds and schedules, in rounds with more and more states.

    Parameters
    ----------
    problem
        A feasible problem that is ``decidable``.
    found
        The best schedule and bound so far; also what others find meanwhile.
    stopped
        Whether to give up.
    most
        From how many states steps are taken for one question.
    stop
        Ends the search for prices from another thread; there is none without it.
    """
    states = States(problem)
    least, effort = 0, _FIRST_STATES
    while effort <= most and not stopped():
        least = max(least, -(-found.bound // states.unit))
        if stop is not None and effort == _PRICED_STATES:
            states.price(least, time_limit_s=_PRICES_S, stop=stop)
        undecided = found.objective // states.unit
        asked, share, step = undecided - 1, effort, 0
        while least <= asked < undecided and not stopped():
            answer = states.within(asked, effort=share, stopped=stopped)
            if answer.rows is not None and answer.starts is not None:
                yield answer.rows, answer.starts, SOURCE
                undecided = objective_of(problem, answer.rows, answer.starts) // states.unit
                step = 2 * step or 1
            elif answer.complete:
                least, step = asked + 1, 1
                yield _bound(problem, least * states.unit)
            else:
                undecided, share = asked, share // 2
            # Where nothing was left open, the best question comes again, with longer and longer
            # steps down while it has better schedules for an answer.
            middle = (least + undecided) // 2
            asked = middle if share < effort else max(least, undecided - step)
        effort *= _MORE


def _bound(problem: Problem, ticks: int) -> Bound:
    time = problem.time(ticks)
    text = f"all states of schedules were searched; none ends below {time} (the solver's word)"
    return Bound("states", ticks, text)
