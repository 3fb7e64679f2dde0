"""The engine `kubernetes`: its objects by the schemas of three versions, and its containers with what these give them.

There is no cluster here. A container's command runs with exactly the variables, mounts and user of its manifest, over
this machine's files as its image, in namespaces of its own.
"""

from __future__ import annotations

import base64
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from containers import NOBODY, PYTHON, SETUP, Container, network
from site_machines import copy_examples

from geomx.config import Run
from geomx.launch.engines.jobs import jobs_of
from geomx.launch.engines.kubernetes import state_of
from geomx.launch.engines.manifests import Manifests
from geomx.launch.engines.manifests import yaml as written
from geomx.launch.provision import Keys

ENGINE = "kubernetes image=registry.example.org/geomx:0.1 cpus=2 memory=4Gi gpus=1"
START_S = 300.0


@pytest.fixture
def run(tmp_path: Path) -> Run:
    copy_examples(tmp_path)
    text = f"""
        run = {{ script = "cnn.py", arguments = ["--epochs", "3"], on_loss = "continue", name = "mine" }}
        global = {{ addresses = ["hub.example.org:9400"] }}
        party = [{{ name = "paris", workers = 2 }}]
        [[site]]
        party = "paris"
        serves = ["global"]
        engine = "{ENGINE}"
        restart = {{ most = 3 }}
        python = "{PYTHON}"
        setup = ["{SETUP}"]
        """
    return Run.parse(text, str(tmp_path / "mine.toml"))


@pytest.fixture
def made(run: Run, tmp_path: Path) -> Manifests:
    (job,) = jobs_of(run, tmp_path / "mine.toml", Keys(run, tmp_path / "mine.toml").credentials())
    return Manifests(job, image="registry.example.org/geomx:0.1", cpus="2", memory="4Gi", gpus=1)


@pytest.mark.parametrize("version", ["1.30", "1.33", "1.36"])
def test_all_objects_are_as_the_schemas_of_the_version_have_them(made: Manifests, version: str) -> None:
    objects = list(yaml.safe_load_all(made.written()))
    assert objects == list(made.objects())
    kinds = [each["kind"] for each in objects]
    assert kinds == [
        "Secret",
        "ConfigMap",
        *(2 * ["Service", "StatefulSet", "PodDisruptionBudget"]),
        "Service",
        "Job",
    ]
    for each in objects:
        kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "no",
        "1",
        "1e3",
        "~",
        "a: b",
        "- a",
        "two\nlines\n",
        "two\nlines",
        " lead\n",
        "tail \n\n",
        "tab\t\nx\n",
        "#",
        "é\n中\n",
    ],
)
def test_any_text_comes_back_from_yaml(value: str) -> None:
    every = {"key": value, "list": [value, {"a": value, "b": [value]}, []], "table": {}, value or "k": True}
    assert yaml.safe_load(written(every)) == every


def test_no_key_is_outside_of_the_secret(made: Manifests) -> None:
    secret, *others = made.objects()
    keys = [base64.b64decode(value) for value in secret["data"].values()]
    assert len(keys) == 2 * 4 + 3
    text = json.dumps(others)
    for key in keys:
        assert base64.b64encode(key).decode() not in text
        assert key.decode().strip().splitlines()[0 if key.count(b"\n") < 1 else 1] not in text


