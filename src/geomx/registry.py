"""A seam's implementations by name: ours by a short one, a user's by `module:Class`.

A description names one as a *spec*: the name, then parameters as key=value (`bisparse ratio=0.01 values=int4`). Which
there are, of what type, and their defaults say the keyword arguments of the class.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, cast

from geomx.errors import ConfigError, Fault, GeomxError, UnknownName, nearest

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
        found = self._look_up(name)
        if isinstance(found, Fault):
            raise UnknownName(f"{self.what} {found}")
        return found

    def _look_up(self, name: str) -> T | Fault:
        module_name, colon, attribute = self._builtin.get(name, name).partition(":")
        if not colon:
            allowed = f"{', '.join(self.names)}, or your own as `module:Class`"
            return Fault(name, f"no {self.what} of that name", allowed, nearest(name, self.names))
        allowed = "a class that Python can import"
        try:
            module = importlib.import_module(module_name)
        except Exception as error:  # whatever a user's module raises
            found = f"nothing to import: {type(error).__name__}: {error}"
            return Fault(name, found, allowed, "a module of your own lies beside the run's description")
        if not hasattr(module, attribute):
            found = f"nothing to import: {module_name} has no {attribute}"
            return Fault(name, found, allowed, nearest(attribute, vars(module)))
        return cast(T, getattr(module, attribute))

    def bound(self, spec: str) -> Callable[..., Any]:
        """The class that a spec names, with the spec's parameters; it is made when it is called.

        Raises:
            ConfigError: every fault. Its place is the parameter's name, or the class's where that is at fault.
        """
        name, *settings = spec.split() or [""]
        kind: Any = self._look_up(name)
        if isinstance(kind, Fault):
            raise ConfigError(f"{self.what} `{spec}`", [kind])
        try:
            signature = inspect.signature(kind)
        except (
            TypeError,
            ValueError,
        ) as error:  # no class, or one of those in C that tell nothing of themselves
            fault = Fault(name, f"a {type(kind).__name__}", "a class whose parameters Python knows")
            raise ConfigError(f"{self.what} `{spec}`", [fault]) from error
        known = {
            key: parameter
            for key, parameter in signature.parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        given: dict[str, Any] = {}
        faults: list[Fault] = []
        for setting in settings:
            key, _, text = setting.partition("=")
            if key not in known:
                allowed = ", ".join(known) or "no parameters"
                faults.append(Fault(key, "an unknown parameter", allowed, nearest(key, known)))
            elif key in given:
                faults.append(Fault(key, f"{text!r} as well", "each parameter once"))
            else:
                try:
                    given[key] = _value(text, type(known[key].default))
                except ValueError:
                    faults.append(_wrong(key, text, type(known[key].default)))
        if faults:
            raise ConfigError(f"{self.what} `{spec}`", faults)
        return partial(kind, **given)

    def make(self, spec: str, *arguments: Any) -> Any:
        """An object of the class that a spec names. Raises `ConfigError` with every fault, as `bound` does."""
        make = self.bound(spec)
        try:
            return make(*arguments)
        except GeomxError:
            raise
        except Exception as error:  # a user's class may refuse parameters with any
            fault = Fault(
                spec.split(maxsplit=1)[0], f"{type(error).__name__}: {error}", "a class that can be made"
            )
            raise ConfigError(f"{self.what} `{spec}`", [fault]) from error


_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


def _value(text: str, wanted: type) -> Any:
    if wanted is bool:
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"
    if wanted not in _WORDS:  # a parameter without a default, or whose default is None
        return text
    value = wanted(text)
    if wanted is float and not math.isfinite(value):
        raise ValueError(text)
    return value


def _wrong(key: str, text: str, wanted: type) -> Fault:
    number, percent, rest = text.partition("%")
    meant = text.removesuffix(",")
    if percent and not rest and _is_number(number):
        meant = f"{float(number) / 100:g}"
    return Fault(key, repr(text), _WORDS[wanted], "" if meant == text else f"did you mean `{key}={meant}`?")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
