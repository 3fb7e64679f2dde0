"""Presets: settings that are known to go together, under one name. What a description says itself counts first.

`slow-link` is what `python benchmarks/virtual.py adam` found to cost little at a few thousandths of the bytes; see
docs/settings.md. The others are GeoMX's own: Bi-Sparse and MPQ with its values (float32) and its momentum (0.9, so
that the optimizer has none), both ways. Down it sends the non-zeros of the sum, which of D parties are up to D times as
many.
"""

from __future__ import annotations

from collections.abc import Mapping

from geomx.config.reading.document import Document

SPARSE_RATIO = 0.01  # GeoMX's, up

PRESETS: Mapping[str, Mapping[str, str]] = {
    "slow-link": {
        "sync.policy": "diloco every=5 lr=1.5 momentum=0",
        "wan.codec_up": "topk ratio=0.015 values=int4 decay=0.95",
        "wan.codec_down": "topk ratio=0.028 values=int4",
    },
    "geomx-bisparse": {
        "optimizer.place": "workers",
        "wan.codec_up": f"bisparse ratio={SPARSE_RATIO} momentum=0.9 values=float32",
        "wan.codec_down": "bisparse ratio={down} values=float32",
    },
    "geomx-fp16": {
        "lan.codec_up": "fp16",
        "wan.codec_up": "fp16",
        "wan.codec_down": "fp16",
    },
    "geomx-mpq": {
        "optimizer.place": "workers",
        "lan.codec_up": "tiny_fp16",
        "lan.codec_down": "tiny_fp16",
        "wan.codec_up": f"mpq ratio={SPARSE_RATIO} momentum=0.9 values=float32",
        "wan.codec_down": "mpq ratio={down} values=float32",
    },
}


def apply_preset(document: Document) -> None:
    """Give a document the keys of its `run.preset` that it has not itself. An unknown preset is left to validation."""
    run = document.data.get("run")
    name = run.get("preset") if isinstance(run, dict) else None
    if not isinstance(run, dict) or not isinstance(name, str) or name not in PRESETS:
        return
    del run["preset"]  # what it stands for is there now
    parties = document.data.get("party")
    down = min(1.0, SPARSE_RATIO * (len(parties) if isinstance(parties, list) else 1))
    for key, value in PRESETS[name].items():
        table, _, inner = key.partition(".")
        keys = document.data.setdefault(table, {})
        if isinstance(keys, dict) and inner not in keys:
            keys[inner] = value.format(down=f"{down:g}")
            document.places[table, inner] = f'from run.preset = "{name}"'
