"""The engine `kubernetes`: a party as plain objects of a cluster (`manifests.py`), which `kubectl` applies."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from geomx.config.tables.sites import SiteTable
from geomx.launch.engines.contract import (
    Dialled,
    FileOf,
    Job,
    NodeIs,
    NodeState,
    SiteError,
    file_name,
)
from geomx.launch.engines.manifests import HOME, WORKERS, Manifests, label

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
        image: str = "",
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
        return Dialled(label(f"{run}-{server}"), "0.0.0.0")

    def prepare(self) -> Sequence[str]:
        """See `Engine`. The cluster's own admission judges the objects, quota included."""
        if not self._manifests.image:
            return [
                'no image: `engine = "kubernetes image=REGISTRY/geomx:0.1"`; the repository\'s Dockerfile makes one'
            ]
        try:
            self._call(*APPLY, "--dry-run=server", given=self._manifests.written())
        except SiteError as error:
            return [str(error)]
        return []

    def start(self) -> str:
        """See `Engine`."""
        states = {each.state for each in self.state().values()}
        if not states <= {"absent", "ended", "failed"}:
            raise SiteError(f"{self._where}: its objects are there already: `geomx down` first")
        if states != {"absent"}:  # of a run that is over; a Job cannot be changed
            self.stop(purge=True)
        self._call(*APPLY, given=self._manifests.written())
        return f"{self._where}: Kubernetes"

    def state(self) -> Mapping[str, NodeState]:
        """See `Engine`."""
        pods = json.loads(self._call("get", "pods", "-o", "json", "-l", self._selector))["items"]
        newest: dict[str, Any] = {}
        for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"])):
            newest[self._node_of(pod)] = pod
        return {
            node.name: state_of(newest[node.name]) if node.name in newest else NodeState("absent")
            for node in self._job.nodes
        }

    def read(self, node: str, file: FileOf, offset: int) -> bytes:
        """See `Engine`. Records can be read while their pod runs."""
        if (pod := self._pod_of(node)) is None:
            return b""
        if file == "logs":
            written = self._call("logs", pod)
            return written[offset:]
        path = f"{HOME}/records/{file_name(node)}.jsonl"
        start = f"+{offset + 1}" if offset >= 0 else str(-offset)
        try:
            return self._call("exec", pod, "--", "tail", "-c", start, path)
        except SiteError:  # it has ended, or not begun
            return b""

    def send(self, files: Mapping[str, bytes]) -> None:
        """See `Engine`. A pod's copy of a Secret follows within a minute; containers have copies of their own."""
        for node in self._job.nodes:
            if (pod := self._pod_of(node.name)) is None:
                continue
            for name, content in files.items():
                put = f"umask 077; cat > {HOME}/{name}.new && mv {HOME}/{name}.new {HOME}/{name}"
                self._call("exec", "-i", pod, "--", "sh", "-c", put, given=content)

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

    def _pod_of(self, node: str) -> str | None:
        pods = json.loads(self._call("get", "pods", "-o", "json", "-l", self._selector))["items"]
        mine = [pod for pod in pods if self._node_of(pod) == node]
        if not mine:
            return None
        return str(max(mine, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))["metadata"]["name"])

    def _call(self, *words: str, given: bytes = b"") -> bytes:
        try:
            done = subprocess.run([*self._kubectl, *words], input=given, capture_output=True, check=False)
        except FileNotFoundError:
            raise SiteError(
                "this machine has no `kubectl`: install it, or apply what `--print` shows elsewhere"
            ) from None
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it ended without a word"]
            raise SiteError(f"{self._where} {words[0]}: {said[-1]}")
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
