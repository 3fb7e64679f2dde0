"""The engine `ray`: a party as detached actors of a Ray cluster, in one placement group.

It calls `geomx.launch.ray` on the cluster's head, or on this machine: each call is a process of its own, since a
process can speak to one cluster only. Ray places the nodes, starts them again, and keeps their logs.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from geomx.config.tables.sites import SiteTable
from geomx.launch.engines.contract import HOST, Dialled, FileOf, Job, JobNode, NodeState, SiteError, file_name
from geomx.launch.engines.local import Here
from geomx.launch.engines.machines import NOT_FOUND, SETUP_FAILED, Shell, last_line, state_of
from geomx.launch.engines.ssh import Host


class Ray:
    """Actors of a job. `address`: of the cluster, as Ray takes it, from `hosts[0]`, its head; without hosts, from here.

    `cpus`, `gpus`: of each worker. `config`: of ssh.
    """

    def __init__(
        self, job: Job, *, address: str = "auto", cpus: float = 1.0, gpus: float = 0.0, config: str = ""
    ) -> None:
        self._job, self._address = job, address
        self._shell: Shell = Host(job.site.hosts[0], config) if job.site.hosts else Here()
        self._worker = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
        self._namespace = f"geomx.{job.run}.{job.name}"  # no name has a dot

    @staticmethod
    def machines(site: SiteTable) -> int:
        """See `Engine`."""
        return 1

    @staticmethod
    def dialled(site: SiteTable, run: str, server: str, machines: int) -> Dialled:
        """See `Engine`: where Ray has placed it."""
        return Dialled(HOST)

    def prepare(self) -> Sequence[str]:
        """See `Engine`."""
        try:
            found = self._call("probe")["resources"]
        except SiteError as error:
            return [str(error)]
        asked: dict[str, float] = {}
        for node in self._job.nodes:
            for key, value in self._resources(node).items():
                asked[key] = asked.get(key, 0.0) + value
        return [
            f"{self._shell.name}: the cluster has {found.get(key, 0):g} {key}, and the party needs {value:g}"
            for key, value in asked.items()
            if found.get(key, 0) < value
        ]

    def start(self) -> str:
        """See `Engine`."""
        if self._call("state"):  # which tells of all that was started and not brought down
            raise SiteError(f"{self._shell.name}: its nodes are on the cluster already: `geomx down` first")
        self._call("start", given=json.dumps(self._described()).encode())
        return f"{self._shell.name}: Ray, as actors of the namespace {self._namespace}"

    def state(self) -> Mapping[str, NodeState]:
        """See `Engine`."""
        told = self._call("state")
        return {node.name: state_of(told.get(node.name, {}), "", hosts=True) for node in self._job.nodes}

    def read(self, file: FileOf, offsets: Mapping[str, int]) -> Mapping[str, bytes]:
        """See `Engine`."""
        found = self._call("read", file, json.dumps(dict(offsets)))
        return {node: base64.b64decode(content) for node, content in found.items()}

    def send(self, files: Mapping[str, bytes]) -> None:
        """See `Engine`."""
        self._call("send", given=json.dumps(_encoded(files)).encode())

    def stop(self, purge: bool) -> Sequence[str]:
        """See `Engine`. What scripts have written was in their actors' folders, and goes with them."""
        self._call("stop", str(self._job.stop_s))
        return []

    def bundled(self) -> bytes:
        """See `Engine`: what `geomx.launch.ray start` reads."""
        return json.dumps(self._described()).encode()

    def printed(self) -> str:
        """See `Engine`."""
        return f"{self._shell.by_hand(self._command('start'))}\n# its input: this site's bundle\n"

    def _resources(self, node: JobNode) -> dict[str, float]:
        return {"CPU": 1.0} if node.serves else self._worker

    def _described(self) -> dict[str, Any]:
        party, files = self._job.site.party, _encoded(self._job.files)
        nodes = [
            {
                "name": node.name,
                "party": node.name == party,
                "argv": node.argv,
                "environment": dict(node.environment),
                "most": 0 if node.vital else self._job.restart.most,
                "resources": self._resources(node),
                "files": [name for name in files if _is_for(name, node.name)],
            }
            for node in self._job.nodes
        ]
        return {"nodes": nodes, "files": files, "setup": list(self._job.site.setup)}

    def _command(self, verb: str, *words: str) -> str:
        python = self._job.site.python or self._shell.python
        argv = [python, "-m", "geomx.launch.ray", verb, self._address, self._namespace, *words]
        setup = "".join(f"{line} || exit {SETUP_FAILED}\n" for line in self._job.site.setup)
        return f"{setup}exec {shlex.join(argv)}"

    def _call(self, verb: str, *words: str, given: bytes = b"") -> Any:
        status, out, err = self._shell.run(self._command(verb, *words), given)
        if status == 0:
            return json.loads(out.decode().strip().splitlines()[-1])
        last = last_line(err) or "it ended without a word"
        if status in NOT_FOUND:
            last = f"no Python ({last}): name one as the site's `python`"
        if "No module named 'ray'" in last:
            last = "Ray is not installed there: pip install 'geomx[ray]'"
        raise SiteError(f"{self._shell.name}: {last}")


def _is_for(name: str, node: str) -> bool:
    """Whether a node needs a file: keys of others it does not."""
    is_key = name.startswith("tls/") and name not in ("tls/authority.pem", "tls/revoked.pem")
    return not is_key or name in (f"tls/{file_name(node)}.key", f"tls/{file_name(node)}.pem")


def _encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(content).decode() for name, content in files.items()}
