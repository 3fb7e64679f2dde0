"""A run on its sites: what `geomx up`, `status`, `logs`, `attach` and `down` do.

Nothing of a run is kept here: what runs where, its machines know. So any machine that has the description, and may ask
the sites, can do all of this but `up`, which needs the run's keys.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from geomx.config import Run
from geomx.errors import ConfigError, Fault
from geomx.launch.engines import engines
from geomx.launch.engines.contract import (
    CHUNK,
    Credentials,
    Engine,
    FileOf,
    Job,
    JobNode,
    NodeState,
    SiteError,
)
from geomx.launch.engines.jobs import find, jobs_of
from geomx.launch.local.gather import gather
from geomx.launch.provision import Keys
from geomx.observe.live import clock, view_of
from geomx.observe.records import Record, RecordFiles

STATE_S, LOOK_S, FOLLOW_S = 5.0, 1.0, 0.5
STYLES = {"running": "green", "ended": "dim", "failed": "bold red", "waiting": "yellow", "absent": "yellow"}
NOT_UP = "nothing of this run is on its sites: `geomx up {}` starts it"
NEWS = {
    "absent": "is gone",
    "starting": "starts",
    "running": "runs",
    "waiting": "will be started again",
    "failed": "stays down",
    "stopped": "was stopped",
}
LOST = ("absent", "failed", "stopped")
OVER = ("ended", *LOST)
Answer = TypeVar("Answer")


class Site:
    """One job with its engine."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.engine: Engine = engines.make(job.site.engine, job)

    @property
    def words(self) -> str:
        """`paris (ssh)`."""
        return f"{self.job.name} ({self.job.site.engine.split()[0]})"


def sites_of(run: Run, file: Path, credentials: Credentials | None = None) -> list[Site]:
    """The sites of a run; raises `ConfigError`."""
    return [Site(job) for job in jobs_of(run, file, credentials)]


def up(run: Run, file: Path, *, only_print: bool = False) -> None:
    """Bring a run up on all of its sites, or print how each does it by hand.

    A site whose nodes all run already is left alone, so that calling it again starts what is missing. Raises
    `SiteError` where a site is not ready, before anything starts anywhere; or where one did not start, with what runs.
    """
    sites_of(run, file, Credentials())  # raises, before keys are made
    keys = Keys(run, file)
    if ended := keys.expiring(within=timedelta()):
        raise SiteError(
            "\n  ".join([f"nothing was started: `geomx provision {file} --renew`, since", *ended])
        )
    _tell_what_expires(run, file)
    sites = sites_of(run, file, keys.credentials())
    if only_print:
        for site in sites:
            print(f"# {site.words}\n{site.engine.printed()}")
        return
    missing = list(_missing(sites, file))
    answers = _of_each(missing, lambda site: site.engine.prepare())
    faults = [
        f"{site.words}: {line}"
        for site, lines in zip(missing, answers, strict=True)
        for line in ([str(lines)] if isinstance(lines, SiteError) else lines)
    ]
    if faults:
        raise SiteError("\n  ".join(["nothing was started, since", *faults]))
    failed = []
    try:
        begun = _of_each(missing, lambda site: site.engine.start())
    except KeyboardInterrupt:
        print(f"what has started by now runs: `geomx status {file}`, `geomx down {file}`", flush=True)
        raise
    for site, started in zip(missing, begun, strict=True):
        if isinstance(started, SiteError):
            failed.append(f"{site.words}: {started}")
        else:
            print(f"{site.words}: {_counted(site.job)}; kept by {started}", flush=True)
    if failed:
        again = "then call `geomx up` again, which starts what is missing, or `geomx down`"
        raise SiteError("\n  ".join([f"these sites did not start; mend it, {again}", *failed]))


