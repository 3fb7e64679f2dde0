"""Transcripts of the documents, played: each command of a page's `console` block prints what stands behind it there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from site_machines import ROOT, copy_examples

Call = Callable[..., "subprocess.CompletedProcess[str]"]
SOURCE = f'python = "{sys.executable}"\nsetup = ["export PYTHONPATH={ROOT / "src"} OMP_NUM_THREADS=1"]\n'


def play(page: str, folder: Path, geomx: Call, instead: Mapping[str, str]) -> None:
    """Write a page's description into a folder, and play its transcript there.

    `instead`: what stands in this place for words of the page. Only times, and a job's number, may differ.
    """
    text = (ROOT / "docs" / page).read_text()
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (console,) = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    copy_examples(folder)
    for words, own in instead.items():
        assert words in toml, words
        toml = toml.replace(words, own)
    start, *sites = toml.split("[[site]]\n")
    place = f'folder = "{folder}/runs"\n'
    places = ("" if 'engine = "ray ' in site else place for site in sites)
    own_sites = (f"[[site]]\n{at}{SOURCE}{site}" for at, site in zip(places, sites, strict=True))
    (folder / "sites.toml").write_text("".join([start, *own_sites]))
    try:
        for step in console.split("$ geomx ")[1:]:
            command, _, expected = step.partition("\n")
            done = geomx(*command.replace("sites.toml", str(folder / "sites.toml")).split())
            assert done.returncode == 0, done.stderr
            assert plain(done.stdout) == plain(expected), done.stdout
    finally:
        geomx("down", str(folder / "sites.toml"))


def plain(text: str) -> list[str]:
    """Its lines without what differs from call to call."""
    lines = (re.sub(r"\d+:\d\d|job \d+", "#", line).rstrip() for line in text.splitlines())
    return [line for line in lines if line]
