"""A step's batch as microbatches: split here, or given one by one."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from torch import Tensor

from bubbleproof.runtime.bytes import tensors_of

Inputs: TypeAlias = Tensor | tuple[Tensor, ...] | Sequence[Tensor | tuple[Tensor, ...]]
"""A batch: one tensor or a tuple of them, split along dimension 0; or a list of microbatches."""

Targets: TypeAlias = Tensor | Sequence[object]
"""A tensor, split along dimension 0; or a list with what the loss takes of each microbatch."""


def arguments_of(inputs: Inputs, number: int) -> list[tuple[Tensor, ...]]:
    """Return for each microbatch the positional arguments of a chain's first stage.

    Raises
    ------
    ValueError
        If the batch cannot be split evenly, or it is another number of microbatches, or these are
        no tensors, or not all of one shape, which torch's receive buffers need.
    """
    if isinstance(inputs, Tensor):
        return [(part,) for part in _split(inputs, number, "inputs")]
    if isinstance(inputs, tuple):
        parts = [
            _split(tensor, number, f"inputs[{index}]")
            for index, tensor in enumerate(inputs)
            if isinstance(tensor, Tensor)
        ]
        if len(parts) != len(inputs):
            raise ValueError("inputs: a tuple holds the tensors of one batch; use a list for parts")
        return list(zip(*parts, strict=True))
    given: list[tuple[Tensor, ...]] = []
    for index, each in enumerate(inputs):
        tensors = tensors_of(each)
        if tensors is None:
            raise ValueError(
                f"inputs[{index}]: a {type(each).__name__}; a microbatch is a tensor or a tuple of "
                "tensors"
            )
        given.append(tensors)
    _require_number(len(given), number, "inputs")
    first = [(tensor.shape, tensor.dtype) for tensor in given[0]]
    for index, each in enumerate(given):
        if [(tensor.shape, tensor.dtype) for tensor in each] != first:
            raise ValueError(
                f"inputs[{index}]: shapes {[list(t.shape) for t in each]} differ from those of "
                f"microbatch 0, {[list(shape) for shape, _ in first]}; pad all to one shape"
            )
    return given


def targets_of(targets: Targets, number: int) -> list[object]:
    """Return for each microbatch what the loss compares the output with.

    Raises
    ------
    ValueError
        If the batch cannot be split evenly, or it is another number of microbatches.
    """
    if isinstance(targets, Tensor):
        return [*_split(targets, number, "targets")]
    _require_number(len(targets), number, "targets")
    return list(targets)


def keywords_of(keywords: Mapping[str, object], number: int) -> list[dict[str, object]]:
    """Return for each microbatch the keyword arguments of stages; only tensors are split.

    Raises
    ------
    ValueError
        If a tensor cannot be split evenly.
    """
    split: list[dict[str, object]] = [dict(keywords) for _ in range(number)]
    for name, value in keywords.items():
        if isinstance(value, Tensor):
            for each, part in zip(split, _split(value, number, name), strict=True):
                each[name] = part
    return split


def _split(batch: Tensor, number: int, where: str) -> tuple[Tensor, ...]:
    if batch.dim() == 0 or batch.shape[0] % number or not batch.shape[0]:
        rows = batch.shape[0] if batch.dim() else 0
        raise ValueError(
            f"{where}: {rows} rows cannot be split into {number} equal microbatches; "
            f"give a multiple of {number}"
        )
    return batch.chunk(number)


def _require_number(given: int, number: int, where: str) -> None:
    if given != number:
        raise ValueError(f"{where}: {given} microbatches for a schedule of {number}")
