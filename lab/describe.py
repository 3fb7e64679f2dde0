"""A network's description: TOML in, frozen dataclasses out, every fault named at once.

`[default]` holds the conditions of every directed pair of sites, each `[[link]]` changes some of them for the
pairs that it names (`"*"` names every site), and each `[[event]]` does so for a while. Where several speak of
one pair, the later one in the file wins.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.conditions import KEYS, RANGES, Conditions, faults_of, jitter_fault
from lab.errors import DescriptionError, Fault

Pair = tuple[str, str]  # from one site to another

CONGESTION = ("bbr", "cubic")
EVERY_SITE = "*"
MAX_SITES = 32  # what is told of all their links, two for each pair, is one message
MAX_HOSTS = 200
_TOP = ("site", "default", "link", "event", "congestion", "seed")
_REQUIRED = ("rate_mbps", "delay_ms")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,14}")


@dataclass(frozen=True, slots=True)
class Site:
    """One data center: `hosts` addresses in one namespace, or with `lan_mbps` a namespace for each host."""

    name: str
    hosts: int = 1
    lan_mbps: float | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """From `at_s` on, for `for_s` seconds or for good, `changes` hold on `pairs`."""

    at_s: float
    pairs: tuple[Pair, ...]
    changes: Mapping[str, Any]
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Network:
    """A whole network; `table` is what it was described by, with which another process describes the same."""

    source: str
    sites: tuple[Site, ...]
    links: Mapping[Pair, Conditions]
    events: tuple[Event, ...]
    congestion: str
    seed: int
    table: Mapping[str, Any] = field(repr=False, compare=False)

    def site(self, name: str) -> Site:
        """The site of that name; a LabError that lists the names where there is none."""
        for site in self.sites:
            if site.name == name:
                return site
        names = ", ".join(site.name for site in self.sites)
        raise DescriptionError(self.source, [Fault("site", repr(name), names)])


def load(path: str | Path, congestion: str | None = None) -> Network:
    """Read a TOML file. `congestion` overrides the file's. DescriptionError names every fault."""
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise DescriptionError(
            str(path), [Fault("file", error.strerror or str(error), "a readable file")]
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DescriptionError(str(path), [Fault("file", str(error), "TOML")]) from None
    if congestion is not None:
        table["congestion"] = congestion
    return describe(table, str(path))


def describe(table: Mapping[str, Any], source: str = "description") -> Network:
    """A network from a parsed table. DescriptionError names every fault."""
    reader = _Reader()
    reader.known(table, _TOP, "")
    sites = reader.sites(table.get("site"))
    names = tuple(site.name for site in sites)
    links = reader.links(table.get("default"), reader.tables(table, "link"), names)
    events = reader.events(reader.tables(table, "event"), names)
    congestion = table.get("congestion", CONGESTION[0])
    if congestion not in CONGESTION:
        reader.fault("congestion", repr(congestion), ", ".join(CONGESTION))
    seed = table.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool):
        reader.fault("seed", repr(seed), "an integer")
    if not reader.faults:
        reader.wandering(links, events)
    if reader.faults:
        raise DescriptionError(source, reader.faults)
    return Network(source, sites, links, events, congestion, seed, dict(table))


def pairs_of(names: Sequence[str], source: str, target: str, both: bool) -> tuple[Pair, ...]:
    """The directed pairs that `from`, `to` and `both` of a table mean."""
    here = names if source == EVERY_SITE else (source,)
    there = names if target == EVERY_SITE else (target,)
    pairs = [(a, b) for a in here for b in there if a != b]
    if both:
        pairs += [(b, a) for a, b in pairs]
    return tuple(dict.fromkeys(pairs))


