"""The compiled kernels as a library: its functions, and whether it is the one of this source."""

from __future__ import annotations

import ctypes
import hashlib
import warnings
from pathlib import Path

LIBRARY = Path(__file__).with_name("kernels.so")
_POINTER, _LONG, _INT, _BITS, _FLOAT = (
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_float,
)
Signatures = dict[str, tuple[object, tuple[object, ...]]]  # of functions: what they give and take
_SIGNATURES: Signatures = {
    "largest_bits": (_BITS, (_POINTER, _LONG)),
    "take_blocks": (_BITS, (_POINTER, _POINTER, _LONG, _LONG, _INT, _BITS, _POINTER, _POINTER, _POINTER)),
    "give_blocks": (_INT, (_POINTER, _POINTER, _LONG, _LONG, _INT, _POINTER)),
    "take_thirds": (None, (_POINTER, _LONG, _LONG, _BITS, _POINTER, _POINTER)),
    "give_thirds": (_INT, (_POINTER, _POINTER, _LONG, _LONG, _POINTER)),
    "take_signs": (_BITS, (_POINTER, _POINTER, _LONG, _BITS, _POINTER, _POINTER)),
    "give_signs": (_INT, (_POINTER, _POINTER, _LONG, _POINTER)),
    "take_two_bits": (_BITS, (_POINTER, _POINTER, _LONG, _FLOAT, _POINTER)),
    "give_two_bits": (_INT, (_POINTER, _LONG, _FLOAT, _POINTER)),
    "take_bf16": (_BITS, (_POINTER, _POINTER, _LONG, _POINTER)),
    "give_bf16": (_BITS, (_POINTER, _LONG, _POINTER)),
    "has_fp16": (_INT, ()),
    "take_fp16": (None, (_POINTER, _LONG, _FLOAT, _FLOAT, _POINTER)),
    "give_fp16": (_BITS, (_POINTER, _LONG, _FLOAT, _POINTER)),
    "kth_largest": (_FLOAT, (_POINTER, _LONG, _LONG, _LONG, _LONG)),
    "at_least": (_LONG, (_POINTER, _LONG, _FLOAT, _POINTER, _LONG)),
    "add_to": (_BITS, (_POINTER, _POINTER, _LONG, _POINTER)),
    "scale_to": (_BITS, (_POINTER, _LONG, _FLOAT, _POINTER)),
    "sum_to": (_BITS, (_POINTER, _POINTER, _LONG, _POINTER)),
    "sample_sums": (None, (_POINTER, _POINTER, _POINTER, _FLOAT, _LONG, _LONG, _LONG, _POINTER)),
    "add_at_least": (
        _LONG,
        (_POINTER, _POINTER, _POINTER, _FLOAT, _LONG, _FLOAT, _POINTER, _LONG, _POINTER),
    ),
    "gather": (None, (_POINTER, _POINTER, _LONG, _POINTER)),
    "scatter": (None, (_POINTER, _POINTER, _LONG, _POINTER)),
    "spread": (None, (_POINTER, _LONG, _POINTER, _LONG, _POINTER)),
    "unary_bits": (None, (_POINTER, _LONG, _INT, _INT, _POINTER)),
    "pack_narrow": (_LONG, (_POINTER, _LONG, _POINTER)),
    "unpack_narrow": (_INT, (_POINTER, _LONG, _LONG, _POINTER)),
    "pack_rice": (None, (_POINTER, _LONG, _INT, _POINTER, _POINTER)),
    "unpack_rice": (_INT, (_POINTER, _POINTER, _LONG, _LONG, _INT, _LONG, _POINTER)),
}


def load(path: Path = LIBRARY, signatures: Signatures = _SIGNATURES) -> ctypes.CDLL | None:
    """None where the package was built without, for another system, or from another source."""
    if not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
        library.source.restype = ctypes.c_uint64
        for name, (result, arguments) in signatures.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):  # built for another system
        return None
    sources = path.with_suffix("")  # an installed package may come without them
    if sources.exists() and library.source() != digest_of(sources):
        warnings.warn(f"{path} is of other {sources.name}, and not used: install geomx again", stacklevel=2)
        return None
    return library


def digest_of(sources: Path) -> int:
    """What the build tells the kernels of their own sources, 64 bits; see `hatch_build.py`."""
    source = b"".join(file.read_bytes() for file in sorted(sources.iterdir()))
    return int.from_bytes(hashlib.blake2b(source, digest_size=8).digest())
