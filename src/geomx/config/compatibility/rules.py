"""What a run's keys must be to each other, as `checking.py` asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from geomx.config.addresses import each_of, is_loopback, place_of
from geomx.config.compatibility.overlay_rules import keys_of_overlays
from geomx.config.link_changes import KEYS
from geomx.config.reading.checking import Rule, Values, change_something
from geomx.config.reading.problems import KeyPath, Problem, dotted, shown
from geomx.config.tables import BelowTable, RunTable, StoreTable, SyncTable
from geomx.config.tables.sites import GLOBAL, SiteTable
from geomx.config.value_types import MOST_WORKERS, WEEK_S
from geomx.errors import nearest
from geomx.tree import GUESTS

HEARTBEATS_MISSED = 3
ON_LOSS_NEEDED = {
    "wait_s": ("wait", "continue"),
    "least_parties": ("continue",),
    "least_workers": ("continue",),
}
TLS_FILES = ("certificate", "key", "authority")


def _servers(values: Values) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """The tables of all servers but the shards, and where they stand."""
    for key in ("party", "region"):
        yield from (((key, index), table) for index, table in enumerate(values[key]))


def _names_of_servers(values: Values) -> Iterator[Problem]:
    """No two servers have one name, or names that files of one folder cannot have."""
    first: dict[str, tuple[str, str]] = {}
    for path, table in _servers(values):
        if (name := table.get("name")) is None:
            continue
        other, called = first.setdefault(name.lower(), (dotted(path), name))
        if other != dotted(path):
            alike = f" `{called}` but for upper and lower case, which some disks ignore"
            where = f"it is the name of {other}{'' if called == name else alike}"
            yield Problem((*path, "name"), shown(name), "a name that no other party or region has", where)


def _parents(values: Values) -> Iterator[Problem]:
    """Servers hang on regions, each of which has something below, and none itself."""
    regions = [region.get("name") for region in values["region"]]
    if None in regions:
        return
    parents = {name: region.get("parent", "") for name, region in zip(regions, values["region"], strict=True)}
    for path, table in _servers(values):
        parent = table.get("parent") or ""
        if parent and parent not in regions:
            allowed = ", ".join(f"`{name}`" for name in regions) or "nothing, since there is no [[region]]"
            yield Problem((*path, "parent"), f"no region `{parent}`", allowed, nearest(parent, regions))
    used = {table.get("parent") for _, table in _servers(values)}
    for index, name in enumerate(regions):
        path = ("region", index)
        if name not in used and None not in used:
            hint = f'give a party `parent = "{name}"`, or leave the region out'
            yield Problem(
                (*path, "name"), f"{shown(name)}, below which nothing hangs", "a region with parties", hint
            )
        above, seen = parents[name], [name]
        while above in parents and above not in seen:
            seen.append(above)
            above = parents[above]
        if above == name:
            yield Problem((*path, "parent"), " → ".join([*seen, name]), "a parent that does not hang on it")


def _one_address_a_shard(values: Values) -> Iterator[Problem]:
    shards = values["run"].get("shards")
    for key in ("addresses", "listen"):
        given = values["global"].get(key)
        if shards and given and len(given) != shards:
            yield Problem(("global", key), f"{len(given)} of them", f"{shards}, one for each of run.shards")


def _places_of_shards(values: Values) -> Iterator[Problem]:
    """Where others stand by, they take over by what is in the store, and listen somewhere as well."""
    addresses, listen = values["global"].get("addresses") or (), values["global"].get("listen") or ()
    for index, given in enumerate(addresses):
        path, several = ("global", "addresses", index), each_of([given])
        if len(several) > 1 and values["store"].get("url") == "":
            yield Problem(path, f"{len(several)} of them", "one, or store.url, from which another takes over")
        if index < len(listen) and len(each_of([listen[index]])) != len(several):
            allowed = f"{len(several)}, one for each of `addresses`"
            yield Problem(("global", "listen", index), f"{len(each_of([listen[index]]))} of them", allowed)


def _listeners_have_addresses(values: Values) -> Iterator[Problem]:
    tables: list[tuple[KeyPath, dict[str, Any], str]] = [
        (("global", "listen"), values["global"], "addresses")
    ]
    tables += [((*path, "listen"), table, "address") for path, table in _servers(values)]
    for path, table, address in tables:
        if table.get("listen") and address in table and not table[address]:
            hint = f"give `{address}`, which others dial"
            yield Problem(path, shown(table["listen"]), f"only together with `{address}`", hint)


def _unique_addresses(values: Values) -> Iterator[Problem]:
    shards = enumerate(values["global"].get("addresses") or ())
    places: list[tuple[KeyPath, str, str]] = [
        *(
            (("global", "addresses", i), f"global/{i}", address)
            for i, several in shards
            for address in each_of([several])
        ),
        *(((*path, "address"), dotted(path), table.get("address") or "") for path, table in _servers(values)),
        *(
            ((*path, "address_wan"), f"{dotted(path)}, beside it", table.get("address_wan") or "")
            for path, table in _servers(values)
        ),
        *(
            ((*path, "worker_addresses", rank), f"{dotted(path)}, worker {rank}", address)
            for path, table in _servers(values)
            for rank, address in enumerate(table.get("worker_addresses") or ())
        ),
    ]
    first: dict[str, str] = {}
    for path, owner, address in places:
        place = place_of(address) if address else ""
        if place in first:
            yield Problem(
                path, shown(address), "an address of its own", f"it is the address of {first[place]}"
            )
        elif place:
            first[place] = owner


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
    tables: list[tuple[KeyPath, dict[str, Any]]] = [(("wan",), values["wan"]), (("lan",), values["lan"])]
    defaults = BelowTable().model_dump()
    for index, region in enumerate(values["region"]):
        if isinstance(below := region.get("below"), Mapping):
            tables.append((("region", index, "below"), {**defaults, **below}))
    for path, table in tables:
        heartbeat_s, timeout_s = table.get("heartbeat_s"), table.get("timeout_s")
        if heartbeat_s and timeout_s and timeout_s < HEARTBEATS_MISSED * heartbeat_s:
            least = HEARTBEATS_MISSED * heartbeat_s
            allowed = f"number ≥ {least:g}, which is {HEARTBEATS_MISSED} × {dotted(path)}.heartbeat_s"
            yield Problem((*path, "timeout_s"), f"{timeout_s:g}", allowed)


def _losses_where_they_count(values: Values) -> Iterator[Problem]:
    """How long is waited, and with how many left, where somebody waits; and not for more than there are."""
    run = values["run"]
    if (on_loss := run.get("on_loss")) is None:
        return
    for key, kinds in ON_LOSS_NEEDED.items():
        default = RunTable.model_fields[key].default
        if run.get(key, default) != default and on_loss not in kinds:
            allowed = f"only with run.on_loss = {' or '.join(map(shown, kinds))}"
            hint = f"run.on_loss is {shown(on_loss)}: it has no effect"
            yield Problem(("run", key), shown(run[key]), allowed, hint)
    workers = [party.get("workers") for party in values["party"]]
    there = {"parties": len(workers), "workers": None if None in workers else sum(workers)}
    for what, count in there.items():
        least = run.get(f"least_{what}")
        if on_loss == "continue" and count and least is not None and least > count:
            yield Problem(
                ("run", f"least_{what}"), shown(least), f"{count} or fewer: the run has no more {what}"
            )


def _keys_of_stores(values: Values) -> Iterator[Problem]:
    """How a log is kept, where one is; and when a quorum is waited for, where there is one."""
    run, store, sync = values["run"], values["store"], values["sync"]
    several = any(len(each_of([given])) > 1 for given in values["global"].get("addresses") or ())
    is_kept = bool(store.get("url") or run.get("replicas"))
    for table, key, counts, where in (
        ("store", "every_s", is_kept, "only with store.url or run.replicas"),
        ("store", "keep_mb", is_kept, "only with store.url or run.replicas"),
        ("store", "lease_s", several, "only where a global server has several addresses"),
        ("sync", "grace_s", sync.get("quorum", 1.0) < 1.0, "only with sync.quorum below 1"),
    ):
        default = (StoreTable if table == "store" else SyncTable).model_fields[key].default
        if not counts and values[table].get(key, default) != default:
            yield Problem((table, key), shown(values[table][key]), where, "it has no effect")
    lease_s, wait_s = store.get("lease_s", 0.0), run.get("wait_s", WEEK_S)
    if several and lease_s >= wait_s:
        yield Problem(
            ("store", "lease_s"), shown(lease_s), f"less than run.wait_s = {wait_s:g}", "nobody would wait"
        )


def _guests(values: Values) -> Iterator[Problem]:
    """Parties that come later have the places that the others have kept for them."""
    is_open, on_loss = values["run"].get("open"), values["run"].get("on_loss")
    if is_open and on_loss not in ("continue", None):
        yield Problem(("run", "open"), "true", "only with run.on_loss = `continue`", "parties come and go")
    for index, party in enumerate(values["party"] if is_open else ()):
        places = len(GUESTS.get(party.get("name") or "", ()))
        if places and (party.get("workers") or 0) > places:
            allowed = f"{places} or fewer, of a party that comes later"
            yield Problem(("party", index, "workers"), f"{party['workers']}", allowed)
        if places and party.get("parent"):
            yield Problem(
                ("party", index, "parent"), shown(party["parent"]), "nothing, of a party that comes later"
            )


def _whole_tls(values: Values) -> Iterator[Problem]:
    tls = values["tls"]
    given = [key for key in TLS_FILES if tls.get(key)]
    for key in TLS_FILES:
        if given and key in tls and not tls[key]:
            yield Problem(("tls", key), "nothing", f"path of a file, since tls.{given[0]} is given")
    if tls.get("revoked") and not given:
        yield Problem(
            ("tls", "revoked"), shown(str(tls["revoked"])), "only together with the three other files"
        )


def _proof_beyond_loopback(values: Values) -> Iterator[Problem]:
    """Whoever can reach a port would be a member of the run. Where there are sites, `geomx up` makes a secret."""
    if values["site"]:
        return
    if values["run"].get("secret_file", "") is not None or values["tls"].get("certificate", "") is not None:
        return
    table = values["global"]
    key = "listen" if table.get("listen") else "addresses"
    listening: list[tuple[KeyPath, str]] = [
        (("global", key, i), at) for i, given in enumerate(table.get(key) or ()) for at in each_of([given])
    ]
    for path, server in _servers(values):
        key = "listen" if server.get("listen") else "address"
        listening.append(((*path, key), server.get(key) or ""))
        key = "listen_wan" if server.get("listen_wan") else "address_wan"
        listening.append(((*path, key), server.get(key) or ""))
        every = enumerate(server.get("worker_addresses") or ())
        listening += [((*path, "worker_addresses", rank), address) for rank, address in every]
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
    parties = {table["name"]: table for _, table in _servers(values) if "name" in table}
    if len(parties) < len(values["party"]) + len(values["region"]):
        return
    above = {region["name"]: region.get("below") for region in values["region"]}
    for index, event in enumerate(values["event"]):
        name, path = event.get("party"), ("event", index, "party")
        if name is None:
            continue
        if name not in parties:
            allowed = ", ".join(f"`{known}`" for known in parties)
            yield Problem(path, f"no party `{name}`", allowed, nearest(name, parties))
        elif not _may_have_link(parties[name], above.get(parties[name].get("parent"), values["wan"])):
            found = f"{shown(name)}, which has no emulated link"
            hint = "set wan.link, or the party's link; `link = {}` has no limits before its first event"
            yield Problem(path, found, "a party with an emulated link", hint)


def _may_have_link(server: dict[str, Any], above: Any) -> bool:
    """Whether a server's edge to its parent is emulated, as far as is known. `above`: the table of that edge."""
    return not isinstance(above, Mapping) or any(
        table.get("link", "unknown") is not None for table in (server, above)
    )


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


