"""Codecs, policies, optimizers and channels by name: the built-in ones by a short name, others as `module:Class`.

A description names one as a *spec*: the name, then parameters as key=value (`bisparse ratio=0.01 values=int4`). The
keyword-only arguments of the class are its parameters; their defaults give the types.
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
    """Finds a class by its name, and makes objects from specs. Nothing is imported before it is asked for."""

    def __init__(self, what: str, builtin: dict[str, str]) -> None:
        """Make a registry.

        Args:
            what: What its classes are, for messages, such as "codec".
            builtin: `module:Class` of each built-in name.
        """
        self.what = what
        self._builtin = dict(builtin)

    @property
    def names(self) -> tuple[str, ...]:
        """The built-in names."""
        return tuple(self._builtin)

    def find(self, name: str) -> T:
        """Find a class.

        Args:
            name: A built-in name, or `module:Class`.

        Raises:
            UnknownName: There is none, or it cannot be imported.
        """
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
            return Fault(name, found, allowed, "put your own module beside the run's description")
        if not hasattr(module, attribute):
            found = f"nothing to import: {module_name} has no {attribute}"
            return Fault(name, found, allowed, nearest(attribute, vars(module)))
        return cast(T, getattr(module, attribute))

    def bound(self, spec: str) -> Callable[..., Any]:
        """Find the class that a spec names, and bind the spec's parameters to it.

        Args:
            spec: A name with parameters, such as `"bisparse ratio=0.01"`.

        Returns:
            A callable that makes an object; it takes the positional arguments of the class.

        Raises:
            ConfigError: It lists every fault. Its place is the parameter's name, or the class's if that is at fault.
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
                faults.append(Fault(key, f"{text!r} as a second value", "each parameter once"))
            else:
                try:
                    given[key] = _value(text, type(known[key].default))
                except ValueError:
                    faults.append(_wrong(key, text, type(known[key].default)))
        for key, parameter in known.items():
            if parameter.default is parameter.empty and key not in (
                each.partition("=")[0] for each in settings
            ):
                faults.append(Fault(key, "nothing", f"{key}=..., which it needs"))
        if faults:
            raise ConfigError(f"{self.what} `{spec}`", faults)
        return partial(kind, **given)

    def make(self, spec: str, *arguments: Any) -> Any:
        """Make an object of the class that a spec names.

        Args:
            spec: A name with parameters, such as `"bisparse ratio=0.01"`.
            arguments: The positional arguments of the class.

        Raises:
            ConfigError: As from `bound`, or the class refuses its parameters.
        """
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
