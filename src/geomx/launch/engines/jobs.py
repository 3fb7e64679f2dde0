"""The jobs of a run: what each site is to run, with which files. It starts nothing and asks nobody."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from geomx.config import Run
from geomx.config.paths import nearest_file
from geomx.config.tables.sites import GLOBAL, RestartTable, SiteTable, engines
from geomx.errors import ConfigError, Fault
from geomx.launch.engines.contract import HOST, PYTHON, Credentials, Dialled, Job, JobNode
from geomx.launch.environment import RECORDS, job_environment

DESCRIPTION = ".geomx-run.json"  # in the folder where nodes run, so that a codec beside the script is found
SECRET = "secret"
FIRST_PORT, PORTS = 20_000, 10_000  # below those that Linux gives to who dials
MOST_RESTARTS = 3  # within ten minutes, unless the site says
MOST_BYTES = 64 << 20  # of the files that travel


def jobs_of(run: Run, file: Path, credentials: Credentials | None = None) -> list[Job]:
    """What each site of a run is to do, in the order of the file.

    Args:
        run: With sites.
        file: Its description: where it lies, lies the script, or above it.
        credentials: What nodes show each other; None: the jobs are to be looked at and ended, not to be started, which
            any machine may do that has the description alone.

    Raises:
        ConfigError: There are no sites; or, to be started, no script, or more files than can be sent.
    """
    if not run.sites:
        allowed = "one for each party: where its nodes run"
        raise ConfigError(str(file), [Fault("site", "no [[site]]", allowed, "`geomx init` writes them")])
    run, script = with_addresses(run), ""
    shown, files = credentials or Credentials(), {}
    if credentials is not None:
        root, script = _script(run, file)
        files = {**shown.files, **_files(run, root, keys_of(file)), **_description(run)}
    jobs = []
    for site in run.sites:
        nodes = tuple(_nodes(run, site, script, shown.settings))
        own = {name: content for node in nodes for name, content in shown.of_node.get(node.name, {}).items()}
        name = site.party or site.serves[0]
        restart = site.restart or RestartTable(most=0 if run.run.on_loss == "stop" else MOST_RESTARTS)
        jobs.append(Job(run.run.name, name, site, nodes, files | own, 2 * run.limits.stop_s, restart))
    return jobs


def with_addresses(run: Run) -> Run:
    """The run, its servers with addresses: a party's without one has that of its engine, at a port of its own.

    The global servers' and regions' must be given, unless all sites are on this machine.
    """
    known = dict(run.addresses)
    is_here = all(_kind(site) == "local" for site in run.sites)
    for node in [node for node, address in known.items() if not address]:
        if node in run.servers or is_here:
            host = _dialled_at(run, node).host
            known[node] = _unplaced(run, node) if host == HOST else f"{host}:{_port(run, node)}"
    without = [node for node, address in known.items() if not address]
    if without:
        run.address_of(without[0])  # raises, with what to do
    return run.with_addresses(known)


def _port(run: Run, node: str) -> int:
    return FIRST_PORT + zlib.crc32(f"{run.run.name}/{node}".encode()) % PORTS


def _unplaced(run: Run, node: str) -> str:
    """What stands for the address of a server whose machine is chosen when it starts."""
    return f"127.0.0.1:{_port(run, node)}"


def _kind(site: SiteTable) -> str:
    return site.engine.split()[0]


def _dialled_at(run: Run, server: str) -> Dialled:
    """Where a server is reached by nodes of its site."""
    site = _site_of(run, server)
    machines = -(-run.party(server).workers // _each(run, site)) if server in run.servers else 1
    found: Dialled = engines.find(_kind(site)).dialled(site, run.run.name, server, machines)
    return found


def _site_of(run: Run, node: str) -> SiteTable:
    name = GLOBAL if node in run.shard_names else node
    return next(site for site in run.sites if name in (site.party, *site.serves))


def _script(run: Run, file: Path) -> tuple[Path, str]:
    """The folder whose files travel, and the script's path in it."""
    script = run.run.script
    if script is None or not script.is_file():
        found = "nothing" if script is None else f"{script}: no such file"
        hint = "" if script is None else nearest_file(script)
        raise ConfigError(
            str(file), [Fault("run.script", found, "path of the training script that workers run", hint)]
        )
    folder = file.absolute().parent
    root = folder if script.is_relative_to(folder) else script.parent
    return root, script.relative_to(root).as_posix()


def keys_of(file: Path) -> Path:
    """The folder with the keys of a run, beside its description."""
    return file.absolute().with_suffix(".keys")