def _durable(values: Values) -> Iterator[Problem]:
    """Others must be awaited, or go on, while a global server is started again."""
    store, on_loss = values["store"], values["run"].get("on_loss")
    if values["run"].get("replicas"):
        if store.get("url"):
            yield Problem(("run", "replicas"), "1, with store.url", "one of the two")
        if values["run"].get("shards") == 1:
            yield Problem(
                ("run", "replicas"), "1 with run.shards = 1", "with several global servers", "or store.url"
            )
        if on_loss == "stop":
            yield Problem(("run", "replicas"), "1", "only with run.on_loss = `wait` or `continue`")
    if store.get("url") and on_loss == "stop":
        allowed = "only with run.on_loss = `wait` or `continue`"
        yield Problem(
            ("store", "url"), shown(store["url"]), allowed, "else nobody waits for who is started again"
        )


def _sites(values: Values) -> Iterator[Problem]:
    """Each node has one place, where there are sites."""
    placed: dict[str, str] = {}  # what runs where: each party, region, `global`
    servers = [str(row.get("name")) for _, row in _servers(values)]
    parties = [str(row.get("name")) for row in values["party"]]
    if not values["site"] or str(None) in servers:
        return
    for index, site in enumerate(values["site"]):
        path: KeyPath = ("site", index)
        wanted: list[tuple[KeyPath, str, list[str]]] = []
        if party := site.get("party"):
            wanted.append(((*path, "party"), party, parties))
        for place, name in enumerate(site.get("serves") or ()):
            above = [GLOBAL, *(name for name in servers if name not in parties)]
            wanted.append(((*path, "serves", place), name, above))
        if not wanted and {"party", "serves"} <= site.keys():
            yield Problem((*path, "party"), "nothing", "a party, or `serves`", "nothing would run here")
        for key, name, names in wanted:
            if name not in names:
                yield Problem(
                    key, shown(name), ", ".join(f"`{each}`" for each in names), nearest(name, names)
                )
            elif placed.setdefault(name, dotted(path)) != dotted(path):
                yield Problem(key, shown(name), "one site for each", f"{placed[name]} has it already")
        yield from _hosts_of_site(values, site, path)
        url, kind = str(values["store"].get("url", "")), str(site.get("engine", "")).split(" ")[0]
        if GLOBAL in (site.get("serves") or ()) and kind == "kubernetes" and url.startswith("file:"):
            why = f"site[{index}] is on Kubernetes, and a pod's folder goes with it"
            yield Problem(("store", "url"), shown(url), "a bucket, or run.replicas", why)
    for name in [GLOBAL, *servers]:
        if name not in placed and all({"party", "serves"} <= site.keys() for site in values["site"]):
            wanted_key = "party" if name in parties else "serves"
            last: KeyPath = ("site", len(values["site"]) - 1, wanted_key)
            yield Problem(last, f"no site for `{name}`", f"one [[site]] with it as its `{wanted_key}`")