def _missing(sites: Sequence[Site], file: Path) -> Iterator[Site]:
    """Those to start: on one of whose machines nothing runs, unless it has ended well. Says of the rest.

    Raises `SiteError` where the whole run is over: what it has left would be lost.
    """
    states = _of_each(sites, lambda site: site.engine.state())
    told = [{} if isinstance(found, SiteError) else found for found in states]
    every = [each.state for found in told for each in found.values()]
    if any(each != "absent" for each in every) and all(each in OVER for each in every):
        raise SiteError(
            f"it has run: `geomx down {file} --records FOLDER` first, which keeps what it came to"
        )
    for site, found in zip(sites, told, strict=True):
        machines = [
            [found[node.name] for node in nodes if node.name in found] for nodes in _by_machine(site.job)
        ]
        lost = [all(each.state in LOST for each in here) for here in machines]
        if any(lost):
            yield site
        elif all(each.state in OVER for each in found.values()):
            print(f"{site.words}: has ended, and the run goes on", flush=True)
        else:
            down = ", ".join(name for name, each in found.items() if each.state in LOST)
            print(f"{site.words}: runs already{f', without {down}' if down else ''}", flush=True)


def _by_machine(job: Job) -> list[list[JobNode]]:
    found = defaultdict[int, list[JobNode]](list)
    for node in job.nodes:
        found[node.machine].append(node)
    return list(found.values())


def _counted(job: Job) -> str:
    return ", ".join(node.name for node in job.nodes)


def prepared(run: Run, file: Path) -> list[tuple[str, list[str]]]:
    """Of each site its words, and what is in the way of a start there; empty: nothing."""
    sites = sites_of(run, file)
    found = _of_each(sites, lambda site: site.engine.prepare())
    lines = [[str(each)] if isinstance(each, SiteError) else list(each) for each in found]
    return list(zip([site.words for site in sites], lines, strict=True))


def manifests(run: Run, file: Path) -> None:
    """Print the manifests of all sites on Kubernetes, keys included. Raises `ConfigError` where there is none."""
    here = [site.job.site.engine.split()[0] for site in sites_of(run, file, Credentials())]
    if "kubernetes" not in here:
        fault = Fault("site.engine", "no site on Kubernetes", '`engine = "kubernetes image=..."`')
        raise ConfigError(str(file), [fault])
    for kind, site in zip(here, sites_of(run, file, Keys(run, file).credentials()), strict=True):
        if kind == "kubernetes":
            print(site.engine.bundled().decode(), end="")


def provision(run: Run, file: Path, renew: bool, revoke: Sequence[str], days: int) -> None:
    """Make the run's keys, and a bundle for each site. Raises `ConfigError`, and `SiteError` of sites that run.

    `renew`: new certificates for all nodes. `revoke`: nodes whose certificates count no more. `days`: how long new
    ones count. Sites that run get the list of revoked ones at once, whenever there is one: the call may be repeated.
    """
    sites_of(run, file, Credentials())  # raises, before keys are made
    keys = Keys(run, file)
    if revoke:
        keys.revoke(revoke)
    if renew:
        keys.renew(days)
    sites = sites_of(run, file, keys.credentials())
    for site in sites:
        path = keys.bundle(site.job.name, site.engine.bundled())
        print(f"{site.words}: {path}", flush=True)
    print(f"keep {keys.folder} to yourself, and give each site its own bundle alone", flush=True)
    if keys.are_revoked:
        _send(sites, keys.list_of_revoked())


def _send(sites: Sequence[Site], files: Mapping[str, bytes]) -> None:
    """Put files in place on every site that runs."""
    runs = []
    for site, found in zip(sites, _of_each(sites, lambda site: site.engine.state()), strict=True):
        if isinstance(found, SiteError) or any(each.state not in OVER for each in found.values()):
            runs.append(site)
    sent = _of_each(runs, lambda site: site.engine.send(files))
    failed = [f"{site.words}: {error}" for site, error in zip(runs, sent, strict=True) if error is not None]
    if failed:
        raise SiteError(
            "\n  ".join(
                [
                    "these sites lack the list of revoked certificates; `geomx provision` sends it again",
                    *failed,
                ]
            )
        )
    if runs:
        print(
            f"the list of revoked certificates is in place: {', '.join(site.words for site in runs)}",
            flush=True,
        )


