"""What travels over an edge: one file a codec, `contract.py` first, then `error_feedback.py`.

`spec.py` makes the codec that a description names. `pack/` has what payloads are made of: numbers, indices, bits, and
the compiled kernels. `rows.py` is for sparse gradients, whatever the codec; `blocks.py` and `returning.py` are for
channels that lose data. `measure.py` has arithmetic that says how large its results are. From outside: the contract,
`spec`, `returning`, `measure`, `rows`, `pack.noise.RngKey`, and the registry here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from geomx.registry import Registry

if TYPE_CHECKING:
    from geomx.codecs.contract import Codec

codecs: Registry[type[Codec]] = Registry(
    "codec",
    {
        "dense": "geomx.codecs.dense:Dense",
        "fp16": "geomx.codecs.whole:FP16",
        "bf16": "geomx.codecs.whole:BF16",
        "int8": "geomx.codecs.whole:Int8",
        "int4": "geomx.codecs.whole:Int4",
        "sign": "geomx.codecs.whole:SignBit",
        "two_bit": "geomx.codecs.two_bit:TwoBit",
        "topk": "geomx.codecs.topk:TopK",
        "bisparse": "geomx.codecs.bisparse:BiSparse",
        "mpq": "geomx.codecs.mpq:MPQ",
        "tiny_fp16": "geomx.codecs.mpq:TinyFP16",
    },
)
