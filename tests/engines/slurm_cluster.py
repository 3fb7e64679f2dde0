"""A Slurm cluster on this machine: munged, slurmctld, and two slurmd, in a folder of its own."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

FIRST_PORT = 16_817
START_S, STOP_S = 180.0, 60.0
LIBRARY = "/usr/sbin"
PROGRAMS = ("munged", "slurmctld", "slurmd")
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={first}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
MailProg=/bin/true
KillWait=5
NodeName=n1,n2 NodeHostname={host} NodeAddr=127.0.0.1 Port=[{second}-{third}] Boards=1 SocketsPerBoard=1 \
CoresPerSocket=8 ThreadsPerCore=1 State=UNKNOWN
PartitionName=cpu Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


def lacks() -> str:
    """Why there can be no cluster here; "": there can."""
    missing = [name for name in PROGRAMS if not Path(LIBRARY, name).exists()]
    if missing:
        return f"no {', '.join(missing)}: apt install slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "slurmd needs root"


@contextmanager
def cluster(folder: Path, inside: Sequence[str] = ()) -> Iterator[None]:
    """The cluster is up, and the commands of Slurm in this process's environment mean it.

    `inside`: a command that runs another in the network namespace in which the cluster is.
    """
    ports = dict(zip(("first", "second", "third"), range(FIRST_PORT, FIRST_PORT + 3), strict=True))
    conf, key = folder / "slurm.conf", folder / "munge.key"
    conf.write_text(CONF.format(host=socket.gethostname().partition(".")[0], folder=folder, **ports))
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(64))
    (folder / "state").mkdir()
    munge = [f"--key-file={key}", f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid"]
    munge += [f"--seed-file={folder}/seed", f"--log-file={folder}/munge.log", "--force", "-F"]
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(conf)
    running = []
    try:
        for name, *words in (
            ("munged", *munge),
            ("slurmctld", "-D"),
            *(("slurmd", "-D", "-N", n) for n in ("n1", "n2")),
        ):
            with (folder / f"{name}.out").open("ab") as out:
                running.append(
                    subprocess.Popen([*inside, f"{LIBRARY}/{name}", *words], stdout=out, stderr=out)
                )
            time.sleep(0.5)
        give_up_at = time.monotonic() + START_S
        while _call(*inside, "sinfo", "-h", "-t", "idle", "-o", "%D").strip() != "2":
            assert time.monotonic() < give_up_at, (
                _call(*inside, "sinfo") + (folder / "slurmctld.out").read_text()
            )
            time.sleep(0.2)
        yield
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        os.environ.pop("SLURM_CONF")
        if before is not None:
            os.environ["SLURM_CONF"] = before


def _call(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def jobs(inside: Sequence[str] = ()) -> str:
    """What is in the queue."""
    return _call(*inside, "squeue", "-h", "-o", "%i %T")
