"""What a value must look like where its type does not say it: texts of a form, choices, addresses, rates.

A form checks a value, and gives it back as it is kept. What it refuses becomes a fault with the form's words, or with
words of its own, and a hint.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from geomx.config.addresses import why_not
from geomx.config.reading.problems import odd_character, shown
from geomx.errors import nearest

UNFIT = "unfit"  # the type of pydantic's error
LONGEST_CHOICE = 200  # characters; it travels in every node's greeting

_CLASS = r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*"
_SETTING = r"[a-z_][a-z_0-9]*=[!-~]+"


class Form(ABC):
    """A kind of value. `words`: what it allows, as faults and the reference say it."""

    words: str

    @abstractmethod
    def check(self, value: Any) -> Any:
        """The value as it is kept; raises what `unfit` makes."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))


def unfit(hint: str = "", found: str = "", allowed: str = "") -> PydanticCustomError:
    """The fault of one value. `found`, `allowed`: in place of the value itself and of its form's words."""
    return PydanticCustomError(UNFIT, "of the wrong form", {"found": found, "allowed": allowed, "hint": hint})


@dataclass(frozen=True, slots=True)
class TextForm(Form):
    """A text that matches the whole pattern. `longest`: in characters; 0: of any length."""

    words: str
    pattern: str
    longest: int = 0

    def check(self, value: str) -> str:
        if self.longest and len(value) > self.longest:
            raise unfit(f"it has {len(value)} characters")
        if re.fullmatch(self.pattern, value, re.ASCII) is None:
            raise unfit(odd_character(value))
        return value


@dataclass(frozen=True, slots=True)
class ChoiceForm(Form):
    """One of `names`, or a user's own class, and behind it parameters such as `example`.

    Whether there is such a class, and whether it has such parameters, only its registry knows.
    """

    names: tuple[str, ...]
    example: str
    optional: bool = False
    bare: tuple[str, ...] = ()  # of the names, those that have no parameters

    @property
    def words(self) -> str:  # type: ignore[override]
        quoted = ", ".join(f'"{name}"' for name in self.names)
        nothing = ", or nothing" if self.optional else ""
        return (
            f'{quoted}, or your own as "module:Class", with parameters as `{self.example}` behind it{nothing}'
        )

    def check(self, value: str) -> str:
        name, *settings = value.split() or [""]
        if not name and self.optional:
            return ""
        if len(value) > LONGEST_CHOICE:
            raise unfit(f"it has {len(value)} characters", allowed=f"at most {LONGEST_CHOICE} characters")
        if name not in self.names and (re.fullmatch(_CLASS, name, re.ASCII) is None or ".py:" in name):
            raise unfit(self._meant(name))
        if name in self.bare and settings:
            raise unfit(found=shown(value), allowed=f"`{name}` without parameters")
        for setting in settings:
            if re.fullmatch(_SETTING, setting, re.ASCII) is None:
                spaced = any(other.startswith("=") or other.endswith("=") for other in settings)
                hint = "without spaces around `=`" if spaced else odd_character(setting)
                raise unfit(hint, shown(setting), f"parameters as `{self.example}`")
        return " ".join([name, *settings])

    def _meant(self, name: str) -> str:
        if hint := nearest(name, self.names) or odd_character(name):
            return hint
        module, colon, kind = name.rpartition(":" if ":" in name else ".")
        meant = f"{module.removesuffix('.py').strip('./').replace('/', '.')}:{kind}"
        return f"did you mean `{meant}`?" if colon and re.fullmatch(_CLASS, meant, re.ASCII) else ""


@dataclass(frozen=True, slots=True)
class AddressForm(Form):
    """`host:port`. `dialled`: others dial it, so it must name one machine. `optional`: or nothing."""

    dialled: bool
    optional: bool = False

    @property
    def words(self) -> str:  # type: ignore[override]
        return '"host:port", or ""' if self.optional else '"host:port"'

    def check(self, value: str) -> str:
        if (value or not self.optional) and (hint := why_not(value, self.dialled)):
            raise unfit(odd_character(value) or hint)
        return value


@dataclass(frozen=True, slots=True)
class AddressesForm(Form):
    """`host:port`, or a list of several of one server: where it is, and where one that stands by takes its place."""

    one: AddressForm

    @property
    def words(self) -> str:  # type: ignore[override]
        return f"{self.one.words}, or a list of several"

    def check(self, value: Any) -> str | tuple[str, ...]:
        """See `Form`; a list of one is that one."""
        several = value if isinstance(value, list | tuple) else [value]
        if not several or not all(isinstance(each, str) for each in several):
            raise unfit()
        checked = tuple(map(self.one.check, several))
        return checked if len(checked) > 1 else checked[0]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)


@dataclass(frozen=True, slots=True)
class ZeroOr(Form):
    """0, or a number within bounds: what is far below them is a slip and not a slow link."""

    least: float
    most: float

    @property
    def words(self) -> str:  # type: ignore[override]
        return f"0, or number ≥ {self.least:g}, ≤ {self.most:.0f}"

    def check(self, value: float) -> float:
        if value and not self.least <= value <= self.most:
            raise unfit()
        return value


def names_of(forms: Sequence[Any]) -> tuple[str, ...]:
    """The names that a key of these forms may have."""
    return next((form.names for form in forms if isinstance(form, ChoiceForm)), ())