class _Reader:
    """Collects faults while it reads, so that a user sees all of them."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def fault(self, where: str, found: str, allowed: str) -> None:
        self.faults.append(Fault(where, found, allowed))

    def known(self, table: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
        for key in table:
            if key not in keys:
                self.fault(f"{where}{key}", "an unknown key", ", ".join(keys))

    def tables(self, table: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
        found = table.get(key, [])
        if isinstance(found, list) and all(isinstance(entry, Mapping) for entry in found):
            return found
        self.fault(key, repr(found), f"tables, each headed [[{key}]]")
        return []

    def number(self, table: Mapping[str, Any], key: str, where: str, low: float) -> float | None:
        value = table.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value < float("inf"):
            return float(value)
        self.fault(
            f"{where}{key}", "nothing" if value is None else repr(value), f"a number of at least {low:g}"
        )
        return None

    def sites(self, entries: Any) -> tuple[Site, ...]:
        if not isinstance(entries, list) or not 2 <= len(entries) <= MAX_SITES:
            found = "nothing" if entries is None else "something else"
            count = f"{len(entries)} sites" if isinstance(entries, list) else found
            self.fault("site", count, f"2 to {MAX_SITES} tables headed [[site]]")
            return ()
        sites = [self._site(entry, f"site[{index}].") for index, entry in enumerate(entries)]
        names = [site.name for site in sites]
        for index, name in enumerate(names):
            if name in names[:index]:
                self.fault(f"site[{index}].name", repr(name), "a name that no other site has")
        return tuple(sites)

    def _site(self, entry: Any, where: str) -> Site:
        if not isinstance(entry, Mapping):
            self.fault(where.rstrip("."), repr(entry), "a table headed [[site]]")
            return Site("")
        self.known(entry, ("name", "hosts", "lan_mbps"), where)
        name, hosts, lan_mbps = entry.get("name"), entry.get("hosts", 1), entry.get("lan_mbps")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            self.fault(f"{where}name", repr(name), "a letter, then up to 14 letters, digits, - and _")
        if not isinstance(hosts, int) or isinstance(hosts, bool) or not 1 <= hosts <= MAX_HOSTS:
            self.fault(f"{where}hosts", repr(hosts), f"an integer from 1 to {MAX_HOSTS}")
        if lan_mbps is not None and not RANGES["rate_mbps"].holds(lan_mbps):
            self.fault(f"{where}lan_mbps", repr(lan_mbps), RANGES["rate_mbps"].words)
        return Site(str(name), hosts, lan_mbps)

    def links(
        self, default: Any, entries: Sequence[Mapping[str, Any]], names: Sequence[str]
    ) -> dict[Pair, Conditions]:
        default = {} if default is None else default
        if not isinstance(default, Mapping):
            self.fault("default", repr(default), "a table headed [default]")
            return {}
        self.faults += faults_of(default, "default.")
        settings = {pair: dict(default) for pair in pairs_of(names, EVERY_SITE, EVERY_SITE, False)}
        for index, entry in enumerate(entries):
            where = f"link[{index}]."
            self.known(entry, ("from", "to", "both", *KEYS), where)
            changes = self._changes(entry, where)
            for pair in self._pairs(entry, names, where):
                settings[pair].update(changes)
        for pair, setting in settings.items():
            missing = [key for key in _REQUIRED if key not in setting]
            for key in missing:
                self.fault(f"default.{key}", f"nothing for {pair[0]} to {pair[1]}", RANGES[key].words)
            if missing:  # one pair shows it; the others lack the same
                break
        return {} if self.faults else {pair: Conditions(**setting) for pair, setting in settings.items()}

    def events(self, entries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> tuple[Event, ...]:
        events = []
        for index, entry in enumerate(entries):
            where = f"event[{index}]."
            self.known(entry, ("at_s", "for_s", "from", "to", "both", *KEYS), where)
            at_s = self.number(entry, "at_s", where, 0.0)
            for_s = self.number(entry, "for_s", where, 0.001) if "for_s" in entry else None
            changes = self._changes(entry, where)
            pairs = self._pairs(entry, names, where)
            events.append(Event(at_s or 0.0, pairs, changes, for_s))
        return tuple(events)

    def _changes(self, entry: Mapping[str, Any], where: str) -> dict[str, Any]:
        changes = {key: value for key, value in entry.items() if key in KEYS}
        if not changes:
            self.fault(where.rstrip("."), "nothing that changes", ", ".join(KEYS))
        self.faults += faults_of(changes, where)
        return changes

    def _pairs(self, entry: Mapping[str, Any], names: Sequence[str], where: str) -> tuple[Pair, ...]:
        ends = [entry.get(key) for key in ("from", "to")]
        for key, end in zip(("from", "to"), ends, strict=True):
            if end != EVERY_SITE and end not in names:
                self.fault(
                    f"{where}{key}", "nothing" if end is None else repr(end), ", ".join((*names, '"*"'))
                )
        both = entry.get("both", False)
        if not isinstance(both, bool):
            self.fault(f"{where}both", repr(both), "true, false")
        if any(end != EVERY_SITE and end not in names for end in ends):
            return ()
        pairs = pairs_of(names, str(ends[0]), str(ends[1]), both is True)
        if not pairs:
            self.fault(f"{where}to", repr(ends[1]), "another site than from")
        return pairs

    def wandering(self, links: Mapping[Pair, Conditions], events: Sequence[Event]) -> None:
        """Refuse jitter above the delay, in the file and after each of its events."""
        told: set[tuple[float, float]] = set()  # one pair shows it; the others have it from the same table
        for (a, b), conditions in links.items():
            values = (conditions.jitter_ms, conditions.delay_ms)
            if values not in told:
                told.add(values)
                self.faults += jitter_fault(conditions, f"link {a} to {b}: ")
        for index, event in enumerate(events):
            for pair in event.pairs:
                after = links[pair].changed(event.changes)
                if after.jitter_ms > after.delay_ms:
                    self.faults += jitter_fault(after, f"event[{index}] on {pair[0]} to {pair[1]}: ")
                    break
