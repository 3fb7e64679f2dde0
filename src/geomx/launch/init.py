"""Writes the description of a run on sites, from four answers: what `geomx init` does."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from geomx.config import Run
from geomx.errors import ConfigError, Fault

PORT = 9000
QUESTIONS = {
    "script": "Your training script [train.py]: ",
    "sites": "Your sites, as NAME=HOST,HOST or NAME=ENGINE, the one with the global server first\n"
    "  (paris=me@gpu1.paris,me@gpu2.paris tokyo=slurm boston=local): ",
    "workers": "Workers at each site [1]: ",
    "address": "How the other sites reach the first one, as HOST[:PORT] [{default}]: ",
}
ENGINES = {
    "local": "local",
    "slurm": "slurm",
    "kubernetes": "kubernetes image=REGISTRY/geomx:0.1",
    "ray": "ray",
}  # of a site that is one word


@dataclass(frozen=True, slots=True)
class Answers:
    """What a user has said already; None: it is asked for."""

    script: str | None = None
    sites: Sequence[str] = ()
    workers: int | None = None
    address: str | None = None


def init(file: Path, answers: Answers, ask: Callable[[str], str] = input) -> str:
    """Write a description to a file that is not there yet, and give what to do next.

    Asks for what `answers` lack where somebody is there to ask. Raises `ConfigError`.
    """
    if file.exists():
        hint = "remove it first, or give another name"
        raise ConfigError("the command line", [Fault("FILE", f"{file}, which is there", "a new file", hint)])

    def answered(name: str, given: str | None, default: str = "") -> str:
        if given is not None:
            return given
        if ask is input and not sys.stdin.isatty():
            raise ConfigError(
                "the command line", [Fault(f"--{name}", "nothing", "an answer", "nobody can be asked here")]
            )
        return ask(QUESTIONS[name].format(default=default)).strip() or default

    script = answered("script", answers.script, "train.py")
    words = answered("sites", " ".join(answers.sites) or None).split()
    sites = dict(map(_site, words))
    if len(sites) < len(words):
        hint = "give the hosts of one site in one word: NAME=HOST,HOST"
        raise ConfigError("the command line", [Fault("--sites", " ".join(words), "each name once", hint)])
    if not sites:
        raise ConfigError("the command line", [Fault("--sites", "nothing", "one site or more, as NAME=HOST")])
    workers = answered("workers", None if answers.workers is None else str(answers.workers), "1")
    first = next(iter(sites.values()))
    host = "127.0.0.1" if first[0] in ENGINES else first[0].rpartition("@")[2]
    address = answered("address", answers.address, host)
    text = _description(script, sites, workers, address if ":" in address else f"{address}:{PORT}")
    Run.parse(text, str(file))  # raises where the answers make no run
    try:
        file.write_text(text)
    except OSError as error:
        fault = Fault("FILE", f"{file}: {error.strerror}", "a new file in a folder that is there")
        raise ConfigError("the command line", [fault]) from error
    return f"{file} is written: look at it, then `geomx up {file}` and `geomx attach {file}`"


def _site(word: str) -> tuple[str, list[str]]:
    name, equals, where = word.partition("=")
    if not (name and equals and where):
        raise ConfigError("the command line", [Fault("--sites", word, "NAME=HOST,HOST or NAME=ENGINE")])
    return name, where.split(",")


def _description(script: str, sites: dict[str, list[str]], workers: str, address: str) -> str:
    name = f"{Path(script).stem}-{secrets.token_hex(2)}"  # by which sites tell runs apart
    lines = ["[run]", f'name = "{name}"', f'script = "{script}"', 'on_loss = "continue"']
    lines += ["", "[global]", f'addresses = ["{address}"]']
    for name in sites:
        lines += ["", "[[party]]", f'name = "{name}"', f"workers = {workers}"]
    for index, (name, where) in enumerate(sites.items()):
        lines += ["", "[[site]]", f'party = "{name}"']
        lines += ['serves = ["global"]'] if index == 0 else []
        hosts = ", ".join(f'"{host}"' for host in where)
        lines += [f'engine = "{ENGINES[where[0]]}"'] if where[0] in ENGINES else [f"hosts = [{hosts}]"]
    return "\n".join([*lines, ""])
