"""What a run's keys must be to each other, as `checking.py` asks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from geomx.config.addresses import is_loopback, place_of
from geomx.config.checking import Rule, Values, change_something, unique_names
from geomx.config.link_changes import KEYS
from geomx.config.problems import KeyPath, Problem, dotted, shown
from geomx.config.value_types import MOST_WORKERS
from geomx.errors import nearest

HEARTBEATS_MISSED = 3
TLS_FILES = ("certificate", "key", "authority")


def _one_address_a_shard(values: Values) -> Iterator[Problem]:
    shards = values["run"].get("shards")
    for key in ("addresses", "listen"):
        given = values["global"].get(key)
        if shards and given and len(given) != shards:
            yield Problem(("global", key), f"{len(given)} of them", f"{shards}, one for each of run.shards")


def _listeners_have_addresses(values: Values) -> Iterator[Problem]:
    tables: list[tuple[KeyPath, dict[str, Any], str]] = [
        (("global", "listen"), values["global"], "addresses")
    ]
    tables += [(("party", i, "listen"), party, "address") for i, party in enumerate(values["party"])]
    for path, table, address in tables:
        if table.get("listen") and address in table and not table[address]:
            hint = f"give `{address}`, which others dial"
            yield Problem(path, shown(table["listen"]), f"only together with `{address}`", hint)


def _unique_addresses(values: Values) -> Iterator[Problem]:
    shards = enumerate(values["global"].get("addresses") or ())
    parties = enumerate(values["party"])
    places: list[tuple[KeyPath, str, str]] = [
        *((("global", "addresses", i), f"global/{i}", address) for i, address in shards),
        *((("party", i, "address"), f"party[{i}]", party.get("address") or "") for i, party in parties),
    ]
    first: dict[str, str] = {}
    for path, owner, address in places:
        place = place_of(address) if address else ""
        if place and first.setdefault(place, owner) != owner:
            yield Problem(
                path, shown(address), "an address of its own", f"it is the address of {first[place]}"
            )


def _workers_altogether(values: Values) -> Iterator[Problem]:
    """Told at the party that has the most: that is where a slip would be."""
    workers = [party.get("workers") or 0 for party in values["party"]]
    if (total := sum(workers)) > MOST_WORKERS:
        path: KeyPath = ("party", workers.index(max(workers)), "workers")
        yield Problem(path, f"{total} workers in all parties together", f"{MOST_WORKERS} or fewer")


def _sizes_where_they_count(values: Values) -> Iterator[Problem]:
    weight = values["sync"].get("weight")
    for index, party in enumerate(values["party"]):
        path: KeyPath = ("party", index, "dataset_size")
        if weight is None or "dataset_size" not in party:
            continue
        if weight == "dataset_size" and party["dataset_size"] is None:
            yield Problem(path, "nothing", 'integer ≥ 1, since sync.weight = "dataset_size"')
        if weight != "dataset_size" and party["dataset_size"] is not None:
            found, hint = shown(party["dataset_size"]), f"sync.weight is {shown(weight)}: it has no effect"
            yield Problem(path, found, 'only with sync.weight = "dataset_size"', hint)


def _patience(values: Values) -> Iterator[Problem]:
    for tier in ("wan", "lan"):
        heartbeat_s, timeout_s = values[tier].get("heartbeat_s"), values[tier].get("timeout_s")
        if heartbeat_s and timeout_s and timeout_s < HEARTBEATS_MISSED * heartbeat_s:
            least = HEARTBEATS_MISSED * heartbeat_s
            allowed = f"number ≥ {least:g}, which is {HEARTBEATS_MISSED} × {tier}.heartbeat_s"
            yield Problem((tier, "timeout_s"), f"{timeout_s:g}", allowed)


def _whole_tls(values: Values) -> Iterator[Problem]:
    tls = values["tls"]
    given = [key for key in TLS_FILES if tls.get(key)]
    for key in TLS_FILES:
        if given and key in tls and not tls[key]:
            yield Problem(("tls", key), "nothing", f"path of a file, since tls.{given[0]} is given")


def _proof_beyond_loopback(values: Values) -> Iterator[Problem]:
    """Whoever can reach a port would be a member of the run."""
    if values["run"].get("secret_file", "") is not None or values["tls"].get("certificate", "") is not None:
        return
    table = values["global"]
    key = "listen" if table.get("listen") else "addresses"
    listening: list[tuple[KeyPath, str]] = [
        (("global", key, i), at) for i, at in enumerate(table.get(key) or ())
    ]
    for index, party in enumerate(values["party"]):
        key = "listen" if party.get("listen") else "address"
        listening.append((("party", index, key), party.get(key) or ""))
    reached = [(path, address) for path, address in listening if address and not is_loopback(address)]
    for path, address in reached[:1]:
        yield Problem(
            ("run", "secret_file"),
            "nothing",
            f"path of a file, since {dotted(path)} = {shown(address)} can be reached from elsewhere",
            "make one with `geomx secret FILE`, and copy it to every machine; or give [tls]",
        )


def _arguments_for_a_script(values: Values) -> Iterator[Problem]:
    run = values["run"]
    if run.get("arguments") and "script" in run and not run["script"]:
        yield Problem(("run", "arguments"), shown(run["arguments"]), "only together with `script`")


def _parties_of_events(values: Values) -> Iterator[Problem]:
    """Who changes must be there, and have an emulated link."""
    parties = {party["name"]: party for party in values["party"] if "name" in party}
    if len(parties) < len(values["party"]):
        return
    for index, event in enumerate(values["event"]):
        name, path = event.get("party"), ("event", index, "party")
        if name is None:
            continue
        if name not in parties:
            allowed = ", ".join(f"`{known}`" for known in parties)
            yield Problem(path, f"no party `{name}`", allowed, nearest(name, parties))
        elif all(table.get("link", "unknown") is None for table in (parties[name], values["wan"])):
            found = f"{shown(name)}, which has no emulated link"
            hint = "set wan.link, or the party's link; `link = {}` has no limits before its first event"
            yield Problem(path, found, "a party with an emulated link", hint)


def _events_in_order(values: Values) -> Iterator[Problem]:
    """Of one party's events the later one wins: it must be later in the file as well."""
    last: dict[str, float] = {}
    for index, event in enumerate(values["event"]):
        name, at_s = event.get("party"), event.get("at_s")
        if name is None or at_s is None:
            continue
        if at_s < last.setdefault(name, at_s):
            allowed = f"number ≥ {last[name]:g}, as in the event of {name} before it"
            yield Problem(("event", index, "at_s"), shown(at_s), allowed)
        last[name] = max(last[name], at_s)


def _cuts_heal(values: Values) -> Iterator[Problem]:
    """A link that stays cut has no run behind it."""
    healed: set[str] = set()  # parties that a later event gives back their link; "": one that is not known
    problems = []
    for index, event in reversed(list(enumerate(values["event"]))):
        party = event.get("party", "")
        if event.get("cut") and "for_s" in event and event["for_s"] is None and not healed & {"", party}:
            allowed = "number > 0, or a later event of the party with `cut = false`"
            problems.append(Problem(("event", index, "for_s"), "nothing", allowed, "the link would stay cut"))
        if event.get("cut", False) is False and event.get("for_s") is None:
            healed.add(party)
    yield from reversed(problems)


RULES: tuple[Rule, ...] = (
    partial(unique_names, key="party", ignore_case=True),
    _workers_altogether,
    _one_address_a_shard,
    _listeners_have_addresses,
    _unique_addresses,
    _sizes_where_they_count,
    _patience,
    _whole_tls,
    _proof_beyond_loopback,
    _arguments_for_a_script,
    _parties_of_events,
    partial(change_something, key="event", changing=KEYS),
    _events_in_order,
    _cuts_heal,
)