def _files(run: Run, root: Path, keys: Path) -> dict[str, bytes]:
    """Python's files below the script's folder, and those that `run.files` names; never a key."""

    def fault(found: str, allowed: str, hint: str) -> ConfigError:
        return ConfigError(f"run {run.run.name}", [Fault("run.files", found, allowed, hint)])

    found = set(_code_below(root))
    for pattern in run.run.files:
        try:
            matches = {path for path in root.glob(pattern) if path.is_file() and ".." not in path.parts}
        except (ValueError, NotImplementedError, IndexError):  # `""`, `"/etc"`, `"**x"`
            matches = set()
        matches -= {path for path in matches if keys in path.parents or path == run.run.secret_file}
        if not matches:
            raise fault(pattern, f"a pattern of files below {root}", "it matches none that may travel")
        found |= matches
    size = sum(path.stat().st_size for path in found)
    if size > MOST_BYTES:
        largest = max(found, key=lambda path: path.stat().st_size)
        hint = f"the largest is {largest}: bring data to the sites by other means"
        raise fault(f"{size >> 20} MiB in {len(found)} files", f"{MOST_BYTES >> 20} MiB at most", hint)
    return {f"work/{path.relative_to(root).as_posix()}": path.read_bytes() for path in sorted(found)}


def _code_below(folder: Path) -> Iterator[Path]:
    """`*.py`, but for what lies in hidden folders and virtual environments."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith((".", "__pycache__")):
            if not path.is_symlink() and not (path / "pyvenv.cfg").exists():
                yield from _code_below(path)
        elif path.suffix == ".py" and path.is_file():
            yield path


def _description(run: Run) -> dict[str, bytes]:
    """The run's description as each machine has it: with paths of its own, and no sites."""
    data = run.as_dict()
    for key in ("script", "arguments", "files"):
        data["run"].pop(key, None)
    data["run"]["secret_file"] = f"../{SECRET}"
    data["site"] = []
    return {f"work/{DESCRIPTION}": json.dumps(data, indent=1).encode()}


def _nodes(
    run: Run, site: SiteTable, script: str, settings: Mapping[str, tuple[str, ...]]
) -> Iterator[JobNode]:
    geomx = (PYTHON, "-m", "geomx")
    environment = {RECORDS: "../records"}

    def server(name: str, *role: str) -> JobNode:
        return JobNode(
            name,
            (*geomx, "serve", DESCRIPTION, *role, *_places(run, name), *settings.get(name, ())),
            serves=True,
            vital=run.tree.is_shard(name) and not run.is_durable,
            environment=environment,
            listens=(run.listen_address_of(name),),
            dials=_dialled(run, name),
            datagrams=run.edge_below(name).channel.split()[0] != "tcp",
        )

    for name in site.serves:
        if name == GLOBAL:
            for shard, node in enumerate(run.shard_names):
                yield server(node, "--role", "global", "--shard", str(shard))
        else:
            yield server(name, "--role", "region", "--region", name)
    if not site.party:
        return
    party, each = run.party(site.party), _each(run, site)
    yield server(party.name, "--role", "local", "--party", party.name)
    moved = [word for word in _places(run, party.name) if HOST in word]
    port = run.address_of(party.name).rpartition(":")[2]
    for rank, name in enumerate(party.worker_names):
        place = ("--party", party.name, "--rank", str(rank), *moved, *settings.get(name, ()))
        job = {}
        if party.inside == "collective":
            job = job_environment(rank, party.workers, int(port) + 1)
            job |= {"LOCAL_RANK": str(rank % each), "LOCAL_WORLD_SIZE": str(each)}
            job |= {"MASTER_ADDR": _dialled_at(run, party.name).host}
        yield JobNode(
            name,
            (*geomx, "worker", DESCRIPTION, *place, "--", PYTHON, script, *run.run.arguments),
            machine=rank // each,
            environment=environment | job,
            dials=_dialled(run, name),
        )


def _places(run: Run, server: str) -> tuple[str, ...]:
    """Settings that say where a server listens, or is reached, as far as only its site knows."""
    dialled, address = _dialled_at(run, server), run.address_of(server)
    port, words = address.rpartition(":")[2], []
    table = f"{'party' if server in run.servers else 'region'}.{server}"
    if dialled.host == HOST and address == _unplaced(run, server):
        words.append(f"{table}.address={HOST}:{port}")
    if dialled.listen and run.listen_address_of(server) == address:
        listen = f"{dialled.listen}:{port}"
        if server in run.shard_names:
            listens = [
                [f"{dialled.listen}:{each.rpartition(':')[2]}" for each in run.addresses_of(n)]
                for n in run.shard_names
            ]
            words.append(f"global.listen={json.dumps([of if len(of) > 1 else of[0] for of in listens])}")
        else:
            words.append(f"{table}.listen={listen}")
    return tuple(words)


def _each(run: Run, site: SiteTable) -> int:
    """How many workers a machine of a party's site has."""
    machines = engines.find(_kind(site)).machines(site)
    return site.workers_each or -(-run.party(site.party).workers // machines)


def _dialled(run: Run, node: str) -> tuple[str, ...]:
    """The addresses that a node dials, of those that are there before the run is."""
    if run.tree.is_shard(node):
        return ()
    parents = (each for each in run.tree.parents(node) if _kind(_site_of(run, each)) != "kubernetes")
    return tuple(map(run.address_of, parents))


def find(jobs: Sequence[Job], node: str) -> int:
    """Which job has a node; raises `ConfigError`."""
    for index, job in enumerate(jobs):
        if any(each.name == node for each in job.nodes):
            return index
    names = ", ".join(each.name for job in jobs for each in job.nodes)
    raise ConfigError("the command line", [Fault("NODE", node, names)])
