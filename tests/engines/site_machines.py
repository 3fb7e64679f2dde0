"""Machines for engines to reach: in namespaces of a lab, each with an sshd, and a file system of its own.

What a machine writes lies in a layer of its own over this machine's files, and is gone with it. The user's place is a
machine as well, beside `boston`, behind its NAT: whatever is called there crosses the network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from forks import geomx

from lab import Lab, system
from lab.describe import describe

ROOT = Path(__file__).resolve().parents[2]
SSHD = "/usr/sbin/sshd"
USER = ("boston", 2)
START_S, WAIT_S = 120.0, 300.0
NETWORK = {
    "congestion": "bbr",
    "site": [{"name": "paris", "hosts": 3}, {"name": "tokyo"}, {"name": "boston", "hosts": 2, "nat": True}],
    "default": {"rate_mbps": 200, "delay_ms": 5},
}
# Runs $@ where `/` is this machine's, under a layer that is its own. $1: a folder; $2: the layer's size.
LAYER = """
set -e
layer=$1 size=$2; shift 2
mkdir -p $layer
mount -t tmpfs -o size=$size layer $layer
mkdir $layer/up $layer/work $layer/root
mount -t overlay layer -o lowerdir=/,upperdir=$layer/up,workdir=$layer/work $layer/root
for each in dev sys; do mount --rbind /$each $layer/root/$each; done
mount -t proc proc $layer/root/proc
mkdir -p $layer/root/run/sshd
exec chroot $layer/root "$@"
"""
# Within: root's own systemd, as where root lingers. $1: where it is; then sshd.
MANAGED = """
bus=unix:path=/run/user/0/bus
mount -t tmpfs cgroup /sys/fs/cgroup
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
mkdir -p /run/systemd/system /run/user/0 /var/lib/systemd/linger
touch /var/lib/systemd/linger/root
export XDG_RUNTIME_DIR=/run/user/0 DBUS_SESSION_BUS_ADDRESS=$bus
dbus-daemon --session --address=$bus --fork
$1 --user &
shift
exec env -u XDG_RUNTIME_DIR -u DBUS_SESSION_BUS_ADDRESS "$@"
"""
SYSTEMD = "/usr/lib/systemd/systemd"

lacks = system.missing_here() + ([] if Path(SSHD).exists() else ["no sshd: apt install openssh-server"])
needs_machines = pytest.mark.skipif(bool(lacks), reason="; ".join(lacks))


class Machines:
    """A lab with machines `paris`, `paris2`, `paris3`, `tokyo` and `boston`, by those names in `config`."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.config = folder / "ssh_config"
        self._key(folder / "user")
        lines = []
        for site, host in self.names.values():
            lines += [f"Host {self._name(site, host)}", f"  HostName {lab.address(site, host)}"]
        options = {
            "User": "root",
            "IdentityFile": folder / "user",
            "UserKnownHostsFile": folder / "known_hosts",
            "GlobalKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
        }
        lines += ["Host *", *(f"  {key} {value}" for key, value in options.items())]
        self.config.write_text("\n".join(lines) + "\n")

    names: Mapping[str, tuple[str, int]] = {
        "paris": ("paris", 1),
        "paris2": ("paris", 2),
        "paris3": ("paris", 3),
        "tokyo": ("tokyo", 1),
        "boston": ("boston", 1),
    }

    def _name(self, site: str, host: int) -> str:
        return next(name for name, place in self.names.items() if place == (site, host))

    def _key(self, path: Path) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)

    def start(self, name: str, size: str = "1g", managed: bool = False) -> None:
        """Switch a machine on. `managed`: its user has a systemd that goes on when nobody is logged in."""
        site, host = self.names[name]
        key = self.folder / f"{name}.key"
        if not key.exists():
            self._key(key)
            known = (key.with_suffix(".key.pub")).read_text()
            with (self.folder / "known_hosts").open("a") as file:
                file.write(f"{self.lab.address(site, host)} {known}")
        config = self.folder / f"{name}.sshd"
        config.write_text(
            f"HostKey {key}\nAuthorizedKeysFile {self.folder}/user.pub\nStrictModes no\nUsePAM no\n"
            f"PermitRootLogin prohibit-password\nPidFile none\nListenAddress {self.lab.address(site, host)}\n"
        )
        layer = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            LAYER,
            "sh",
            str(self.folder / f"{name}.layer"),
            size,
        ]
        manager = ["sh", "-c", MANAGED, "sh", SYSTEMD] if managed else []
        with (self.folder / f"{name}.log").open("w") as log:
            self.lab.popen(
                site,
                [*layer, *manager, SSHD, "-D", "-e", "-f", str(config)],
                host,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        give_up_at = time.monotonic() + START_S
        while self.on(name, "true").returncode:
            assert time.monotonic() < give_up_at, (self.folder / f"{name}.log").read_text()
            time.sleep(0.1)

    def on(self, name: str, command: str) -> subprocess.CompletedProcess[str]:
        """Run a shell's command on a machine."""
        return self.call(["ssh", "-F", str(self.config), name, command])

    def geomx(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Call `geomx` where the user sits."""
        return geomx(words, with_source(os.environ), self.folder, self.lab.namespace(*USER))

    @property
    def inside(self) -> list[str]:
        """What runs a command in the user's network, with all of this machine's mounts."""
        return ["nsenter", f"--net=/var/run/netns/{self.lab.namespace(*USER)}"]

    def until(self, file: str, node: str, words: str) -> None:
        """Wait until a node has written these words."""
        give_up_at = time.monotonic() + WAIT_S
        while words not in (log := self.geomx("logs", file, node, "--lines", "500").stdout):
            assert time.monotonic() < give_up_at, f"{log}\n{self.geomx('status', file).stdout}"
            time.sleep(0.5)

    def call(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command where the user sits."""
        process = self.lab.popen(
            USER[0],
            argv,
            USER[1],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=with_source(os.environ),
        )
        out, err = process.communicate()
        return subprocess.CompletedProcess(argv, process.returncode, out, err)


def with_source(environment: Mapping[str, str]) -> dict[str, str]:
    """With this checkout's geomx, and arithmetic on one thread."""
    path = os.pathsep.join([str(ROOT / "src"), environment.get("PYTHONPATH", "")])
    return {**environment, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@contextmanager
def machines(folder: Path, *names: str) -> Iterator[Machines]:
    """Machines of these names, switched on."""
    with Lab(describe(NETWORK, "engines")) as lab:
        made = Machines(lab, folder)
        for name in names:
            made.start(name)
        yield made


def copy_examples(folder: Path) -> None:
    """A user's own folder, with a script."""
    for name in ("cnn.py", "data.py"):
        shutil.copy(ROOT / "examples" / name, folder / name)
