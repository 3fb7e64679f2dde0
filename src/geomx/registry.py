"""A seam's implementations by name: ours by a short one, a user's by `module:Class`.

A description names one as a *spec*: the name, then parameters as key=value (`bisparse ratio=0.01 values=int4`). Which
there are, of what type, and their defaults say the keyword arguments of the class.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Generic, TypeVar, cast

from geomx.errors import ConfigError, Fault, UnknownName

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps names to classes; the built-in ones are imported only when asked for."""

    def __init__(self, what: str, builtin: dict[str, str]) -> None:
        self.what = what
        self._builtin = dict(builtin)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._builtin)

    def find(self, name: str) -> T:
        """The class that `name` stands for; raises `UnknownName`."""
        path = self._builtin.get(name, name)
        module_name, colon, attribute = path.partition(":")
        if not colon:
            raise UnknownName(
                f"no {self.what} is called {name!r}; there are {', '.join(self.names)}, "
                f"or give your own as `module:Class`"
            )
        try:
            return cast(T, getattr(importlib.import_module(module_name), attribute))
        except (ImportError, AttributeError) as error:
            raise UnknownName(f"the {self.what} {name!r} cannot be imported: {error}") from error

    def make(self, spec: str, *arguments: Any) -> Any:
        """An object of the class that a spec names. Raises `ConfigError` with every fault, `UnknownName`."""
        name, *settings = spec.split()
        kind = self.find(name)
        known = {
            key: parameter
            for key, parameter in inspect.signature(cast(Any, kind)).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        given: dict[str, Any] = {}
        faults: list[Fault] = []
        for setting in settings:
            key, _, text = setting.partition("=")
            if key not in known:
                faults.append(Fault(key, "an unknown parameter", ", ".join(known) or "none"))
                continue
            wanted = type(known[key].default)
            try:
                given[key] = _value(text, wanted)
            except ValueError:
                faults.append(Fault(key, repr(text), _WORDS.get(wanted, wanted.__name__)))
        if faults:
            raise ConfigError(f"{self.what} `{spec}`", faults)
        return cast(Any, kind)(*arguments, **given)


_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


def _value(text: str, wanted: type) -> Any:
    if wanted is bool:
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"
    return wanted(text)