def status(run: Run, file: Path) -> bool:
    """Print what runs where; gives whether every site could be asked, and no node has failed."""
    sites = sites_of(run, file)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("node", "site", "machine", "state", "since", "restarts"):
        table.add_column(heading, justify="right" if heading == "restarts" else "left", no_wrap=True)
    states: dict[str, NodeState] = {}
    is_well, now, words = True, time.time(), defaultdict[str, list[str]](list)
    for site, found in zip(sites, _of_each(sites, lambda site: site.engine.state()), strict=True):
        if isinstance(found, SiteError):
            is_well = False
            words[str(found)].append(site.words)
            continue
        states |= found
        for name, each in found.items():
            is_well = is_well and each.state != "failed"
            since = "" if each.since is None else clock(max(0.0, now - each.since))
            state = Text(each.state, style=STYLES.get(each.state, ""))
            table.add_row(name, site.words, each.machine, state, since, str(each.restarts or ""))
            if each.how:
                words[each.how].append(name)
    console = Console(highlight=False)
    if table.row_count:
        console.print(table)
    for how, names in words.items():
        console.print(f"{', '.join(names)}: {how}", markup=False, soft_wrap=True)
    is_here = [each for each in states.values() if each.state != "absent"]
    if states and not is_here:
        print(NOT_UP.format(file), flush=True)
    elif not is_well:
        print(
            f"`geomx attach {file}` tells why, `geomx logs {file} NODE` what a node has printed", flush=True
        )
    _tell_what_expires(run, file)
    return is_well and bool(is_here)


def _tell_what_expires(run: Run, file: Path) -> None:
    """Of certificates that are here, those that end soon."""
    for line in Keys(run, file).expiring():
        print(f"note: {line}; `geomx provision {file} --renew` makes new ones", file=sys.stderr, flush=True)


def logs(run: Run, file: Path, node: str, lines: int, follow: bool) -> None:
    """Print the last lines that a node has written, and what comes with `follow`, until it has ended."""
    sites = sites_of(run, file)
    site = sites[find([site.job for site in sites], node)]
    chunk, at = b"", 0
    is_more = True
    while is_more:
        read = _more(site, "logs", {node: at}).get(node, b"")
        chunk, at, is_more = (chunk + read)[-CHUNK:], at + len(read), len(read) >= CHUNK - 1
    if at == 0 and not follow and site.engine.state()[node].state == "absent":
        raise SiteError(NOT_UP.format(file))
    kept = chunk.splitlines(keepends=True)[-lines:] if lines else []
    _write(b"".join(kept))
    is_over = False
    while follow and not is_over:
        is_over = site.engine.state()[node].state in OVER  # asked before: it may write until then
        while more := _more(site, "logs", {node: at}).get(node):
            at += len(more)
            _write(more)
        if not is_over:
            time.sleep(FOLLOW_S)


def _more(site: Site, file: FileOf, offsets: Mapping[str, int]) -> dict[str, bytes]:
    """What each file has behind its offset; of one that has begun anew, as on another machine, all."""
    known = {node: max(0, at - 1) for node, at in offsets.items()}
    found = site.engine.read(file, known)
    anew = [node for node, content in found.items() if offsets[node] and not content]
    more = {node: content[offsets[node] - known[node] :] for node, content in found.items()}
    return more | (dict(site.engine.read(file, dict.fromkeys(anew, 0))) if anew else {})


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def attach(run: Run, file: Path, plain: bool) -> bool:
    """Show how far the run is, as `geomx run` does, until all its nodes have ended; gives whether they ended well.

    Ends with the table of the whole run, and raises `ResultWrong` as `geomx run` does; `SiteError` where nothing runs.
    """
    sites = sites_of(run, file)
    with tempfile.TemporaryDirectory(prefix="geomx-attach-") as folder:
        mirror = Mirror(sites, Path(folder))
        states = _told_of_changes(sites, {}, lambda text: print(text, flush=True))
        if all(each.state == "absent" for each in states.values()):
            raise SiteError(NOT_UP.format(file))
        try:
            with view_of(run, Console(), plain) as view:
                asked = time.monotonic()
                while True:
                    is_over = all(each.state in OVER for each in states.values())
                    for fault in mirror.new():
                        view.say(fault)
                    view.show(mirror.records(), time.monotonic())
                    if is_over:
                        break
                    time.sleep(LOOK_S)
                    if time.monotonic() - asked > STATE_S:
                        states = _told_of_changes(sites, states, view.say)
                        asked = time.monotonic()
        except KeyboardInterrupt:
            print(f"detached: the run goes on; `geomx down {file}` ends it", flush=True)
            raise
        if any(Path(folder).iterdir()):
            gather(run, Path(folder))  # as `geomx run` ends
        else:
            print("no records can be had of this run any more, so nothing says what it came to", flush=True)
        if failed := [name for name, each in states.items() if each.state == "failed"]:
            print(f"what a node has printed: `geomx logs {file} NODE`, such as {failed[-1]}", flush=True)
        return all(each.state == "ended" for each in states.values())


