"""A codec as a run's description names it: `bisparse ratio=0.01 values=int4`, or a user's own `module:Class rate=3`.

The name, then parameters as key=value. Which there are, of what type, and their defaults say the keyword arguments of
the codec's class.
"""

from __future__ import annotations

import inspect
from typing import Any

from geomx.codecs.base import Codec, codecs
from geomx.codecs.noise import Stream
from geomx.errors import ConfigError, Fault


def make_codec(spec: str, stream: Stream) -> Codec:
    """The codec of a spec. Raises `ConfigError` with every fault, `UnknownName`."""
    name, *settings = spec.split()
    kind = codecs.find(name)
    known = {
        key: parameter
        for key, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    arguments: dict[str, Any] = {}
    faults: list[Fault] = []
    for setting in settings:
        key, _, text = setting.partition("=")
        if key not in known:
            faults.append(Fault(key, "an unknown parameter", ", ".join(known) or "none"))
            continue
        wanted = type(known[key].default)
        try:
            arguments[key] = _value(text, wanted)
        except ValueError:
            faults.append(Fault(key, repr(text), _WORDS.get(wanted, wanted.__name__)))
    if faults:
        raise ConfigError(f"codec `{spec}`", faults)
    return kind(stream, **arguments)  # type: ignore[call-arg]  # a Protocol says nothing of constructors


_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


def _value(text: str, wanted: type) -> Any:
    if wanted is bool:
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"
    return wanted(text)
