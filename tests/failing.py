"""Processes of a pipeline of which one fails: in its module, or without a word."""

import os
import signal
import sys

import torch.distributed as dist
from processes import join_group
from torch import Tensor, nn
from training import batch, loss_of, modules_of

import bubbleproof as bp
from bubbleproof.runtime import load

PROBLEM = bp.Problem(devices=2, microbatches=4, cost={"F": 1, "I": 1, "W": 1})
FAILING_RANK = 1


class Failing(nn.Module):
    """Fails in the second step."""

    def __init__(self, module: nn.Module, how: str) -> None:
        super().__init__()
        self.module = module
        self.how = how
        self.fails = False

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute, raise, or die."""
        if self.fails and self.how == "raises":
            raise ArithmeticError("the layer has no answer")
        if self.fails:
            os.kill(os.getpid(), signal.SIGKILL)
        output: Tensor = self.module(hidden)
        return output


def train_until_one_fails(rank: int, how: str, meeting: str) -> None:
    """Join a group, run a step, and one in which a rank fails."""
    join_group(rank, PROBLEM.devices, meeting)
    fail_in_the_second_step(rank, how)


def fail_in_the_second_step(rank: int, how: str) -> None:
    """Run a step, and one in which a rank fails."""
    modules = {
        stage: Failing(module, how) for stage, module in modules_of(PROBLEM.placement, rank).items()
    }
    runtime = load(bp.families.zb_h1(PROBLEM), modules, loss_fn=loss_of)
    for step in range(2):
        for module in modules.values():
            module.fails = step == 1 and rank == FAILING_RANK
        runtime.step(*batch(step, PROBLEM.total_microbatches))


def what_a_peer_hears(rank: int, how: str) -> str:
    """Fail, and leave on the rank that does so first; return the error on the other."""
    try:
        fail_in_the_second_step(rank, how)
    except RuntimeError as error:
        if rank == FAILING_RANK:
            os._exit(1)
        return f"{type(error).__name__}: {error}"
    return "nothing"


if __name__ == "__main__":
    dist.init_process_group("gloo")
    fail_in_the_second_step(dist.get_rank(), sys.argv[1])
