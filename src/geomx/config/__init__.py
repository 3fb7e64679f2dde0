"""The one frozen, validated description of a run: TOML in, every fault named at once."""

from geomx.config.drawing import describe
from geomx.config.link_changes import Change
from geomx.config.run import AGREED, AGREED_OF_A_PARTY, Run
from geomx.config.tables import Edge, Event, Link, Party
from geomx.config.value_types import CODECS, COMPENSATIONS, POLICIES

__all__ = [
    "AGREED",
    "AGREED_OF_A_PARTY",
    "CODECS",
    "COMPENSATIONS",
    "POLICIES",
    "Change",
    "Edge",
    "Event",
    "Link",
    "Party",
    "Run",
    "describe",
]
