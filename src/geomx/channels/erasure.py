"""The code behind parity pieces: Reed-Solomon over GF(2^8), by `zfec`, an optional dependency (`geomx[fec]`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec


def is_installed() -> bool:
    """Whether `ReedSolomon` can work."""
    return find_spec("zfec") is not None


class ReedSolomon:
    """See `geomx.wire.flow.parity.ErasureCode`."""

    def encode(self, symbols: Sequence[bytes], parities: int) -> list[bytes]:
        import zfec  # noqa: PLC0415 (optional)

        count = len(symbols)
        made: list[bytes] = zfec.Encoder(count, count + parities).encode(
            tuple(symbols), tuple(range(count, count + parities))
        )
        return made

    def decode(self, known: Mapping[int, bytes], count: int, parities: int) -> list[bytes]:
        import zfec  # noqa: PLC0415 (optional)

        rebuilt: list[bytes] = zfec.Decoder(count, count + parities).decode(
            tuple(known.values()), tuple(known)
        )
        return rebuilt
