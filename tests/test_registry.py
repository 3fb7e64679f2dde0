from collections import Counter
from fractions import Fraction

import pytest

from geomx.errors import UnknownName
from geomx.registry import Registry

shelf = Registry("thing", {"counter": "collections:Counter", "broken": "collections:NoSuchClass"})


def test_a_short_name_finds_its_class():
    assert shelf.find("counter") is Counter


def test_a_users_own_class_is_found_by_its_path():
    assert shelf.find("fractions:Fraction") is Fraction


def test_names_are_those_of_the_built_in_ones():
    assert shelf.names == ("counter", "broken")


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(
        UnknownName, match=r"no thing is called 'countr'; there are counter, broken, .*module:Class"
    ):
        shelf.find("countr")


@pytest.mark.parametrize("path", ["no_such_module_at_all:X", "collections:NoSuchClass", "broken"])
def test_what_cannot_be_imported_says_why(path):
    with pytest.raises(UnknownName, match="cannot be imported: "):
        shelf.find(path)


def test_the_table_it_was_made_from_may_change():
    table = {"one": "collections:Counter"}
    registry = Registry("thing", table)
    table.clear()
    assert registry.names == ("one",)
