"""The Dockerfile and `compose.yaml`: what they name is there, and the services' commands train as they stand."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from containers import NOBODY, Container, network
from site_machines import ROOT

START_S = 300.0
SERVICES = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]


def test_what_the_image_copies_is_there_and_it_runs_as_nobody() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = [
        name
        for line in lines
        if line.startswith("COPY ") and "--from" not in line
        for name in line.split()[1:-1]
    ]
    assert copied
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored
    assert f"USER {NOBODY}:{NOBODY}" in lines
    (torch,) = re.findall(r'"(torch[^"]+)"', (ROOT / "Dockerfile").read_text())
    assert f'"{torch}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.engines
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for namespaces")
def test_the_services_of_compose_train(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    os.chown(keys, NOBODY, NOBODY)
    running: dict[str, Container] = {}

    def start(name: str, service: Any) -> Container:
        volumes = tmp_path / name / "volumes"
        volumes.mkdir(parents=True)
        for volume in service["volumes"]:
            source, mount, *_ = volume.split(":")
            (volumes / mount.replace("/", "_")).symlink_to(
                ROOT / source if source.startswith(".") else tmp_path / source
            )
        for mount in service["tmpfs"]:
            (volumes / mount.replace("/", "_")).mkdir()
            (volumes / mount.replace("/", "_")).chmod(0o1777)
        argv = [*service.get("entrypoint", ["geomx"]), *service.get("command", [])]
        script = 'geomx() { python -m geomx "$@"; }; ' + (argv.pop(2) if argv[0] == "sh" else '"$@"')
        variables = {
            **service["environment"],
            "PYTHONPATH": "/image/src",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": "/tmp",
        }
        at = service["working_dir"]
        return Container(
            tmp_path / name, net, ["sh", "-c", script, "sh", *argv], variables, at, list(SERVICES)
        )

    with network() as net:
        try:
            give_up_at = time.monotonic() + START_S
            running["secret"] = start("secret", SERVICES["secret"])
            while running["secret"].status is None:
                time.sleep(0.1)
            assert running["secret"].status == 0, running["secret"].text
            for name, service in SERVICES.items():
                if name != "secret":
                    running[name] = start(name, service)
            while {each.status for each in running.values()} != {0}:
                assert {each.status for each in running.values()} <= {0, None}, "\n".join(
                    c.text for c in running.values()
                )
                assert time.monotonic() < give_up_at, "\n".join(each.text for each in running.values())
                time.sleep(0.2)
            assert "epoch 20" in running["paris-0"].text
        finally:
            for each in running.values():
                each.end()
