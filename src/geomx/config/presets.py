"""Presets: settings that are known to go together, under one name. What a description says itself counts first."""

from __future__ import annotations

from geomx.config.document import Document

_SLOW_LINK = {
    "sync.policy": "hfa k1=10 k2=1",
    "wan.codec_up": "topk ratio=0.03 values=int4 decay=0.95",
    "wan.codec_down": "topk ratio=0.06 values=int4",
}

PRESETS: dict[str, dict[str, str]] = {
    "slow-link": _SLOW_LINK,
}


def apply_preset(document: Document) -> None:
    """Give a document the keys of its `run.preset` that it has not itself. An unknown preset is left to validation."""
    run = document.data.get("run")
    name = run.get("preset") if isinstance(run, dict) else None
    for key, value in PRESETS.get(name, {}).items() if isinstance(name, str) else ():
        table, _, inner = key.partition(".")
        keys = document.data.setdefault(table, {})
        if isinstance(keys, dict) and inner not in keys:
            keys[inner] = value
            document.places[table, inner] = f'from run.preset = "{name}"'
