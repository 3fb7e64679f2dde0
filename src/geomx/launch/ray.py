"""Nodes as actors of a Ray cluster: what `geomx.launch.engines.ray` calls on a machine of the cluster.

    python -m geomx.launch.ray VERB NAMESPACE [WORDS]      facts as JSON on stdin and stdout

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
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from ray.util.state import list_actors

from geomx.launch.engines.contract import file_name
from geomx.launch.engines.keeper import LOST_STATUS
from geomx.launch.engines.on_machine import Refused

GROUP = "geomx"
ASK_S, PLACED_S, STOPPED_S = 10.0, 30.0, 60.0
STATES = {
    "PENDING_CREATION": "starting",
    "DEPENDENCIES_UNREADY": "starting",
    "RESTARTING": "waiting",
    "DEAD": "failed",
}


class Node:
    """The actor of one node. `files`: by path, as in a job's folder anywhere. `server`: whose host is `{HOST}`."""

    def __init__(
        self, node: Mapping[str, Any], files: Mapping[str, bytes], server: str, namespace: str
    ) -> None:
        self._node, self._since = node, time.time()
        self._folder = _folder_of(namespace, node["name"])
        self.send(files)
        host = ray.util.get_node_ip_address()
        if server and server != node["name"]:
            host = ray.get(ray.get_actor(server, namespace).host.remote())
        words = [
            sys.executable if word == "PYTHON" else word.replace("{HOST}", host) for word in node["argv"]
        ]
        given = {name: value.replace("{HOST}", host) for name, value in node["environment"].items()}
        self._process = subprocess.Popen(
            words,
            cwd=self._folder / "work",
            env={**os.environ, "PYTHONUNBUFFERED": "1", **given},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._is_stopping = False
        threading.Thread(target=self._keep, daemon=True).start()

    def _keep(self) -> None:
        """Show what the process writes, until it ends; where it is to begin again, end this actor."""
        assert self._process.stdout is not None
        with (self._folder / "logs" / file_name(self._node["name"])).open("ab", buffering=0) as log:
            for line in self._process.stdout:
                log.write(line)
                sys.stdout.buffer.write(line)
                sys.stdout.flush()
        status = self._process.wait()
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

    def read(self, file: str, offset: int) -> bytes:
        """Up to 1 MiB of a file of its folder, from an offset; a negative one counts from its end."""
        path = self._folder / file
        content = path.read_bytes() if path.exists() else b""
        return content[offset:][: 1 << 20]

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
        """End the process, and remove its files."""
        self._is_stopping = True
        for number in (signal.SIGINT, signal.SIGKILL):
            if self._process.poll() is None:
                os.killpg(self._process.pid, number)
                try:
                    self._process.wait(within_s)
                except subprocess.TimeoutExpired:
                    continue
        shutil.rmtree(self._folder, ignore_errors=True)


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
        ).remote(node, own, server, namespace)
    return ""


def state(namespace: str) -> dict[str, Any]:
    """What became of each node, by name."""
    found = {}
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


def read(namespace: str, node: str, file: str, offset: str) -> str:
    """Bytes of a node's file, in base64."""
    return base64.b64encode(_asked(namespace, node, "read", file, int(offset)) or b"").decode()


def send(namespace: str) -> str:
    """Put files (JSON on stdin) in place for every node."""
    files = {name: base64.b64decode(content) for name, content in json.load(sys.stdin).items()}
    for node in state(namespace):
        _asked(namespace, node, "send", files)
    return ""


def stop(namespace: str, within_s: str) -> str:
    """End all nodes, workers first, and give their resources back."""
    names = sorted(state(namespace), key=lambda name: "/" not in name or name.startswith("global/"))
    asked = []
    for name in names:
        try:
            actor = ray.get_actor(name, namespace)
        except ValueError:
            continue
        asked.append(actor)
        actor.stop.remote(float(within_s) / 2)
    for actor in asked:
        with suppress(ray.exceptions.RayError):
            ray.get(actor.stop.remote(float(within_s) / 2), timeout=STOPPED_S)
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
