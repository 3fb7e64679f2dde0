"""The one frozen, validated description of a run: TOML in, every fault named at once.

`run.py` and `tables/` first. `rules.py` is what keys must be to each other, `choice_rules.py` what policies, codecs
and rules must be, `files.py` what files; `whole.py` asks them all. `decision.py` says what follows from a description's
`choices.py` and a training `script.py`: where the optimizer steps, what is refused, and the `known_costs.py`.
`notices.py` tells what is no fault, `presets.py` what goes together. `document.py`, `fields.py`, `forms.py` and
`problems.py` say faults with file, line and key.
"""

from geomx.config.drawing import describe
from geomx.config.files import EVERY_FILE, Needed
from geomx.config.link_changes import LinkChange
from geomx.config.notices import notices
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
