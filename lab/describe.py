"""A network's description: TOML in, frozen values out, every fault named at once with its key and line.

`[default]` holds the conditions of every directed pair of sites, each `[[link]]` changes some of them for the
pairs that it names (`"*"` names every site), and each `[[event]]` does so for a while. Where several speak of
one pair, the later one in the file wins. A `[[route]]` leads packets over a third site. The tables are checked as
those of a run are, by `geomx.config.reading.checking`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from geomx.config.reading.checking import Rule, Values, change_something, checked, unique_names
from geomx.config.reading.document import Document, read_text, read_toml
from geomx.config.reading.fields import keys, words
from geomx.config.reading.forms import Form, TextForm, unfit
from geomx.config.reading.problems import KeyPath, Problem, shown
from geomx.config.tables import Table
from geomx.errors import nearest
from lab.errors import LabError
from lab.link import Conditions

Pair = tuple[str, str]  # from one site to another
Congestion = Literal["bbr", "cubic"]

CONGESTION: tuple[str, ...] = get_args(Congestion)
EVERY_SITE = "*"
MAX_SITES = 32  # what is told of all their links, two for each pair, is one message
MAX_HOSTS = 200
_LEAST_MTU, _MOST_MTU = 576, 65_535  # every host takes packets of 576 bytes (RFC 791)
SiteName = Annotated[
    str, TextForm("a letter, then up to 14 letters, digits, `-` and `_`", r"[A-Za-z][A-Za-z0-9_-]{0,14}")
]


class _MtuForm(Form):
    """The largest packet of a link, or 0."""

    words = f"integer ≥ {_LEAST_MTU}, ≤ {_MOST_MTU}, or 0 for no limit"

    def check(self, value: int) -> int:
        if value and not _LEAST_MTU <= value <= _MOST_MTU:
            raise unfit()
        return value


# -- tables ---------------------------------------------------------------------------------------


class Site(Table):
    """One data center: `hosts` addresses in one namespace, or with `lan_mbps` a namespace for each host."""

    name: SiteName
    hosts: int = Field(1, ge=1, le=MAX_HOSTS)
    lan_mbps: float | None = Field(None, ge=0.01, le=100_000)
    nat: bool = False


class ConditionsTable(Table):
    """Conditions of a link: those that are given."""

    rate_mbps: float | None = Field(None, ge=0.01, le=100_000)
    delay_ms: float | None = Field(None, ge=0, le=60_000)
    jitter_ms: float | None = Field(None, ge=0, le=60_000)
    loss: float | None = Field(None, ge=0, le=0.9)
    burst_enter: float | None = Field(None, ge=0, le=0.5)
    burst_leave: float | None = Field(None, ge=0.0001, le=1)
    burst_loss: float | None = Field(None, ge=0, le=1)
    cut: bool | None = None
    queue_ms: float | None = Field(None, ge=0, le=60_000)
    fair: bool | None = None
    reorder: float | None = Field(None, ge=0, le=1)
    reorder_ms: float | None = Field(None, gt=0, le=60_000)
    duplicate: float | None = Field(None, ge=0, le=1)
    mtu: Annotated[int, _MtuForm()] | None = None
    mtu_icmp: bool | None = None
    udp_blocked: bool | None = None

    @property
    def changes(self) -> dict[str, float | bool]:
        """The conditions that are given."""
        return self.model_dump(include=set(KEYS), exclude_none=True)


KEYS = tuple(ConditionsTable.model_fields)


class PairTable(ConditionsTable):
    """Conditions of the pairs from one site, or all, to another, or all."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    both: bool = False

    def pairs(self, names: Sequence[str]) -> tuple[Pair, ...]:
        """Of these sites."""
        return pairs_of(names, self.source, self.target, self.both)


class EventTable(PairTable):
    """The same from `at_s` on, for `for_s` seconds or for good."""

    at_s: float = Field(ge=0)
    for_s: float | None = Field(None, gt=0)


