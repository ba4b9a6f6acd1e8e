"""Schedules run on torch.distributed.pipelining; the extra ``torch`` is needed.

``load`` makes a schedule and the modules of its stages ready on each process, and the steps of what
it returns train::

    runtime = load("schedule.json", stage_modules, loss_fn=loss_fn)
    losses = runtime.step(inputs, targets)
"""

# Where torch is missing or too old, this import says so before another fails.
from bubbleproof.runtime.version import INSTALLED

# isort: split
from bubbleproof.runtime.ahead import step_ahead
from bubbleproof.runtime.data_parallel import average_gradients
from bubbleproof.runtime.failure import PeerError
from bubbleproof.runtime.load import load
from bubbleproof.runtime.model import Model
from bubbleproof.runtime.optimizer import Outcome, PostValidatedOptimizer, Validation
from bubbleproof.runtime.rollback import Rollback
from bubbleproof.runtime.stage import Interval, Live, Recorder, Reducer, Stage
from bubbleproof.runtime.step import Runtime

__all__ = [
    "INSTALLED",
    "Interval",
    "Live",
    "Model",
    "Outcome",
    "PeerError",
    "PostValidatedOptimizer",
    "Recorder",
    "Reducer",
    "Rollback",
    "Runtime",
    "Stage",
    "Validation",
    "average_gradients",
    "load",
    "step_ahead",
]
