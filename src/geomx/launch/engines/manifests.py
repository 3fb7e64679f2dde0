"""The objects of a job on Kubernetes, and how they are written.

    Secret        the run's secret, and the certificates and keys of the site's nodes
    ConfigMap     the description, the script and its files, and the scripts with which containers begin
    StatefulSet   of each server, with a Service of its name, probes, and a PodDisruptionBudget
    Job           of the workers, indexed by rank; the index is the rank

Containers run as nobody, with a read-only file system, and in a volume of the pod what they write: `/run/geomx` has the
layout of a job's folder anywhere. Pods are started again by the cluster. Needs Kubernetes 1.29, for limits of an
index's restarts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from geomx.launch.engines.contract import PYTHON, Job, JobNode, SiteError, file_name
from geomx.launch.engines.keeper import LOST_STATUS

HOME, GIVEN = "/run/geomx", "/geomx"
NOBODY = 65534
MOST_BYTES = 900_000  # of a ConfigMap or a Secret, which may have 1 MiB
KEYS = ("secret", "tls/")
WORKERS = "all_workers"  # as a node's label; no node's own has a `_`
INDEX = "$(JOB_COMPLETION_INDEX)"
LABEL = "app.kubernetes.io"
# Everything is copied, so that it belongs to who runs: keys must be readable by nobody else.
START = f"""\
#!/bin/sh
umask 077
mkdir -p {HOME}/work {HOME}/records || exit
for part in code keys; do cp -rL {GIVEN}/$part/. {HOME}/ || exit; done
rm -rf {HOME}/..?*; cd {HOME}/work || exit
"""
# A StatefulSet starts again whoever ends; a server that has ended well is to stay so. Signals come to the shell.
SERVE = f"""\
"$@" & node=$!
trap 'kill -TERM $node' TERM
until wait $node; status=$?; ! kill -0 $node 2> /dev/null; do :; done
[ $status = 0 ] || exit $status
touch {HOME}/ended
trap 'exit 0' TERM
sleep infinity & wait
"""
WORK = 'exec "$@"\n'
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Manifests:
    """What one job is on a cluster. The fields are parameters of the engine; see `Kubernetes`."""

    job: Job
    image: str
    cpus: str = ""
    memory: str = ""
    gpus: int = 0
    expose: str = "LoadBalancer"
    claim: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """What all objects of the job have, and nothing else has."""
        return {
            f"{LABEL}/part-of": "geomx",
            "geomx/run": label(self.job.run),
            "geomx/site": label(self.job.name),
        }

    @property
    def name(self) -> str:
        """Of the Secret and the ConfigMap."""
        return label(f"{self.job.run}/{self.job.name}")

    def written(self) -> bytes:
        """All objects as YAML, in the order in which they are needed."""
        return "".join(f"---\n{yaml(each)}" for each in self.objects()).encode()

    def objects(self) -> Iterator[Object]:
        """All objects, in the order in which they are needed."""
        keys = {name: content for name, content in self.job.files.items() if name.startswith(KEYS)}
        code = {name: content for name, content in self.job.files.items() if name not in keys}
        code |= {"serve.sh": (START + SERVE).encode(), "work.sh": (START + WORK).encode()}
        for what, files in (("the script and its files", code), ("the keys", keys)):
            if sum(map(len, files.values())) > MOST_BYTES:
                raise SiteError(
                    f"{what} have more than {MOST_BYTES:,} bytes: build large files into the image"
                )
        yield self._object("v1", "Secret", self.name, type="Opaque", data=encoded(keys))
        texts = {name: content for name, content in code.items() if _is_text(content)}
        others = encoded({name: content for name, content in code.items() if name not in texts})
        data = {_key(name): content.decode() for name, content in texts.items()}
        yield self._object("v1", "ConfigMap", self.name, data=data, binaryData=others)
        for node in self.job.nodes:
            if node.serves:
                yield from self._server(node)
        if workers := [node for node in self.job.nodes if not node.serves]:
            yield from self._workers(workers)

    def _server(self, node: JobNode) -> Iterator[Object]:
        name, port = self._name_of(node), int(node.listens[0].rpartition(":")[2])
        labels = {**self.labels, "geomx/node": label(node.name)}
        is_reached = node.name != self.job.site.party
        protocols = ("TCP", "UDP") if node.datagrams else ("TCP",)
        ports = [{"name": each.lower(), "port": port, "protocol": each} for each in protocols]
        kind = self.expose if is_reached else "ClusterIP"
        yield self._object("v1", "Service", name, spec={"type": kind, "selector": labels, "ports": ports})
        container = self._container(node, "serve.sh", node.argv, node.environment)
        container["ports"] = [{"containerPort": port, "protocol": each} for each in protocols]
        begun = ["test", "-s", f"{HOME}/records/{file_name(node.name)}.jsonl"]
        goes_on = ["test", "!", "-e", f"{HOME}/ended"]
        container["startupProbe"] = {"exec": {"command": begun}, "periodSeconds": 2, "failureThreshold": 150}
        container["readinessProbe"] = {"exec": {"command": goes_on}, "periodSeconds": 2}
        yield self._object(
            "apps/v1",
            "StatefulSet",
            name,
            spec={
                "serviceName": name,
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": self._pod(container, "Always")},
            },
        )
        stays: Object = {"maxUnavailable": 0, "selector": {"matchLabels": labels}}
        yield self._object("policy/v1", "PodDisruptionBudget", name, spec=stays)

    def _workers(self, workers: Sequence[JobNode]) -> Iterator[Object]:
        """All workers are one Job: what differs among them is their index."""
        first, party, count = workers[0], self.job.site.party, len(workers)
        name = label(f"{self.job.run}/{party}/worker")
        labels = {**self.labels, "geomx/node": WORKERS}
        own = f"/{file_name(first.name)}."
        argv = [word.replace(own, f"/{party}.{INDEX}.") for word in first.argv]
        argv[argv.index("--rank") + 1] = INDEX
        environment = dict(first.environment)
        if "MASTER_ADDR" in environment:
            environment |= {
                "RANK": INDEX,
                "MASTER_ADDR": f"{name}-0.{name}",
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
            }
        container = self._container(first, "work.sh", argv, environment)
        if resources := _resources(self.cpus, self.memory, self.gpus):
            container["resources"] = resources
        lost = {"operator": "NotIn", "values": [LOST_STATUS, 137, 143], "containerName": "geomx"}
        rules: list[Object] = [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailIndex", "onExitCodes": lost},
        ]
        yield self._object("v1", "Service", name, spec={"clusterIP": "None", "selector": labels})
        yield self._object(
            "batch/v1",
            "Job",
            name,
            spec={
                "completionMode": "Indexed",
                "completions": count,
                "parallelism": count,
                "backoffLimitPerIndex": self.job.restart.most,
                "maxFailedIndexes": count,
                "podFailurePolicy": {"rules": rules},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {**self._pod(container, "Never"), "subdomain": name},
                },
            },
        )

    def _container(
        self, node: JobNode, start: str, argv: Sequence[str], environment: Mapping[str, str]
    ) -> Object:
        words = [self.job.site.python or "python3" if word == PYTHON else word for word in argv]
        setup = " && ".join([*self.job.site.setup, f'exec sh {GIVEN}/code/{start} "$@"'])
        variables = {
            "HOME": f"{HOME}/work",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **environment,
        }
        mounts = [
            {"name": "code", "mountPath": f"{GIVEN}/code", "readOnly": True},
            {"name": "keys", "mountPath": f"{GIVEN}/keys", "readOnly": True},
            {"name": "run", "mountPath": HOME},
            {"name": "tmp", "mountPath": "/tmp"},
        ]
        if self.claim:
            mounts.append({"name": "records", "mountPath": f"{HOME}/records", "subPath": self.job.run})
        return {
            "name": "geomx",
            "image": self.image,
            "command": ["sh", "-c", setup, "sh", *words],
            "workingDir": HOME,
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "volumeMounts": mounts,
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }

    def _pod(self, container: Object, restarts: str) -> Object:
        names = sorted(self.job.files)
        keys = [{"key": _key(name), "path": name} for name in names if name.startswith(KEYS)]
        code = [
            {"key": _key(name), "path": name}
            for name in [*names, "serve.sh", "work.sh"]
            if not name.startswith(KEYS)
        ]
        volumes: list[Object] = [
            {"name": "code", "configMap": {"name": self.name, "items": code}},
            {"name": "keys", "secret": {"secretName": self.name, "items": keys, "defaultMode": 0o440}},
            {"name": "run", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
        ]
        if self.claim:
            volumes.append({"name": "records", "persistentVolumeClaim": {"claimName": self.claim}})
        return {
            "restartPolicy": restarts,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": int(self.job.stop_s),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": NOBODY,
                "runAsGroup": NOBODY,
                "fsGroup": NOBODY,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": volumes,
        }

    def _object(self, version: str, kind: str, name: str, **more: Any) -> Object:
        return {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": name, "labels": self.labels},
            **more,
        }

    def _name_of(self, node: JobNode) -> str:
        """Of a server's objects: what others of this site dial, too."""
        return label(f"{self.job.run}/{node.name}")


