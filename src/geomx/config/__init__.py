"""The one frozen, validated description of a run: TOML in, every fault named at once.

`run.py` and `tables/` first. `reading/` makes tables of a document, and says faults with file, line and key;
`compatibility/` is what goes together, and what follows from it; `files.py` is what files must be. `whole.py` asks them
all.
"""

from geomx.config.compatibility.notices import notices
from geomx.config.drawing import describe
from geomx.config.files import EVERY_FILE, Needed
from geomx.config.link_changes import LinkChange
from geomx.config.run import AGREED, AGREED_OF_EACH, Run
from geomx.config.tables import EdgeTable, EventTable, LinkTable, PartyTable
from geomx.config.whole import load_whole

__all__ = [
    "AGREED",
    "AGREED_OF_EACH",
    "EVERY_FILE",
    "EdgeTable",
    "EventTable",
    "LinkChange",
    "LinkTable",
    "Needed",
    "PartyTable",
    "Run",
    "describe",
    "load_whole",
    "notices",
]
