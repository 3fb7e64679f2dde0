"""The one frozen, validated description of a run: TOML in, every fault named at once."""

from geomx.config.drawing import describe
from geomx.config.link_changes import LinkChange
from geomx.config.run import AGREED, AGREED_OF_A_PARTY, Run
from geomx.config.tables import EdgeTable, EventTable, LinkTable, PartyTable
from geomx.config.value_types import CODECS, COMPENSATIONS, POLICIES

__all__ = [
    "AGREED",
    "AGREED_OF_A_PARTY",
    "CODECS",
    "COMPENSATIONS",
    "POLICIES",
    "EdgeTable",
    "EventTable",
    "LinkChange",
    "LinkTable",
    "PartyTable",
    "Run",
    "describe",
]
