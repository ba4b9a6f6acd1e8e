"""Which torch is installed, and what its version can run. Imported before all else here."""

import re
from collections.abc import Sequence
from typing import TypeAlias

try:
    import torch
except ImportError as error:
    raise ImportError(
        'bubbleproof.runtime needs torch; pip install "bubbleproof[torch]" installs it'
    ) from error

Version: TypeAlias = tuple[int, int]
"""Major and minor."""

LEAST: Version = (2, 10)
"""The first version with REDUCE_GRAD, whose pipeline runtime also works on gloo."""

GLOO_WITH_SEVERAL_STAGES: Version = (2, 12)
"""The first version in which a device with several stages works on gloo."""


def require_version(text: str) -> Version:
    """Return major and minor of a version of torch that can run programs.

    Raises
    ------
    ImportError
        If it is older.
    """
    match = re.match(r"(\d+)\.(\d+)", text)
    version: Version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version < LEAST:
        raise ImportError(
            f"bubbleproof.runtime needs torch {dotted(LEAST)} or newer, and {text} is installed; "
            'pip install --upgrade "bubbleproof[torch]"'
        )
    return version


def require_backend(
    version: Version, backend: str, stages_of_device: Sequence[Sequence[int]]
) -> None:
    """Refuse a backend that this version of torch cannot run a placement on.

    Raises
    ------
    ValueError
        If a device has several stages and torch is too old for that on gloo.
    """
    if backend != "gloo" or version >= GLOO_WITH_SEVERAL_STAGES:
        return
    for device, stages in enumerate(stages_of_device):
        if len(stages) > 1:
            raise ValueError(
                f"device {device} has {len(stages)} stages, which needs torch "
                f"{dotted(GLOO_WITH_SEVERAL_STAGES)} or newer on gloo, and {dotted(version)} is "
                'installed; upgrade torch, use NCCL, or solve for placement "linear"'
            )


def dotted(version: Version) -> str:
    """Return ``2.10`` for (2, 10)."""
    return f"{version[0]}.{version[1]}"


INSTALLED = require_version(torch.__version__)
"""Major and minor of the torch that is installed."""