class RouteTable(Table):
    """What goes from one site to another takes the link to a third one first."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    over: str


class RebindTable(Table):
    """At `at_s` the NAT of a site forgets its mappings of UDP."""

    at_s: float = Field(ge=0)
    site: str


class NetworkTable(Table):
    """The whole description."""

    sites: tuple[Site, ...] = Field(alias="site", strict=False, min_length=2, max_length=MAX_SITES)
    default: ConditionsTable = Field(default_factory=ConditionsTable)
    links: tuple[PairTable, ...] = Field((), alias="link", strict=False)
    events: tuple[EventTable, ...] = Field((), alias="event", strict=False)
    routes: tuple[RouteTable, ...] = Field((), alias="route", strict=False)
    rebinds: tuple[RebindTable, ...] = Field((), alias="rebind", strict=False)
    congestion: Congestion = "bbr"
    seed: int = 0


# -- what they become -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Network:
    """A whole network; `table` is what it was described by, with which another process describes the same."""

    source: str
    sites: tuple[Site, ...]
    links: Mapping[Pair, Conditions]
    events: tuple[EventTable, ...]
    routes: Mapping[Pair, str]  # the site to which packets go first, where it is not the last one
    rebinds: tuple[RebindTable, ...]
    congestion: str
    seed: int
    table: Mapping[str, Any] = field(repr=False, compare=False)

    def site(self, name: str) -> Site:
        """The site of that name; a LabError that lists the names where there is none."""
        for site in self.sites:
            if site.name == name:
                return site
        names = ", ".join(site.name for site in self.sites)
        raise LabError(f"{self.source} has no site {name}; it has {names}")


def load(path: str | Path, congestion: str | None = None) -> Network:
    """Read a TOML file. `congestion` overrides the file's. Raises `ConfigError` with every fault."""
    document = read_toml(read_text(Path(path)), str(path))
    if congestion is not None:
        document.data["congestion"] = congestion
        document.places[("congestion",)] = "instead of the file's"
    return _network(document, str(path))


def describe(table: Mapping[str, Any], source: str = "description") -> Network:
    """A network from a parsed table. Raises `ConfigError` with every fault."""
    return _network(Document(dict(table)), source)


def _network(document: Document, source: str) -> Network:
    described = checked(NetworkTable, document, source, RULES)
    names = [site.name for site in described.sites]
    settings = {pair: dict(described.default.changes) for pair in pairs_of(names)}
    for link in described.links:
        for pair in link.pairs(names):
            settings[pair].update(link.changes)
    links = {pair: Conditions().changed(setting) for pair, setting in settings.items()}
    rest = described.congestion, described.seed, document.data
    routes = {(route.source, route.target): route.over for route in described.routes}
    return Network(source, described.sites, links, described.events, routes, described.rebinds, *rest)


def changed_by_hand(links: Mapping[Pair, Conditions], request: Mapping[str, Any]) -> dict[Pair, Conditions]:
    """What a request makes of the links that it speaks of: the keys of a `[[link]]`. Raises `ConfigError`."""
    names = list(dict.fromkeys(source for source, _ in links))

    def rules(values: Values) -> Iterator[Problem]:
        yield from _faults_of_ends((), values, names)
        for pair in _pairs(values, names):
            if problem := _jitter_above_delay([((), asdict(links[pair])), ((), values)], pair):
                yield problem
                return

    table = checked(PairTable, Document(dict(request)), "set", (rules,))
    return {pair: links[pair].changed(table.changes) for pair in table.pairs(names)}


def pairs_of(
    names: Sequence[str], source: str = EVERY_SITE, target: str = EVERY_SITE, both: bool = False
) -> tuple[Pair, ...]:
    """The directed pairs that `from`, `to` and `both` of a table mean."""
    here = names if source == EVERY_SITE else (source,)
    there = names if target == EVERY_SITE else (target,)
    pairs = [(a, b) for a in here for b in there if a != b]
    if both:
        pairs += [(b, a) for a, b in pairs]
    return tuple(dict.fromkeys(pairs))


# -- what keys must be to each other --------------------------------------------------------------

Layers = list[tuple[KeyPath, Mapping[str, Any]]]  # tables with their places, the later ones upon the others


def _names(values: Values) -> list[str]:
    """The sites; none where one is not known."""
    names = [site.get("name") for site in values["site"]]
    return [] if None in names else names


def _pairs(row: Mapping[str, Any], names: Sequence[str]) -> tuple[Pair, ...]:
    source, target = row.get("from", ""), row.get("to", "")
    if not {source, target} <= {*names, EVERY_SITE}:
        return ()
    return pairs_of(names, source, target, row.get("both", False))


def _rows(values: Values, key: str) -> Layers:
    return [((key, index), row) for index, row in enumerate(values[key])]


def _layers(values: Values, names: Sequence[str]) -> dict[Pair, Layers]:
    """The tables that speak of each pair, but for events."""
    layers: dict[Pair, Layers] = {pair: [(("default",), values["default"])] for pair in pairs_of(names)}
    for path, row in _rows(values, "link"):
        for pair in _pairs(row, names):
            layers[pair].append((path, row))
    return layers


def _ends_are_sites(values: Values) -> Iterator[Problem]:
    names = _names(values)
    for path, row in [*_rows(values, "link"), *_rows(values, "event")] if names else []:
        yield from _faults_of_ends(path, row, names)