def _resources(cpus: str, memory: str, gpus: int) -> Object:
    asked = {key: value for key, value in (("cpu", cpus), ("memory", memory)) if value}
    limits = {**({"memory": memory} if memory else {}), **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {key: value for key, value in (("requests", asked), ("limits", limits)) if value}


def label(text: str) -> str:
    """A path of names as the cluster allows it. Where another one could give the same, with a digest behind it."""
    made = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:48].strip("-")
    if "-" not in text and made == text.replace("/", "-"):
        return made
    return f"{made}-{hashlib.blake2b(text.encode(), digest_size=3).hexdigest()}"


def _key(path: str) -> str:
    """A path as a key of a ConfigMap: `/` is none of its characters."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", path)
    return plain if plain == path else f"{plain}.{hashlib.blake2b(path.encode(), digest_size=4).hexdigest()}"


def encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    """Files as the data of a Secret."""
    return {_key(name): base64.b64encode(content).decode() for name, content in files.items()}


def _is_text(content: bytes) -> bool:
    try:
        return all(each.isprintable() or each in "\n\t" for each in content.decode())
    except UnicodeDecodeError:
        return False


def yaml(value: Any, depth: int = 0) -> str:
    """Objects of JSON's types as YAML: blocks, with every text in quotes that could be anything else."""
    lines, indent = [], "  " * depth
    items = value.items() if isinstance(value, dict) else ((None, each) for each in value)
    for key, each in items:
        head = f"{indent}-" if key is None else f"{indent}{_scalar(key)}:"
        if isinstance(each, str) and "\n" in each and re.match(r"\S.*[^\n]\n\Z", each, re.DOTALL):
            inner = "".join(f"{indent}  {line}\n" for line in each[:-1].split("\n"))
            lines.append(f"{head} |\n{inner}")
        elif not isinstance(each, (dict, list)) or not each:
            lines.append(f"{head} {_scalar(each)}\n")
        elif key is None:  # `- name: ...`, the first key behind the dash
            lines.append(f"{head} {yaml(each, depth + 1).lstrip()}")
        else:
            lines.append(f"{head}\n{yaml(each, depth + 1)}")
    return "".join(lines)


def _scalar(value: Any) -> str:
    is_plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9./_-]*", value)
    words = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
    return value if is_plain and value.lower() not in words else json.dumps(value)
