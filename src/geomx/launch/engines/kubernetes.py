"""The engine `kubernetes`: a party as plain objects of a cluster (`manifests.py`), which `kubectl` applies."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from geomx.config.tables.sites import SiteTable
from geomx.launch.engines.contract import (
    CHUNK,
    Dialled,
    FileOf,
    Job,
    NodeIs,
    NodeState,
    SiteError,
    file_name,
)
from geomx.launch.engines.machines import last_line
from geomx.launch.engines.manifests import HOME, WORKERS, Manifests, encoded, label

# By the server, which keeps no copy of what was applied beside it: that would hold the keys, and at most 256 KiB.
APPLY = ("apply", "--server-side", "-f", "-")


class Kubernetes:
    """Objects of a job. `context`, `namespace`: of kubectl, instead of its current ones. `image`: has geomx.

    `cpus`, `memory`, `gpus`: of each worker. `expose`: how others reach a global or a region's server: the type of its
    Service. `claim`: a PersistentVolumeClaim, of which records get a folder, so that they outlive pods.
    """

    def __init__(
        self,
        job: Job,
        *,
        image: str,
        context: str = "",
        namespace: str = "",
        cpus: str = "",
        memory: str = "",
        gpus: int = 0,
        expose: str = "LoadBalancer",
        claim: str = "",
    ) -> None:
        self._job = job
        self._manifests = Manifests(job, image, cpus, memory, gpus, expose, claim)
        self._kubectl = ["kubectl", *([f"--context={context}"] if context else [])]
        self._kubectl += [f"--namespace={namespace}"] if namespace else []

    # -- the contract ---------------------------------------------------------------------------------------------

    @staticmethod
    def machines(site: SiteTable) -> int:
        """See `Engine`."""
        return 1

    @staticmethod
    def dialled(site: SiteTable, run: str, server: str, machines: int) -> Dialled:
        """See `Engine`: by the name of its Service."""
        return Dialled(label(f"{run}/{server}"), "0.0.0.0")

    def prepare(self) -> Sequence[str]:
        """See `Engine`. The cluster's own admission judges the objects, quota included."""
        try:
            self._call(*APPLY, "--dry-run=server", given=self._manifests.written())
        except SiteError as error:
            return [str(error)]
        return []

    def start(self) -> str:
        """See `Engine`."""
        if any(each.state != "absent" for each in self.state().values()):  # and a Job cannot be changed
            raise SiteError(f"{self._where}: its objects are there already: `geomx down` first")
        self._call(*APPLY, given=self._manifests.written())
        return f"{self._where}: Kubernetes"

    def state(self) -> Mapping[str, NodeState]:
        """See `Engine`."""
        pods = self._pods()
        return {
            node.name: state_of(pods[node.name]) if node.name in pods else NodeState("absent")
            for node in self._job.nodes
        }

    def read(self, file: FileOf, offsets: Mapping[str, int]) -> Mapping[str, bytes]:
        """See `Engine`. Records can be read while their pod runs."""
        pods, found = self._pods(), {}
        for node, offset in offsets.items():
            if node not in pods:
                continue
            pod = str(pods[node]["metadata"]["name"])
            with suppress(SiteError):  # it has ended, or not begun
                found[node] = self._read_of(pod, node, file, offset)
        return found

    def _read_of(self, pod: str, node: str, file: FileOf, offset: int) -> bytes:
        if file == "logs":
            return self._call("logs", pod)[offset:][:CHUNK]
        start = f"+{offset + 1}" if offset >= 0 else str(-offset)
        path = f"{HOME}/records/{file_name(node)}.jsonl"
        return self._call("exec", pod, "--", "tail", "-c", start, path)[:CHUNK]

    def send(self, files: Mapping[str, bytes]) -> None:
        """See `Engine`. In the Secret for containers that begin later, and in the folders of those that run."""
        patch = json.dumps({"data": encoded(files)})
        self._call("patch", "secret", self._manifests.name, "--type=merge", "-p", patch)
        for pod in self._pods().values():
            if pod["status"].get("phase") != "Running":
                continue
            for name, content in files.items():
                put = f"umask 077; cat > {HOME}/{name}.new && mv {HOME}/{name}.new {HOME}/{name}"
                words = ("exec", "-i", str(pod["metadata"]["name"]), "--", "sh", "-c", put)
                self._call(*words, given=content)

    def stop(self, purge: bool) -> Sequence[str]:
        """See `Engine`. What scripts have written was in the pods, and goes with them."""
        kinds = "job,statefulset,service,poddisruptionbudget,configmap,secret,pod"
        self._call("delete", kinds, "-l", self._selector, "--wait=true")
        return []

    def bundled(self) -> bytes:
        """See `Engine`: the manifests."""
        return self._manifests.written()

    def printed(self) -> str:
        """See `Engine`."""
        return f"{self._where} {' '.join(APPLY)} <<'END'\n{self._manifests.written().decode()}END\n"

    # -- kubectl ----------------------------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return " ".join(self._kubectl)

    @property
    def _selector(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self._manifests.labels.items())

    def _node_of(self, pod: Mapping[str, Any]) -> str:
        labels = pod["metadata"]["labels"]
        if labels["geomx/node"] == WORKERS:
            index = labels.get("batch.kubernetes.io/job-completion-index", "0")
            return f"{self._job.site.party}/{index}"
        return next(node.name for node in self._job.nodes if label(node.name) == labels["geomx/node"])

    def _pods(self) -> dict[str, Any]:
        """The newest pod of each node that has one."""
        pods = json.loads(self._call("get", "pods", "-o", "json", "-l", self._selector))["items"]
        pods.sort(key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        return {self._node_of(pod): pod for pod in pods}

    def _call(self, *words: str, given: bytes = b"") -> bytes:
        try:
            done = subprocess.run([*self._kubectl, *words], input=given, capture_output=True, check=False)
        except FileNotFoundError:
            raise SiteError(
                "this machine has no `kubectl`: install it, or apply what `--print` shows elsewhere"
            ) from None
        if done.returncode:
            said = last_line(done.stderr.decode("utf-8", "replace")) or "it ended without a word"
            raise SiteError(f"{self._where} {words[0]}: {said}")
        return done.stdout


def state_of(pod: Mapping[str, Any]) -> NodeState:
    """What a pod, as `kubectl get -o json` tells it, says of its node."""
    status, machine = pod["status"], pod["spec"].get("nodeName", "")
    found = (status.get("containerStatuses") or [{}])[0]
    restarts = int(found.get("restartCount", 0))
    now = found.get("state", {})
    if ended := now.get("terminated"):
        code = ended.get("exitCode", 0)
        how = f"ended with status {code}" if code else ""
        return NodeState(
            "failed" if code else "ended", machine, how, _unix(ended.get("finishedAt")), restarts
        )
    if "running" in now:
        has_ended = found.get("started") and not found.get("ready")  # see `SERVE`
        return NodeState(
            "ended" if has_ended else "running", machine, "", _unix(now["running"].get("startedAt")), restarts
        )
    waits = now.get("waiting", {})
    why = [waits.get("reason", ""), waits.get("message", "")]
    why += [each.get("message", "") for each in status.get("conditions", []) if each.get("status") == "False"]
    phases: dict[str, NodeIs] = {"Succeeded": "ended", "Failed": "failed"}
    state: NodeIs = phases.get(status.get("phase", ""), "waiting" if restarts else "starting")
    return NodeState(state, machine, ": ".join(filter(None, why)), None, restarts)


def _unix(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()
