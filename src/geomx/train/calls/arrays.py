"""What collective calls take: an array, a number, or a list, tuple or dict of such; PyTorch's or NumPy's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from geomx.errors import Unsupported

Shape = Any  # of a structure: None for one array, a list or a dict of shapes; with the type of a sequence


def taken_apart(arrays: Any) -> tuple[list[Any], Shape]:
    """The arrays of a structure, in order, and what it was."""
    found: list[Any] = []
    try:
        return found, _taken_apart(arrays, found)
    except RecursionError:
        raise Unsupported("a collective call of a structure that holds itself, or is very deep") from None


def _taken_apart(arrays: Any, found: list[Any]) -> Shape:
    if isinstance(arrays, Mapping):
        return {key: _taken_apart(arrays[key], found) for key in arrays}
    if isinstance(arrays, Sequence) and not isinstance(arrays, str | bytes):
        kind = type(arrays) if isinstance(arrays, tuple) else list
        return kind, [_taken_apart(each, found) for each in arrays]
    found.append(arrays)
    return None


def rebuilt(shape: Shape, arrays: Iterable[Any]) -> Any:
    """The structure with these arrays."""
    return _rebuilt(shape, iter(arrays))


def _rebuilt(shape: Shape, left: Iterator[Any]) -> Any:
    if shape is None:
        return next(left)
    if isinstance(shape, dict):
        return {key: _rebuilt(inner, left) for key, inner in shape.items()}
    kind, inners = shape
    made = [_rebuilt(inner, left) for inner in inners]
    return kind(*made) if hasattr(kind, "_fields") else kind(made)


def described(shape: Shape, leaves: Iterable[str]) -> str:
    """A structure in words, of what is told of each array."""
    return _described(shape, iter(leaves))


def _described(shape: Shape, left: Iterator[str]) -> str:
    if shape is None:
        return next(left)
    if isinstance(shape, dict):
        return "{" + ", ".join(f"{key!r}: {_described(inner, left)}" for key, inner in shape.items()) + "}"
    return "[" + ", ".join(_described(inner, left) for inner in shape[1]) + "]"


def as_tensor(array: Any) -> torch.Tensor:
    """An array as a tensor; a number as one of int64, float64, complex128 or bool. Raises `Unsupported` for others."""
    if isinstance(array, torch.Tensor):
        return array.detach().resolve_conj().resolve_neg()
    try:
        if isinstance(array, np.ndarray | np.generic):
            return torch.from_numpy(np.array(array))
        for kind, dtype in _NUMBERS:
            if isinstance(array, kind):
                return torch.tensor(kind(array), dtype=dtype)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        what = f"NumPy's {array.dtype}" if hasattr(array, "dtype") else f"{array!r}"
        raise Unsupported(f"a collective call of {what[:80]}: {error}") from error
    raise Unsupported(
        f"a collective call of {type(array).__name__}: it takes tensors, arrays and numbers, on every worker; run.map "
        "takes texts and None, and may be given something else by each"
    )


def like(given: Any, made: torch.Tensor) -> Any:
    """A result as what was given: a tensor, NumPy's, or a number."""
    if isinstance(given, torch.Tensor):
        return made
    if isinstance(given, np.ndarray):
        return made.numpy()
    return made.numpy()[()] if isinstance(given, np.generic) else made.item()


def plain(value: Any) -> Any:
    """One number of NumPy's or torch's, as Python's. Raises `TypeError` for what is none."""
    if isinstance(value, np.generic) or (isinstance(value, torch.Tensor | np.ndarray) and not value.ndim):
        return value.item()
    raise TypeError(f"a {type(value).__name__}")


_NUMBERS: tuple[tuple[Any, torch.dtype], ...] = (
    (bool, torch.bool),
    (int, torch.int64),
    (float, torch.float64),
    (complex, torch.complex128),
)
