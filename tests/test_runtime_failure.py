# pyright: reportUnknownMemberType=false
# Torch leaves start_processes untyped.
"""A process that fails ends the run with its error, and no other waits for it."""

import os
import subprocess
import sys
from pathlib import Path
from time import monotonic

import failing
import pytest
from failing import train_until_one_fails, what_a_peer_hears
from processes import world
from torch.multiprocessing.spawn import (
    ProcessExitedException,
    ProcessRaisedException,
    start_processes,  # pyright: ignore[reportUnknownVariableType]
)

ENDS_WITHIN_S = 30
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def test_the_others_name_the_error_of_the_process_that_failed_first() -> None:
    """Rank 0 stood at a message, which never came."""
    with world(2) as processes:
        heard, gone = processes.run(what_a_peer_hears, "raises")
    assert isinstance(gone, (EOFError, ConnectionResetError))
    assert heard == ("PeerError: rank 1: ArithmeticError: the layer has no answer (this is rank 0)")


def test_a_process_does_not_take_its_lost_connection_for_the_cause() -> None:
    """Rank 1 is killed and says nothing; rank 0 says that it is not the one to look at."""
    with world(2) as processes:
        heard, gone = processes.run(what_a_peer_hears, "dies")
    assert isinstance(gone, (EOFError, ConnectionResetError))
    assert heard == (
        "PeerError: a process ended without a word; the launcher knows which, and its status "
        "(this is rank 0)"
    )


@pytest.mark.slow
def test_a_module_that_raises_ends_all_processes_with_its_error(tmp_path: Path) -> None:
    """Whichever process is asked names the layer's error; rank 0 waits for no message of rank 1."""
    began = monotonic()
    with pytest.raises(ProcessRaisedException, match="the layer has no answer"):
        start_processes(
            train_until_one_fails,
            ("raises", str(tmp_path / "meeting")),
            nprocs=2,
            start_method="forkserver",
        )
    assert monotonic() - began < ENDS_WITHIN_S


@pytest.mark.slow
def test_a_process_that_dies_ends_the_others(tmp_path: Path) -> None:
    """Killed, it says nothing; the launcher tells which it was, or the other that it is gone."""
    began = monotonic()
    with pytest.raises(
        (ProcessExitedException, ProcessRaisedException),
        match=r"process 1 terminated with signal SIGKILL|Connection closed by peer",
    ):
        start_processes(
            train_until_one_fails,
            ("dies", str(tmp_path / "meeting")),
            nprocs=2,
            start_method="forkserver",
        )
    assert monotonic() - began < ENDS_WITHIN_S


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"),
    [("raises", "ArithmeticError: the layer has no answer"), ("dies", "Signal 9 (SIGKILL)")],
)
def test_torchrun_ends_the_run_and_names_the_rank(how: str, said: str) -> None:
    """Its last lines have the rank that failed first."""
    began = monotonic()
    ended = subprocess.run(
        [*TORCHRUN, failing.__file__, how],
        capture_output=True,
        text=True,
        timeout=4 * ENDS_WITHIN_S,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert monotonic() - began < ENDS_WITHIN_S
    assert ended.returncode == 1
    assert said in ended.stderr
