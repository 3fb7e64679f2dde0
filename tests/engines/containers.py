"""A container without an engine: a command with exactly the mounts, variables and user that somebody gives it.

This machine's files are its image, under a layer that nobody can write to; geomx lies in `/image`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from site_machines import ROOT

NOBODY = 65534
PYTHON = "/image/venv/bin/python"
SETUP = "export PYTHONPATH=/image/src OMP_NUM_THREADS=1"
# Runs $@ as nobody. $1: a folder for the layer; $2: with the volumes, each named as its mount with `_` for `/`;
# $3: what is the image; $4: names of hosts, which are all this one; $5: where the command runs.
SCRIPT = """
set -e
layer=$1 volumes=$2 image=$3 hosts=$4 at=$5; shift 5
mkdir -p $layer; mount -t tmpfs layer $layer; mkdir $layer/up $layer/work $layer/root
mount -t overlay layer -o lowerdir=/,upperdir=$layer/up,workdir=$layer/work $layer/root
root=$layer/root
chmod 755 $root/root; mkdir -p $root/image/venv $root/image/src
mount --bind ${image%%:*} $root/image/venv; mount --bind ${image##*:} $root/image/src
mount --rbind /dev $root/dev; mount -t proc proc $root/proc
echo 127.0.0.1 localhost $hosts > $root/etc/hosts
for volume in $volumes/*; do
  path=$root$(basename $volume | tr _ /); mkdir -p $path; mount --bind $(readlink -f $volume) $path
done
exec env -i PATH=/image/venv/bin:/usr/bin:/bin /usr/sbin/chroot --userspec=65534:65534 --groups=65534 $root \
  sh -c 'cd $0 && exec "$@"' $at "$@"
"""


class Container:
    """One that runs, in the network namespace `net`. `folder` is its own, and has `volumes` in it already."""

    def __init__(
        self,
        folder: Path,
        net: Path,
        argv: Sequence[str],
        variables: Mapping[str, str],
        at: str,
        hosts: Sequence[str],
    ) -> None:
        self.name, self._out = folder.name, folder / "out"
        image = f"{sys.prefix}:{ROOT / 'src'}"
        inside = ["nsenter", f"--net={net}", "unshare", "--mount", "--pid", "--fork", "--kill-child"]
        script = [
            "sh",
            "-c",
            SCRIPT,
            "sh",
            str(folder / "layer"),
            str(folder / "volumes"),
            image,
            " ".join(hosts),
            at,
        ]
        words = ["env", *(f"{key}={value}" for key, value in variables.items()), *argv]
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [*inside, *script, *words],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        """With which it has ended; None: it runs."""
        return self.process.poll()

    @property
    def text(self) -> str:
        return f"{self.name}: {self._out.read_text()}"

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(
                self.process.pid, signal.SIGKILL
            )  # who has changed its user does not die with its parent
        self.process.wait()


@contextmanager
def network() -> Iterator[Path]:
    """A network namespace with loopback alone, as a file."""
    command = "ip link set lo up; echo up; exec sleep 600"
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", command], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        yield Path(f"/proc/{holder.pid}/ns/net")
    finally:
        holder.terminate()
        holder.wait()
