"""Processes that form one process group on gloo and run one function after another together."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Concatenate, ParamSpec, TypeVar

import torch
import torch.distributed as dist

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE_S = 60


@dataclass(frozen=True, slots=True)
class World:
    """The processes, by rank, with the line to each."""

    processes: tuple[BaseProcess, ...]
    lines: tuple[Connection, ...]

    def run(
        self, function: Callable[Concatenate[int, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> list[T | Exception]:
        """Run a function with rank and arguments on all, and return what each returned or raised.

        Raises
        ------
        TimeoutError
            If a process does not answer.
        """
        for line in self.lines:
            line.send((function, args, kwargs))
        answers: list[T | Exception] = []
        for rank, line in enumerate(self.lines):
            if not line.poll(PATIENCE_S):
                raise TimeoutError(f"rank {rank} does not answer")
            try:
                answers.append(line.recv())
            except EOFError as gone:
                answers.append(gone)
        return answers

    def results(
        self, function: Callable[Concatenate[int, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> list[T]:
        """Return what each process returned; the first exception of one is raised here."""
        results: list[T] = []
        for answer in self.run(function, *args, **kwargs):
            if isinstance(answer, Exception):
                raise answer
            results.append(answer)
        return results


def forking() -> ForkServerContext:
    """Return a context in which torch is imported once, by what processes are forked from."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["bubbleproof.runtime"])
    return context


@contextmanager
def world(size: int) -> Generator[World]:
    """Start processes, and end them."""
    context = forking()
    with TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        pipes = [context.Pipe() for _ in range(size)]
        processes = [
            context.Process(target=_serve, args=(rank, size, meeting, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        for _, theirs in pipes:
            theirs.close()
        try:
            yield World(tuple(processes), tuple(ours for ours, _ in pipes))
        finally:
            for ours, _ in pipes:
                ours.close()
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()
                    process.join()


@contextmanager
def worlds() -> Generator[Callable[[int], World]]:
    """Start processes of each size that is asked for once, and end them all."""
    with ExitStack() as started:

        @cache
        def start(size: int) -> World:
            return started.enter_context(world(size))

        yield start


def join_group(rank: int, size: int, meeting: str, patience_s: float = PATIENCE_S) -> None:
    """Make this process one of a group on the loopback interface."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=patience_s),
    )


def _serve(rank: int, size: int, meeting: str, line: Connection) -> None:
    join_group(rank, size, meeting)
    while True:
        try:
            function, args, kwargs = line.recv()
        except EOFError:
            break
        try:
            line.send(function(rank, *args, **kwargs))
        except Exception as error:
            line.send(error)
    dist.destroy_process_group()
