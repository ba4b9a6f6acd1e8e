# pyright: reportPrivateUsage=false
# The store that the processes met in has no public name.
"""Failures: the error of the process that failed first is told to all, the launcher ends them.

A process in which a step raises says so in the store that the processes met in, and leaves. Those
that wait for its messages then find their connections closed (gloo), and name its error as the one
that led to theirs, or that a process ended without a word, as one does that is killed; with NCCL
they wait until the launcher ends them. ``torchrun`` and
``torch.multiprocessing.spawn`` end all processes as soon as one fails. A process that catches the
error and stays keeps the others waiting for the ``timeout`` of ``init_process_group``.
"""

from torch import distributed as dist

_KEY = "bubbleproof/failed"

_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
"""What gloo says where the process at the other end is gone."""


class PeerError(RuntimeError):
    """A process failed since another one did; the message has the error of the first."""


def root_of(error: BaseException) -> BaseException:
    """Return the error that the others were raised from."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def first_failure(error: Exception) -> str | None:
    """Tell the other processes of an error here; return what one of them said before.

    Returns
    -------
    str or None
        Rank and error of the process that failed first, or that one ended without a word; None
        where it is this one, or where the process that held the store is gone.
    """
    root = root_of(error)
    own = f"rank {dist.get_rank()}: {type(root).__name__}: {root}"
    try:
        store = dist.distributed_c10d._get_default_store()
        # A connection is lost since another process failed, which had its say before it went.
        if any(words in str(root) for words in _LOST) and not store.check([_KEY]):
            return "a process ended without a word; the launcher knows which, and its status"
        first = store.compare_set(_KEY, "", own)
    except dist.DistError:
        return None
    return None if first.decode() == own else first.decode()