def _hosts_of_site(values: Values, site: dict[str, Any], path: KeyPath) -> Iterator[Problem]:
    """Machines, and whether a party's workers fit onto them; restarts only where the run goes on meanwhile."""
    engine, hosts, each = (site.get(key) for key in ("engine", "hosts", "workers_each"))
    workers = {party.get("name"): party.get("workers") for party in values["party"]}.get(site.get("party"))
    kind = None if engine is None else engine.split()[0]  # of others, `hosts` are where their engine is asked
    if kind == "ssh" and hosts is not None and not hosts:
        yield Problem((*path, "hosts"), "nothing", "one machine or more, as `ssh` knows them")
    if kind == "ssh" and hosts and each and workers and each * len(hosts) < workers:
        allowed = f"{-(-workers // len(hosts))} or more: {workers} workers on {len(hosts)} machines"
        yield Problem((*path, "workers_each"), shown(each), allowed)
    for key, why in WITHOUT_EFFECT.get(str(kind), {}).items():
        if site.get(key) and site[key] != SiteTable.model_fields[key].default:
            yield Problem((*path, key), shown(site[key]), "only with other engines", why)
    if kind in ("slurm", "ray") and hosts and len(hosts) > 1:
        yield Problem((*path, "hosts"), shown(hosts), "one at most", "it is where the engine is asked")
    if site.get("restart") and values["run"].get("on_loss") == "stop":
        allowed = "only with run.on_loss = `wait` or `continue`"
        yield Problem((*path, "restart"), "a table", allowed, "else the run ends with each of its nodes")


PLACED = "the cluster places the nodes"
WITHOUT_EFFECT = {
    "local": {"hosts": "`local` is this machine", "workers_each": "`local` is this machine"},
    "ray": {"workers_each": PLACED, "folder": PLACED},
    "kubernetes": {"hosts": "`kubectl` asks the cluster", "workers_each": PLACED, "folder": PLACED},
}


RULES: tuple[Rule, ...] = (
    _names_of_servers,
    _parents,
    _workers_altogether,
    _one_address_a_shard,
    _listeners_have_addresses,
    _places_of_shards,
    _unique_addresses,
    _sizes_where_they_count,
    _patience,
    _losses_where_they_count,
    _durable,
    _keys_of_stores,
    keys_of_overlays,
    _guests,
    _whole_tls,
    _proof_beyond_loopback,
    _arguments_for_a_script,
    _parties_of_events,
    partial(change_something, key="event", changing=KEYS),
    _events_in_order,
    _cuts_heal,
    _sites,
)
