"""What collective calls take: an array, a number, or a list, tuple or dict of such; PyTorch's or NumPy's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from geomx.errors import Unsupported

Shape = Any  # of a structure: None for one array, a list or a dict of shapes; with the type of a sequence


def taken_apart(arrays: Any) -> tuple[list[Any], Shape]:
    """The arrays of a structure, in order, and what it was."""
    if isinstance(arrays, Mapping):
        inner = [(key, taken_apart(arrays[key])) for key in arrays]
        return [each for _, (given, _) in inner for each in given], {key: shape for key, (_, shape) in inner}
    if isinstance(arrays, Sequence) and not isinstance(arrays, str | bytes):
        parts = [taken_apart(each) for each in arrays]
        kind = tuple if isinstance(arrays, tuple) else list
        return [each for given, _ in parts for each in given], (kind, [shape for _, shape in parts])
    return [arrays], None


def rebuilt(shape: Shape, arrays: Sequence[Any]) -> Any:
    """The structure with these arrays."""
    made, _ = _rebuilt(shape, list(arrays))
    return made


def _rebuilt(shape: Shape, left: list[Any]) -> tuple[Any, list[Any]]:
    if shape is None:
        return left[0], left[1:]
    if isinstance(shape, dict):
        found = {}
        for key, inner in shape.items():
            found[key], left = _rebuilt(inner, left)
        return found, left
    kind, inners = shape
    made = []
    for inner in inners:
        one, left = _rebuilt(inner, left)
        made.append(one)
    return kind(made), left


def as_tensor(array: Any) -> torch.Tensor:
    """An array as a tensor; a number as one of int64, float64 or bool. Raises `Unsupported` for what is no array."""
    if isinstance(array, torch.Tensor):
        return array.detach()
    if isinstance(array, np.ndarray | np.generic):
        try:
            return torch.from_numpy(np.array(array))
        except TypeError as error:
            raise Unsupported(f"a collective call of NumPy's {array.dtype}: {error}") from error
    if isinstance(array, bool | int | float | complex):
        dtype = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}[
            type(array)
        ]
        return torch.tensor(array, dtype=dtype)
    raise Unsupported(f"a collective call of {type(array).__name__}: it takes tensors, arrays and numbers")


def like(given: Any, made: torch.Tensor) -> Any:
    """A result as what was given: a tensor, NumPy's, or a number."""
    if isinstance(given, torch.Tensor):
        return made
    if isinstance(given, np.ndarray):
        return made.numpy()
    return made.item()
