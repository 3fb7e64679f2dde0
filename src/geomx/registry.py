"""A seam's implementations by name: ours by a short one, a user's by `module:Class`."""

from __future__ import annotations

import importlib
from typing import Generic, TypeVar, cast

from geomx.errors import UnknownName

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
