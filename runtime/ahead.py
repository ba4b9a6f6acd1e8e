"""Steps that begin before the optimizer's last step is known to be right.

With a barrier before each step the devices of a pipeline end an iteration together and begin the
next one together, and a schedule costs its makespan. A device that goes on at once costs only its
span. So forwards run on parameters as a post-validated step has left them, and before the first
backward, which comes a pipeline's depth later, each device hears whether all of them were right.

Where they were not, which all devices hear alike, the batch is run to its end all the same, since
its messages are on their way, what it made is dropped, the step is put right, and the batch runs
again: a wrong step costs an iteration. Where a larger part of the steps is wrong than an iteration
is shorter by going on at once, validate before the batch instead.
"""

from torch import Tensor

from bubbleproof.runtime.microbatches import Inputs, Targets
from bubbleproof.runtime.optimizer import PostValidatedOptimizer
from bubbleproof.runtime.step import Runtime


def step_ahead(
    runtime: Runtime,
    optimizer: PostValidatedOptimizer,
    inputs: Inputs | None = None,
    targets: Targets | None = None,
    **keywords: object,
) -> list[Tensor]:
    """Run a batch that does not wait for the optimizer's last step to be validated.

    When it returns, the step before is validated, the parameters are right, and the gradients are
    those of this batch alone: none are added up over batches. A module that counts its calls or
    draws random numbers does so twice where the batch runs twice.

    Parameters
    ----------
    runtime
        What runs the batch.
    optimizer
        That of the parameters of this device, whose ``step`` follows the batch.
    inputs, targets, keywords
        As ``runtime.step`` takes them.

    Returns
    -------
    list of Tensor
        The losses, as ``runtime.step`` returns them.
    """

    def before_backward() -> None:
        # What the step before kept is let go before there are new gradients beside it.
        if optimizer.stands():
            optimizer.validate()

    # The graph of the forwards may not see the parameters change, so a wrong step waits.
    optimizer.set_gradients_aside()
    for stage in runtime.stages.values():
        stage.before_backward = before_backward
    try:
        losses = runtime.step(inputs, targets, **keywords)
    finally:
        for stage in runtime.stages.values():
            stage.before_backward = None
    if optimizer.stands():
        optimizer.validate()
        return losses
    optimizer.set_gradients_aside()
    optimizer.validate()
    return runtime.step(inputs, targets, **keywords)