WAITS = [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]
AGAIN = [{"restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
RUNS = [{"ready": True, "started": True, "state": {"running": {}}}]
IDLES = [{"ready": False, "started": True, "state": {"running": {}}}]


@pytest.mark.parametrize(
    ("containers", "state", "how"),
    [
        ([], "starting", "0/3 nodes: no gpu"),
        (WAITS, "starting", "ImagePullBackOff"),
        (AGAIN, "waiting", "CrashLoopBackOff"),
        (RUNS, "running", ""),
        (IDLES, "ended", ""),
        ([{"state": {"terminated": {"exitCode": 137}}}], "failed", "status 137"),
        ([{"state": {"terminated": {"exitCode": 0}}}], "ended", ""),
    ],
)
def test_what_a_pod_tells_is_what_became_of_its_node(containers: Any, state: str, how: str) -> None:
    unplaced = [{"status": "False", "message": "0/3 nodes: no gpu"}] if not containers else []
    status = {"phase": "Pending", "containerStatuses": containers, "conditions": unplaced}
    found = state_of({"spec": {"nodeName": "n7"}, "status": status})
    assert (found.state, found.machine) == (state, "n7")
    assert how in found.how


def pod(folder: Path, net: Path, spec: Any, objects: list[Any], index: int | None = None) -> Container:
    """A pod's container as its manifest has it. `index`: of an indexed Job."""
    (container,) = spec["containers"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for mount in container["volumeMounts"]:
        place = folder / "volumes" / mount["mountPath"].replace("/", "_")
        place.mkdir(parents=True)
        fill(place, volumes[mount["name"]], objects)
    variables = {each["name"]: each["value"] for each in container["env"]}
    variables |= {} if index is None else {"JOB_COMPLETION_INDEX": str(index)}
    expand = re.compile(r"\$\((\w+)\)")
    words = [
        expand.sub(lambda match: variables.get(match[1], match[0]), word) for word in container["command"]
    ]
    hosts = [each["metadata"]["name"] for each in objects if each["kind"] == "Service"]
    return Container(folder, net, words, variables, container["workingDir"], [*hosts, "hub.example.org"])


def fill(place: Path, volume: Any, objects: list[Any]) -> None:
    """A volume as a cluster makes it: owned by root, readable by the pod's group; an empty one is the group's."""
    os.chown(place, 0, NOBODY)
    place.chmod(0o2775)
    if "emptyDir" in volume:
        return
    is_secret = "secret" in volume
    given = volume["secret" if is_secret else "configMap"]
    kind, name = ("Secret", given["secretName"]) if is_secret else ("ConfigMap", given["name"])
    (found,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
    encoded = found["data"] if is_secret else found["binaryData"]
    for item in given["items"]:
        target = place / item["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        if item["key"] in encoded:
            target.write_bytes(base64.b64decode(encoded[item["key"]]))
        else:
            target.write_text(found["data"][item["key"]])
        os.chown(target, 0, NOBODY)
        target.chmod(given.get("defaultMode", 0o644))


@pytest.mark.engines
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for namespaces")
def test_the_containers_of_a_run_train_with_what_their_manifests_give_them(
    made: Manifests, tmp_path: Path
) -> None:
    objects = list(yaml.safe_load_all(made.written()))
    servers, workers = [], []
    with network() as net:
        try:
            for each in objects:
                name, template = (
                    each["metadata"]["name"],
                    each.get("spec", {}).get("template", {}).get("spec"),
                )
                if each["kind"] == "StatefulSet":
                    servers.append(pod(tmp_path / name, net, template, objects))
                elif each["kind"] == "Job":
                    for index in range(each["spec"]["completions"]):
                        workers.append(pod(tmp_path / f"{name}-{index}", net, template, objects, index))
            every = [*servers, *workers]
            assert len(servers) == len(workers) == 2
            give_up_at = time.monotonic() + START_S
            homes = [tmp_path / server.name / "volumes" / "_run_geomx" for server in servers]
            # A server that has ended well stays, so that nobody starts it again.
            while {each.status for each in workers} != {0} or not all(
                (home / "ended").exists() for home in homes
            ):
                assert time.monotonic() < give_up_at, "\n".join(each.text for each in every)
                assert {each.status for each in every} <= {0, None}, "\n".join(each.text for each in every)
                time.sleep(0.2)
            assert "epoch  3" in workers[0].text
            assert [each.status for each in servers] == [None, None]
            assert all(path.stat().st_mode & 0o077 == 0 for home in homes for path in home.rglob("*"))
        finally:
            for each in (*servers, *workers):
                each.end()
