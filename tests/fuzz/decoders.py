"""Feeds decoders with garbage, guided by what it reaches: every payload is refused, or gives finite numbers.

    pip install -e ".[fuzz]"
    python tests/fuzz/decoders.py -runs=1000000
    GEOMX_NATIVE=0 python tests/fuzz/decoders.py -runs=1000000

The input's first byte chooses a codec, the second a size, and the rest is the payload. Without a corpus it begins with
payloads that encoders wrote. Options are libFuzzer's.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1] / "codecs"))

with atheris.instrument_imports(include=["geomx"]):
    import torch
    from codec_cases import SPECS, drawn, made, slice_of

    from geomx.errors import ProtocolError
    from geomx.launch.environment import apply_switches

torch.set_num_threads(1)
apply_switches()
SIZES = (1, 63, 64, 200, 1025)
CODECS = [made(spec) for spec in SPECS]
SLICES = [slice_of(size) for size in SIZES]


def decode(data: bytes) -> None:
    """One input; raises where a promise is broken."""
    if len(data) < 3:
        return
    codec, slice_ = CODECS[data[0] % len(CODECS)], SLICES[data[1] % len(SLICES)]
    payload = torch.frombuffer(bytearray(data[2:]), dtype=torch.uint8)
    accepted = codec.accepts(slice_, payload.numel())
    try:
        values = codec.decode(slice_, payload)
    except ProtocolError:
        return
    assert accepted, "it decodes what it does not accept"
    assert values.numel() == slice_.elements
    assert bool(torch.isfinite(values).all())


def begin(folder: Path) -> None:
    """Payloads of every codec and size."""
    for a, (b, slice_) in itertools.product(range(len(SPECS)), enumerate(SLICES)):
        payload = made(SPECS[a]).encode(slice_, 1, drawn(slice_.elements), 1.0)
        (folder / f"{a}-{b}").write_bytes(bytes([a, b]) + bytes(payload.tolist()))


def main() -> None:
    """Run until libFuzzer ends."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = list(sys.argv)
        if all(argument.startswith("-") for argument in arguments[1:]):
            begin(Path(folder))
            arguments += [folder, "-max_len=6000", "-len_control=0"]
        atheris.Setup(arguments, decode)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
