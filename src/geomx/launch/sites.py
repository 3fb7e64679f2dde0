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
from pathlib import Path
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from geomx.config import Run
from geomx.errors import ConfigError, Fault
from geomx.launch.engines import engines
from geomx.launch.engines.contract import Credentials, Engine, Job, NodeState, SiteError
from geomx.launch.engines.jobs import find, jobs_of
from geomx.launch.local.gather import gather
from geomx.launch.provision import Keys
from geomx.observe.live import clock, view_of
from geomx.observe.records import Record, RecordFiles

STATE_S, LOOK_S, FOLLOW_S = 5.0, 1.0, 0.5
STYLES = {"running": "green", "ended": "dim", "failed": "bold red", "waiting": "yellow", "absent": "yellow"}
NEWS = {
    "absent": "is gone",
    "starting": "starts",
    "running": "runs",
    "waiting": "will be started again",
    "failed": "stays down",
    "stopped": "was stopped",
}
OVER = ("ended", "failed", "stopped", "absent")
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
    _tell_what_expires(run, file)
    sites = sites_of(run, file, Keys(run, file).credentials())
    if only_print:
        for site in sites:
            print(f"# {site.words}\n{site.engine.printed()}")
        return
    missing = list(_missing(sites))
    answers = _of_each(missing, lambda site: site.engine.prepare())
    faults = [
        f"{site.words}: {line}"
        for site, lines in zip(missing, answers, strict=True)
        for line in ([str(lines)] if isinstance(lines, SiteError) else lines)
    ]
    if faults:
        raise SiteError("\n  ".join(["nothing was started, since", *faults]))
    failed = []
    for site, started in zip(missing, _of_each(missing, lambda site: site.engine.start()), strict=True):
        if isinstance(started, SiteError):
            failed.append(f"{site.words}: {started}")
        else:
            print(f"{site.words}: {_counted(site.job)}; kept by {started}", flush=True)
    if failed:
        again = "then call `geomx up` again, which starts what is missing, or `geomx down`"
        raise SiteError("\n  ".join([f"these sites did not start; mend it, {again}", *failed]))


def _missing(sites: Sequence[Site]) -> Iterator[Site]:
    """Those to start: where nothing runs, unless they have ended well and others of the run go on. Says of the rest."""
    states = _of_each(sites, lambda site: site.engine.state())
    told = [{} if isinstance(found, SiteError) else found for found in states]
    goes_on = any(each.state not in OVER for found in told for each in found.values())
    for site, found in zip(sites, told, strict=True):
        if any(each.state not in OVER for each in found.values()):
            down = ", ".join(name for name, each in found.items() if each.state in ("failed", "stopped"))
            without = f", without {down}" if down else ""
            print(f"{site.words}: runs already{without}", flush=True)
        elif goes_on and found and all(each.state == "ended" for each in found.values()):
            print(f"{site.words}: has ended, and the run goes on", flush=True)
        else:
            yield site


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
    is_well, now, words = True, time.time(), defaultdict[str, list[str]](list)
    for site, found in zip(sites, _of_each(sites, lambda site: site.engine.state()), strict=True):
        if isinstance(found, SiteError):
            is_well = False
            words[str(found)].append(site.words)
            continue
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
    _tell_what_expires(run, file)
    return is_well


def _tell_what_expires(run: Run, file: Path) -> None:
    """Of certificates that are here, those that end soon."""
    for line in Keys(run, file).expiring():
        print(f"note: {line}; `geomx provision {file} --renew` makes new ones", file=sys.stderr, flush=True)


def logs(run: Run, file: Path, node: str, lines: int, follow: bool) -> None:
    """Print the last lines that a node has written, and what comes with `follow`, until it has ended."""
    sites = sites_of(run, file)
    site = sites[find([site.job for site in sites], node)]
    chunk = site.engine.read(node, "logs", -(1 << 20))
    kept = chunk.splitlines(keepends=True)[-lines:] if lines else []
    _write(b"".join(kept))
    at = len(chunk) if len(chunk) < 1 << 20 else _size_of(site, node)
    while follow:
        if chunk := site.engine.read(node, "logs", at):
            at += len(chunk)
            _write(chunk)
        elif site.engine.state()[node].state in OVER:
            _write(site.engine.read(node, "logs", at))  # what it wrote between the two questions
            return
        else:
            time.sleep(FOLLOW_S)


def _size_of(site: Site, node: str) -> int:
    """How long a node's log is by now."""
    at = 0
    while chunk := site.engine.read(node, "logs", at):
        at += len(chunk)
    return at


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def attach(run: Run, file: Path, plain: bool) -> bool:
    """Show how far the run is, as `geomx run` does, until all its nodes have ended; gives whether they ended well.

    Ends with the table of the whole run, and raises `ResultWrong` as `geomx run` does.
    """
    sites = sites_of(run, file)
    with tempfile.TemporaryDirectory(prefix="geomx-attach-") as folder:
        mirror = Mirror(sites, Path(folder))
        states: Mapping[str, NodeState] = {}
        with view_of(run, Console(), plain) as view:
            asked = 0.0
            for fault in mirror.new():
                view.say(fault)
            while True:
                view.show(mirror.records(), time.monotonic())
                if time.monotonic() - asked > STATE_S:
                    states = _told_of_changes(sites, states, view.say)
                    asked = time.monotonic()
                if states and all(each.state in OVER for each in states.values()):
                    for _ in mirror.new():
                        pass
                    view.show(mirror.records(), time.monotonic())
                    break
                time.sleep(LOOK_S)
                for fault in mirror.new():
                    view.say(fault)
        if any(Path(folder).iterdir()):
            gather(run, Path(folder))  # as `geomx run` ends
        else:
            print("no records can be had of this run any more, so nothing says what it came to", flush=True)
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
        for node in site.job.nodes:
            at = self._at.get(node.name, 0)
            while chunk := site.engine.read(node.name, "records", at):
                with self._files.path_of(node.name).open("ab") as file:
                    file.write(chunk)
                at += len(chunk)
                self._at[node.name] = at

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