def _told_of_changes(
    sites: Sequence[Site], before: Mapping[str, NodeState], say: Callable[[str], None]
) -> Mapping[str, NodeState]:
    """The states of all nodes that can be asked; says what has changed, but for the first time."""
    now: dict[str, NodeState] = {}
    for site, found in zip(sites, _of_each(sites, lambda site: site.engine.state()), strict=True):
        if isinstance(found, SiteError):
            now |= {node.name: before.get(node.name, NodeState("starting")) for node in site.job.nodes}
            say(f"{site.words}: {found}")
        else:
            now |= found
    for name, each in now.items():
        was = before.get(name)
        if (
            was is not None
            and (was.state, was.restarts) != (each.state, each.restarts)
            and each.state != "ended"
        ):
            say(f"{name} {NEWS[each.state]}{f': {each.how}' if each.how else ''}")
    return now


class Mirror:
    """The records of all nodes, as far as they have come, in one folder here; their clocks made one."""

    def __init__(self, sites: Sequence[Site], folder: Path) -> None:
        self._sites, self._folder = sites, folder
        self._files = RecordFiles(folder)
        self._at: dict[str, int] = {}
        self._silent: set[str] = set()

    def new(self) -> Iterator[str]:
        """Fetch what has come; says of a site that cannot be asked, once until it can."""
        for site, fault in zip(self._sites, _of_each(self._sites, self._fetch), strict=True):
            if not isinstance(fault, SiteError):
                self._silent.discard(site.job.name)
            elif site.job.name not in self._silent:
                self._silent.add(site.job.name)
                yield f"{site.words}: {fault}"

    def _fetch(self, site: Site) -> None:
        """What is there by now, and not what comes while it is asked for."""
        wanted = {node.name: self._at.get(node.name, 0) for node in site.job.nodes}
        while wanted:
            found = _more(site, "records", wanted)
            for node, content in found.items():
                with self._files.path_of(node).open("ab") as file:
                    file.write(content)
                wanted[node] = wanted[node] + len(content)
                self._at[node] = wanted[node]
            wanted = {node: wanted[node] for node, content in found.items() if len(content) >= CHUNK - 1}

    def records(self) -> list[Record]:
        """Those that have come since, on this machine's clock."""
        return self._files.in_time_of_this_process()


def down(run: Run, file: Path, records: Path | None, purge: bool) -> None:
    """End a run on all of its sites, and remove its files there; what scripts have written stays, unless `purge`.

    `records`: a folder that gets the nodes' records before. Raises `SiteError` where a site could not be asked.
    """
    sites = sites_of(run, file)
    if records is not None:
        records.mkdir(parents=True, exist_ok=True)
        for fault in Mirror(sites, records).new():
            print(f"geomx: {fault}", file=sys.stderr, flush=True)
        print(f"records are in {records}: `geomx report {file} {records}`", flush=True)
    failed = []
    for site, left in zip(sites, _of_each(sites, lambda site: site.engine.stop(purge)), strict=True):
        if isinstance(left, SiteError):
            failed.append(f"{site.words}: {left}")
            continue
        print(f"{site.words}: nothing runs", flush=True)
        for place in left:
            print(f"  what its scripts have written is in {place}", flush=True)
    if failed:
        raise SiteError("\n  ".join(["these sites may still run; call `geomx down` again", *failed]))


def _of_each(sites: Sequence[Site], ask: Callable[[Site], Answer]) -> list[Answer | SiteError]:
    """What each site answers, all asked side by side; its refusal in place of an answer."""

    def asked(site: Site) -> Answer | SiteError:
        try:
            return ask(site)
        except SiteError as error:
            return error

    with ThreadPoolExecutor(max(1, len(sites))) as pool:
        return list(pool.map(asked, sites))
