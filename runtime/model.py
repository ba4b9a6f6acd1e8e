"""What a user gives to profile or to train: stages, a loss and batches, named PATH:callable.

That is a Python file (``train/model.py:build``) or an importable module
(``train.model:build``), and in it what makes a ``Model`` of a problem::

    def build(problem: Problem) -> Model:
        return Model(stage=make_stage, batch=make_batch, loss_fn=loss_fn)
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import torch
from torch.nn import Module, Parameter

from bubbleproof.runtime.executor import Loss
from bubbleproof.runtime.microbatches import Inputs, Targets
from bubbleproof.schedules.problem import Problem

Builder: TypeAlias = Callable[[Problem], object]


def plain_sgd(parameters: Iterable[Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of a model that names none."""
    return torch.optim.SGD(parameters, lr=1e-3)


@dataclass(frozen=True, slots=True)
class Model:
    """What is trained, in parts that one process at a time can make.

    Parameters
    ----------
    stage
        Makes the module of a stage; on a placement with copies of weights it is asked for the
        original of each copy. ``get_stage_module`` of torch's ``pipeline()`` is one, too.
    batch
        Makes the inputs and targets of a step, numbered from 0: all microbatches in one tensor,
        along dimension 0, or a list with one entry for each. All processes make the same.
    loss_fn
        Makes a scalar of the last stage's output and the targets of a microbatch.
    optimizer
        Makes the optimizer of a device's parameters.
    """

    stage: Callable[[int], Module]
    batch: Callable[[int], tuple[Inputs, Targets]]
    loss_fn: Loss
    optimizer: Callable[[Iterable[Parameter]], torch.optim.Optimizer] = plain_sgd


def find_builder(reference: str) -> Builder:
    """Return what ``PATH:callable`` names.

    Raises
    ------
    ValueError
        If it is not of that form, there is no such file or module, or nothing callable of that
        name in it.
    ImportError
        If what is in the file raises, from that.
    """
    place, _, name = reference.rpartition(":")
    if not place or not name.isidentifier():
        raise ValueError(
            f"model: {reference!a} is no PATH:callable; write a Python file or module, and what "
            "in it makes the model, as model.py:build"
        )
    module = _module(place)
    builder: object = getattr(module, name, None)
    if not callable(builder):
        functions = sorted(
            each
            for each, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        )
        raise ValueError(
            f"model: {place} has no callable {name}; it has "
            f"{', '.join(functions[:6]) or 'none of its own'}"
        )
    return builder


def require_model(made: object, reference: str) -> Model:
    """Return what a user's function made, if it is a model.

    Raises
    ------
    ValueError
        If it is something else.
    """
    if not isinstance(made, Model):
        raise ValueError(
            f"model: {reference} returned a {type(made).__name__}; it must return a "
            "bubbleproof.runtime.Model(stage=..., batch=..., loss_fn=...)"
        )
    return made


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise ValueError(f"model: there is no such file: {place} ({path.resolve()})")
        # A module beside the file is importable from it, as where Python runs the file itself.
        sys.path.insert(0, str(path.resolve().parent))
        specification = importlib.util.spec_from_file_location(path.stem, path)
        if specification is None or specification.loader is None:
            raise ValueError(f"model: {place} cannot be imported; give a Python file")
        module = importlib.util.module_from_spec(specification)
        sys.modules[path.stem] = module
        try:
            specification.loader.exec_module(module)
        except Exception as error:
            raise ImportError(f"{place} cannot be imported: {error}", name=place) from error
        return module
    sys.path.insert(0, "")
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"model: there is no module {place}; give one that can be imported from here, or a "
            "file, as model.py:build"
        ) from None
