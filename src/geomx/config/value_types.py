"""The kinds of values that TOML has no type for: names, addresses, choices that a user may add to, paths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from geomx.channels import channels
from geomx.codecs import codecs
from geomx.optim import compensations
from geomx.sync import policies

_PORT = r"(6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[1-5]\d{4}|[1-9]\d{0,3})"
_HOST = r"([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.%]+\])"
_SETTINGS = r"( [a-z_0-9]+=[A-Za-z0-9_.+-]+)*"
_CLASS = r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*"


@dataclass(frozen=True, slots=True)
class TextForm:
    """What a text must look like. `names`: the texts that are most likely meant where it does not."""

    words: str
    pattern: str
    names: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def check(self, text: str) -> str:
        """Give the text back; raises ValueError where it does not match the whole pattern."""
        if re.fullmatch(self.pattern, text, re.ASCII) is None:
            raise ValueError(f"must be {self.words}")
        return text


def _choice(names: tuple[str, ...], more: str, more_words: str, may_be_empty: bool = False) -> TextForm:
    quoted = ", ".join(f'"{name}"' for name in names)
    words = f'{quoted}, or your own as "module:Class"{more_words}'
    pattern = f"({'|'.join(names)}|{_CLASS}){more}"
    return TextForm(words, f"({pattern})?" if may_be_empty else pattern, names)


def _absolute(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str) and value:
        folder: Path = (info.context or {}).get("folder", Path())
        return (folder / value).absolute()
    return value


RunName = Annotated[str, TextForm("letters, digits, `_`, `.` and `-`", r"[A-Za-z0-9_.-]+")]
PartyName = Annotated[
    str, TextForm("letters, digits, `_` and `-`, but not `global`", r"(?!global$)[A-Za-z0-9_-]+")
]
Address = Annotated[str, TextForm('"host:port"', f"{_HOST}:{_PORT}")]
AddressOrNone = Annotated[str, TextForm('"host:port", or ""', f"({_HOST}:{_PORT})?")]
PolicyName = Annotated[
    str, _choice(policies.names, _SETTINGS, ", with parameters as `staleness=4` behind it")
]
CompensationName = Annotated[
    str,
    _choice(
        compensations.names, _SETTINGS, ", with parameters as `strength=0.04` behind it, or nothing", True
    ),
]
ChannelName = Annotated[str, _choice(channels.names, _SETTINGS, ", with parameters as `key=value` behind it")]
RuleName = Annotated[str, TextForm('your own as "module:Class", or nothing', f"({_CLASS})?")]
CodecName = Annotated[str, _choice(codecs.names, _SETTINGS, ", with parameters as `ratio=0.01` behind it")]
LanCodecName = Annotated[
    str, _choice(("wan", *codecs.names), _SETTINGS, ", with parameters as `ratio=0.01` behind it")
]
File = Annotated[Path, BeforeValidator(_absolute)]  # relative to the folder of the run's description
Seconds = Annotated[float, Field(gt=0)]


def is_loopback(address: str) -> bool:
    """Whether an address `host:port` can be reached from this machine alone."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