def _faults_of_ends(path: KeyPath, row: Mapping[str, Any], names: Sequence[str]) -> Iterator[Problem]:
    allowed = (*names, EVERY_SITE)
    for key in ("from", "to"):
        if row.get(key, EVERY_SITE) not in allowed:
            known = ", ".join(f"`{name}`" for name in allowed)
            yield Problem((*path, key), shown(row[key]), known, nearest(row[key], names))
    if row.get("from", EVERY_SITE) == row.get("to") != EVERY_SITE:
        yield Problem((*path, "to"), shown(row["to"]), "another site than `from`")


_ROUTE = {"from", "to", "over"}


def _routes_lead_to_their_ends(values: Values) -> Iterator[Problem]:
    names = _names(values)
    rows = [(path, row) for path, row in _rows(values, "route") if names and row.keys() >= _ROUTE]
    faults = [problem for path, row in rows if (problem := _fault_of_route(path, row, names))]
    yield from faults
    over = {(row["from"], row["to"]): row["over"] for _, row in rows}
    for path, row in rows if not faults else ():
        way = [row["from"]]
        while way[-1] != row["to"]:
            way.append(over.get((way[-1], row["to"]), row["to"]))
            if way[-1] in way[:-1]:
                yield Problem(
                    (*path, "over"), " to ".join(way), f"a site from which packets reach {row['to']}"
                )
                return  # one site of a circle shows it


def _fault_of_route(path: KeyPath, row: Mapping[str, Any], names: Sequence[str]) -> Problem | None:
    ends = [row["from"], row["to"]]
    for key, others in (("from", []), ("to", ends[:1]), ("over", ends)):
        allowed = [name for name in names if name not in others]
        if row[key] not in allowed:
            known = ", ".join(f"`{name}`" for name in allowed)
            return Problem((*path, key), shown(row[key]), known, nearest(row[key], allowed))
    return None


def _who_rebinds_has_a_nat(values: Values) -> Iterator[Problem]:
    behind = [site["name"] for site in values["site"] if site.get("nat") and site.get("name") is not None]
    for path, row in _rows(values, "rebind") if _names(values) else []:
        if row.get("site") is not None and row["site"] not in behind:
            known = ", ".join(f"`{name}`" for name in behind) or "a site with `nat = true`; none has it"
            yield Problem((*path, "site"), shown(row["site"]), known, nearest(row["site"], behind))


def _every_pair_has_a_rate_and_a_delay(values: Values) -> Iterator[Problem]:
    layers = _layers(values, _names(values))
    for key in ("rate_mbps", "delay_ms"):
        for (a, b), rows in layers.items():
            if all(key in row and row[key] is None for _, row in rows):
                yield Problem(("default", key), f"nothing for {a} to {b}", words(keys(ConditionsTable)[key]))
                break  # one pair shows it; the others lack the same


def _jitter_within_delays(values: Values) -> Iterator[Problem]:
    """A delay cannot wander below zero: as the file has it, and after each event."""
    layers = _layers(values, _names(values))
    found: dict[KeyPath, Problem] = {}  # one pair shows it; the others have it from the same table
    for pair, rows in layers.items():
        if problem := _jitter_above_delay(rows, pair):
            found.setdefault(problem.path, problem)
    for path, row in _rows(values, "event"):
        for pair in _pairs(row, _names(values)):
            problem = _jitter_above_delay([*layers[pair], (path, row)], pair)
            if problem and problem.path[:2] == path:
                found.setdefault(problem.path, problem)
    yield from found.values()


def _jitter_above_delay(layers: Layers, pair: Pair) -> Problem | None:
    """At the last table that has a say in it."""
    value, at = {"jitter_ms": 0.0, "delay_ms": 0.0}, KeyPath()
    for path, row in layers:
        for key in value:
            if key not in row:
                return None
            if row[key] is not None:
                value[key], at = row[key], path
    if value["jitter_ms"] <= value["delay_ms"]:
        return None
    found = f"{value['jitter_ms']:g} from {pair[0]} to {pair[1]}"
    return Problem((*at, "jitter_ms"), found, f"number ≤ {value['delay_ms']:g}, the `delay_ms` there")


RULES: tuple[Rule, ...] = (
    partial(unique_names, key="site"),
    _ends_are_sites,
    _routes_lead_to_their_ends,
    _who_rebinds_has_a_nat,
    partial(change_something, key="link", changing=KEYS),
    partial(change_something, key="event", changing=KEYS),
    _every_pair_has_a_rate_and_a_delay,
    _jitter_within_delays,
)
