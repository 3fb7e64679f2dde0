"""The tables of sites: where nodes run, and what starts them there."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from geomx.config.reading.forms import ChoiceForm, TextForm
from geomx.config.tables.base import Table
from geomx.config.value_types import LONGEST_PARTY_NAME, MOST_PARTIES, MOST_WORKERS_OF_A_PARTY, WEEK_S
from geomx.registry import Registry

GLOBAL = "global"  # among `serves`: all shards

# Where an engine is found. Nothing above `config` is imported before one is used.
engines: Registry[Any] = Registry(
    "engine",
    {
        "local": "geomx.launch.engines.local:Local",
        "ssh": "geomx.launch.engines.ssh:Ssh",
        "slurm": "geomx.launch.engines.slurm:Slurm",
        "ray": "geomx.launch.engines.ray:Ray",
        "kubernetes": "geomx.launch.engines.kubernetes:Kubernetes",
    },
)

EngineName = Annotated[str, ChoiceForm(engines.names, "partition=gpu")]
Host = Annotated[
    str, TextForm("a host as `ssh` takes it, such as `user@host`", r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]*", 255)
]
PartyOrNone = Annotated[
    str, TextForm("the name of a [[party]], or nothing", r"([A-Za-z0-9_][A-Za-z0-9_-]*)?", LONGEST_PARTY_NAME)
]
Word = Annotated[str, TextForm("text", r"[^\0\n]+")]
WordOrNone = Annotated[str, TextForm("text, or nothing", r"[^\0\n]*")]


class RestartTable(Table):
    """How often a process that dies is started again."""

    most: int = Field(3, ge=0, le=1000, description="How often, before it stays down.")
    within_s: float = Field(600.0, gt=0, le=WEEK_S, description="Restarts longer ago do not count.")


class SiteTable(Table):
    """Where the nodes of a party, or servers above the parties, run with `geomx up`. See [sites](sites.md)."""

    party: PartyOrNone = Field("", description="Whose local server and workers run here.")
    serves: tuple[Word, ...] = Field(
        (),
        strict=False,
        description="What else runs here: `global` (all global servers), and names of regions.",
    )
    engine: EngineName = Field("ssh", description="What starts processes here, and starts them again.")
    hosts: tuple[Host, ...] = Field(
        (),
        strict=False,
        max_length=MOST_PARTIES * MOST_WORKERS_OF_A_PARTY,
        description="Its machines, as `ssh` knows them. Servers run on the first.",
    )
    workers_each: int = Field(
        0,
        ge=0,
        le=MOST_WORKERS_OF_A_PARTY,
        description="Workers of each machine. 0: as evenly as can be.",
    )
    python: WordOrNone = Field(
        "",
        description="The Python there, in whose environment geomx is installed. Default: `python3`; with `local`, the "
        "one that runs `geomx up`.",
    )
    setup: tuple[Word, ...] = Field(
        (),
        strict=False,
        description='Shell commands before each process, such as `"module load cuda"`.',
    )
    folder: Word = Field(
        "~/.geomx", description="Folder there for the files of runs; each run has one of its own in it."
    )
    restart: RestartTable | None = Field(
        None,
        description="A process that was killed, or lost the others, is started again: at most `most` times within "
        '`within_s`. Default: `{ most = 3, within_s = 600 }`, or never with `run.on_loss = "stop"`.',
    )
