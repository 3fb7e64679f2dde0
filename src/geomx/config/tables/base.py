"""The root of all tables."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """The root of all tables: frozen, without unknown keys, and `3` is no text, `"3"` no number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
