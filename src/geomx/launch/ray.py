"""Nodes as actors of a Ray cluster: what `geomx.launch.engines.ray` calls on a machine of the cluster.

    python -m geomx.launch.ray VERB ADDRESS NAMESPACE [WORDS]      facts as JSON on stdin and stdout

Each node is a detached actor of its own name, in a bundle of one placement group. The actor keeps the node's process;
where that was killed, or lost the others, the actor ends itself, and Ray starts it again, here or elsewhere. So does
Ray where a machine is lost. What a node prints is in Ray's logs of its actor, too.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from cryptography import x509
from ray.util.placement_group import get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from ray.util.state import list_actors

from geomx.launch.engines.contract import CHUNK, file_name
from geomx.launch.engines.keeper import LOST_STATUS, die_with
from geomx.launch.engines.machines import SETUP_FAILED
from geomx.launch.engines.on_machine import Refused

GROUP = "geomx"
ASK_S, PLACED_S = 10.0, 30.0
REVOKED = "tls/revoked.pem"
STATES = {
    "PENDING_CREATION": "starting",
    "DEPENDENCIES_UNREADY": "starting",
    "RESTARTING": "waiting",
    "DEAD": "failed",
}


class Node:
    """The actor of one node.

    `files`: by path, as in a job's folder anywhere. `nodes`: all of the party. `server`: whose host is `{HOST}`.
    `setup`: shell commands before the process.
    """

    def __init__(
        self,
        node: Mapping[str, Any],
        files: Mapping[str, bytes],
        nodes: Sequence[str],
        server: str,
        setup: Sequence[str],
        namespace: str,
    ) -> None:
        self._node, self._since = node, time.time()
        self._folder = _folder_of(namespace, node["name"])
        self.send({name: content for name, content in files.items() if name != REVOKED})
        self._take_revoked(files.get(REVOKED), [name for name in nodes if name != node["name"]], namespace)
        host = ray.util.get_node_ip_address()
        if server and server != node["name"]:
            host = ray.get(ray.get_actor(server, namespace).host.remote())
        words = [
            sys.executable if word == "PYTHON" else word.replace("{HOST}", host) for word in node["argv"]
        ]
        given = {name: value.replace("{HOST}", host) for name, value in node["environment"].items()}
        actor = os.getpid()
        script = "\n".join([*(f"{line} || exit {SETUP_FAILED}" for line in setup), 'exec "$@"'])
        self._process = subprocess.Popen(
            ["sh", "-c", script, "sh", *words],
            cwd=self._folder / "work",
            env={**os.environ, "PYTHONUNBUFFERED": "1", **given},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: die_with(actor),  # noqa: PLW1509 (nothing is imported in it)
        )
        self._is_stopping = False
        threading.Thread(target=self._keep, daemon=True).start()

    def _take_revoked(self, first: bytes | None, others: Sequence[str], namespace: str) -> None:
        """The list of revoked certificates: the newest that is here or that another node has, else the job's."""
        if first is None or (self._folder / REVOKED).exists():
            return
        lists = [_asked(namespace, other, "read", REVOKED, 0) for other in others]
        self.send({REVOKED: max([first, *filter(None, lists)], key=_listed_at)})

    def _keep(self) -> None:
        """Show what the process writes, until it ends; where it is to begin again, end this actor."""
        assert self._process.stdout is not None
        with (self._folder / "logs" / file_name(self._node["name"])).open("ab", buffering=0) as log:
            for line in self._process.stdout:
                log.write(line)
                sys.stdout.buffer.write(line)
                sys.stdout.flush()
        status = self._process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what it has left behind
        if (status < 0 or status == LOST_STATUS) and not self._is_stopping:
            os._exit(1)
        self._since = time.time()

    def host(self) -> str:
        """Where it runs."""
        return str(ray.util.get_node_ip_address())

    def state(self) -> dict[str, Any]:
        """As a keeper's of a machine."""
        status = self._process.poll()
        found = "running" if status is None else "failed" if status else "ended"
        how = f"ended with status {status}" if status else ""
        return {
            "state": found,
            "how": how,
            "since": self._since,
            "host": self.host(),
            "pid": self._process.pid,
        }

    def read(self, file: str, offset: int) -> bytes | None:
        """Up to `CHUNK` bytes of a file of its folder, from an offset; a negative one counts from its end."""
        path = self._folder / file
        return path.read_bytes()[offset:][:CHUNK] if path.exists() else None

    def send(self, files: Mapping[str, bytes]) -> None:
        """Put files in place, each whole, for their owner alone."""
        os.umask(0o077)
        for name, content in files.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f"{path.name}.new")
            new.write_bytes(content)
            new.replace(path)

    def stop(self, within_s: float) -> None:
        """End the process, by force behind `within_s`, and remove its files."""
        self._is_stopping = True
        for number in (signal.SIGINT, signal.SIGKILL):
            if self._process.poll() is None:
                os.killpg(self._process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(within_s)
        shutil.rmtree(self._folder, ignore_errors=True)


def _listed_at(content: bytes) -> float:
    """When a list of revoked certificates was signed."""
    return x509.load_pem_x509_crl(content).last_update_utc.timestamp()


def _folder_of(namespace: str, node: str) -> Path:
    """The same for who is started again on this machine, so that its records go on."""
    os.umask(0o077)
    folder = Path(tempfile.gettempdir(), f"{namespace}-{file_name(node)}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise Refused(f"{folder} belongs to somebody else")
    for name in ("work", "records", "logs"):
        (folder / name).mkdir(exist_ok=True)
    return folder


def start(namespace: str) -> str:
    """Make the placement group and the actors of a job (JSON on stdin)."""
    job = json.load(sys.stdin)
    files = {name: base64.b64decode(content) for name, content in job["files"].items()}
    nodes = job["nodes"]
    bundles = [node["resources"] for node in nodes]
    group = placement_group(bundles, strategy="PACK", name=GROUP, lifetime="detached")
    if not group.wait(PLACED_S):
        remove_placement_group(group)
        asked = {key: sum(bundle.get(key, 0) for bundle in bundles) for key in ("CPU", "GPU")}
        raise Refused(f"the cluster has no room for {asked}: it has {ray.available_resources()}")
    server = next((node["name"] for node in nodes if node["party"]), "")
    for index, node in enumerate(nodes):
        own = {name: files[name] for name in node["files"]}
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        asked = node["resources"]
        ray.remote(Node).options(
            name=node["name"],
            lifetime="detached",
            max_restarts=node["most"],
            max_concurrency=4,
            num_cpus=asked["CPU"],
            num_gpus=asked.get("GPU", 0),
            scheduling_strategy=where,
        ).remote(node, own, [each["name"] for each in nodes], server, job["setup"], namespace)
    return ""


def state(namespace: str) -> dict[str, Any]:
    """What became of each node, by name; of a job that was stopped, or never started, nothing."""
    found: dict[str, Any] = {}
    try:
        get_placement_group(GROUP)
    except ValueError:
        return found
    for actor in list_actors(filters=[("ray_namespace", "=", namespace)], detail=True, limit=10_000):
        told: dict[str, Any] = {
            "state": STATES.get(actor.state, "running"),
            "how": "",
            "since": None,
            "host": "",
        }
        if actor.state == "ALIVE":
            told |= _asked(namespace, actor.name, "state") or {}
        elif actor.state == "DEAD":
            cause = (actor.death_cause or {}).get("actor_died_error_context", {}) or {}
            told["how"] = str(cause.get("error_message", "its actor is dead")).splitlines()[0]
        if actor.name not in found or actor.state != "DEAD":
            found[actor.name] = {**told, "restarts": int(actor.num_restarts or 0)}
    return found


def _asked(namespace: str, node: str, method: str, *arguments: Any) -> Any:
    """What a node's actor answers; None: it is not there, or does not answer."""
    try:
        return ray.get(getattr(ray.get_actor(node, namespace), method).remote(*arguments), timeout=ASK_S)
    except (ValueError, ray.exceptions.RayError):
        return None


def read(namespace: str, file: str, offsets: str) -> dict[str, str]:
    """Bytes of each node's log or records (`offsets`: by node, as JSON), in base64."""
    ending = ".jsonl" if file == "records" else ""
    found = {
        node: _asked(namespace, node, "read", f"{file}/{file_name(node)}{ending}", at)
        for node, at in json.loads(offsets).items()
    }
    return {
        node: base64.b64encode(content).decode() for node, content in found.items() if content is not None
    }


def send(namespace: str) -> str:
    """Put files (JSON on stdin) in place for every node."""
    files = {name: base64.b64decode(content) for name, content in json.load(sys.stdin).items()}
    for node in state(namespace):
        _asked(namespace, node, "send", files)
    return ""


def stop(namespace: str, within_s: str) -> str:
    """End all nodes, workers first, and give their resources back."""
    found = state(namespace)
    workers = [name for name in found if "/" in name and not name.startswith("global/")]
    for names in (workers, [name for name in found if name not in workers]):
        actors = []
        for name in names:
            with suppress(ValueError):
                actors.append(ray.get_actor(name, namespace))
        ends = [actor.stop.remote(float(within_s) / 2) for actor in actors]
        ray.wait(ends, num_returns=len(ends), timeout=float(within_s) + ASK_S) if ends else None
        for actor in actors:
            ray.kill(actor, no_restart=True)
    with suppress(ValueError):
        remove_placement_group(get_placement_group(GROUP))
    return ""


def probe(_: str) -> dict[str, Any]:
    """What the cluster has."""
    return {"resources": ray.cluster_resources(), "ray": ray.__version__}


VERBS: Any = {"probe": probe, "start": start, "state": state, "read": read, "send": send, "stop": stop}


def main() -> None:
    """Do what the command line says: a verb, the cluster's address, a namespace, and the verb's words."""
    verb, address, namespace, *words = sys.argv[1:]
    if address != "auto":
        os.environ["RAY_ADDRESS"] = address  # for what asks without saying whom
    try:
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="error")
        print(json.dumps(VERBS[verb](namespace, *words)))
    except (Refused, ConnectionError, ray.exceptions.RayError) as error:
        print(f"Ray: {error}".strip().splitlines()[0], file=sys.stderr)
        raise SystemExit(3) from None


if __name__ == "__main__":
    main()
