import re
from collections import Counter
from fractions import Fraction

import pytest

from geomx.errors import ConfigError, UnknownName
from geomx.registry import Registry

shelf = Registry("thing", {"counter": "collections:Counter", "broken": "collections:NoSuchClass"})


def test_a_short_name_finds_its_class_and_a_users_own_is_found_by_its_path():
    assert shelf.find("counter") is Counter
    assert shelf.find("fractions:Fraction") is Fraction
    assert shelf.names == ("counter", "broken")


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(
        UnknownName,
        match=r"countr: found no thing of that name; allowed: counter, broken, .*module:Class.*`counter`",
    ):
        shelf.find("countr")


@pytest.mark.parametrize(
    ("path", "why"),
    [("no_such_module_at_all:X", ""), ("broken", ""), ("half_written:Codec", "SyntaxError")],
)
def test_what_cannot_be_imported_says_why(path, why, tmp_path, monkeypatch):
    (tmp_path / "half_written.py").write_text("class Codec(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownName, match=f"nothing to import: {why}"):
        shelf.find(path)


def test_the_table_it_was_made_from_may_change():
    table = {"one": "collections:Counter"}
    registry = Registry("thing", table)
    table.clear()
    assert registry.names == ("one",)


class Made:
    def __init__(self, place, *, ratio=0.5, steps=3, fast=False, note=None, of):
        if ratio > 1:
            raise ValueError("more than all")
        self.given = (place, ratio, steps, fast, note, of)


made = Registry("thing", {"made": f"{__name__}:Made"})


def test_parameters_have_the_types_of_their_defaults():
    assert made.make("made ratio=1e-2 steps=4 fast=true note=3 of=x", 7).given == (7, 0.01, 4, True, "3", "x")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("made ratoi=1", "ratoi: found an unknown parameter; allowed: ratio, .* (did you mean `ratio`?)"),
        ("made ratio=1%", "ratio: found '1%'; allowed: a number (did you mean `ratio=0.01`?)"),
        ("made ratio=1,", "ratio: found '1,'; allowed: a number (did you mean `ratio=1`?)"),
        ("made ratio=inf", "ratio: found 'inf'; allowed: a number"),
        ("made steps=0.5", "steps: found '0.5'; allowed: an integer"),
        ("made fast=yes", "fast: found 'yes'; allowed: true or false"),
        ("made steps=1 steps=2", "steps: found '2' as a second value; allowed: each parameter once"),
        ("made", "of: found nothing; allowed: of=..., which it needs"),
        ("made of=x ratio=2", "made: found ValueError: more than all"),
        ("mad", "mad: found no thing of that name; .* (did you mean `made`?)"),
        ("math:pi", "math:pi: found a float; allowed: a class"),
        ("math:tua", "math:tua: found nothing to import: math has no tua; .* (did you mean `tau`?)"),
        ("", ": found no thing of that name"),
    ],
)
def test_a_spec_that_cannot_be_made_says_why(spec, told):
    with pytest.raises(ConfigError) as caught:
        made.make(spec, 7)
    assert re.search(re.escape(told).replace(r"\.\*", ".*"), str(caught.value))
