"""The engine `slurm`: a party as one batch job, on as many machines as its workers need.

Slurm runs one keeper on each machine of the allocation, which starts the nodes of that machine. The job's files are in
a folder that the login node and the machines share. Where Slurm's time limit is near, the job is put into the queue
again if the site has `restart`; else its nodes leave the run in order.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from geomx.config.tables.sites import SiteTable
from geomx.launch.engines.contract import HOST, Dialled, FileOf, Job, NodeState, SiteError
from geomx.launch.engines.local import Here
from geomx.launch.engines.machines import Place, Shell, last_line, tar_of
from geomx.launch.engines.ssh import Host

BEFORE_LIMIT_S = 120
OVER = ("", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")
END_S, POLL_S = 60.0, 0.5  # for a job to be gone
GONE = "Invalid job id"


class Slurm:
    """A job of Slurm's, submitted on `hosts[0]`, the login node; without hosts, here.

    `partition`, `account`, `qos`, `time`, `gres`, `nodelist`, `constraint`: as `sbatch` takes them. `config`: of ssh.
    """

    def __init__(
        self,
        job: Job,
        *,
        partition: str = "",
        account: str = "",
        qos: str = "",
        time: str = "",
        gres: str = "",
        nodelist: str = "",
        constraint: str = "",
        config: str = "",
    ) -> None:
        shell: Shell = Host(job.site.hosts[0], config) if job.site.hosts else Here()
        self._job, self._shell = job, shell
        self._place = Place(shell, job, 0, job.nodes)
        self._options = {
            "partition": partition,
            "account": account,
            "qos": qos,
            "time": time,
            "gres": gres,
            "nodelist": nodelist,
            "constraint": constraint,
        }

    @staticmethod
    def machines(site: SiteTable) -> int:
        """See `Engine`."""
        return 1

    @staticmethod
    def dialled(site: SiteTable, run: str, server: str, machines: int) -> Dialled:
        """See `Engine`: where the first of the machines is that Slurm chooses."""
        return Dialled("127.0.0.1" if machines == 1 else HOST)

    def prepare(self) -> Sequence[str]:
        """See `Engine`. Addresses and ports are those of machines that only Slurm will choose."""
        apart = replace(self._job, nodes=tuple(replace(node, listens=()) for node in self._job.nodes))
        lines = Place(self._shell, apart, 0, [replace(node, dials=()) for node in apart.nodes]).problems()
        if not lines:
            words = " ".join(map(shlex.quote, self._words()))
            try:
                self._shell.must(f"sbatch --test-only {words} --wrap true")
            except SiteError as error:
                lines.append(f"sbatch refuses the job: {error}")
        return lines

    def start(self) -> str:
        """See `Engine`."""
        if queued := self._in_queue()[0]:
            raise SiteError(f"{self._shell.name}: its job is {queued} already: `geomx down` first")
        command = ("sbatch", "--parsable", "job.sh")
        said = self._place.place("submit", *command, machines=self._machines, more=self._scripts)
        return f"{self._shell.name}: Slurm, as job {said['said']}"

    def state(self) -> Mapping[str, NodeState]:
        """See `Engine`. What a keeper has written holds while Slurm says that the job runs."""
        found, (queued, why) = self._place.state(hosts=True), self._in_queue()
        if queued in ("RUNNING", "COMPLETING") or not queued:
            return {name: self._judged(state, bool(queued)) for name, state in found.items()}
        how = f"Slurm: {queued} ({why})"
        return {name: replace(state, state="starting", how=how) for name, state in found.items()}

    def _judged(self, state: NodeState, job_runs: bool) -> NodeState:
        """What a node's keeper has written, where its job runs, or has ended."""
        if job_runs and state.state == "absent":
            return replace(state, state="starting", how="its keeper starts")
        was_killed = state.how.startswith("was killed with its keeper")
        if job_runs and was_killed:  # its lock may not be seen from here
            return replace(state, state="running", how="")
        return replace(state, how="its job has ended: see `sacct`") if was_killed else state

    def read(self, file: FileOf, offsets: Mapping[str, int]) -> Mapping[str, bytes]:
        """See `Engine`."""
        return self._place.read(file, offsets)

    def send(self, files: Mapping[str, bytes]) -> None:
        """See `Engine`."""
        self._place.send(files)

    def stop(self, purge: bool) -> Sequence[str]:
        """See `Engine`."""
        if self._in_queue()[0]:
            self._shell.must(f"scancel $(cat {self._submitted})")
            give_up_at = time.monotonic() + END_S
            while queued := self._in_queue()[0]:
                if time.monotonic() > give_up_at:
                    raise SiteError(f"{self._shell.name}: its job is still {queued} after {END_S:g} s")
                time.sleep(POLL_S)
        return self._place.stop(purge)

    def bundled(self) -> bytes:
        """See `Engine`."""
        return tar_of(self._place.files(self._machines, self._scripts))

    def printed(self) -> str:
        """See `Engine`."""
        command = f"cd {self._place.path('.')} && sbatch job.sh"
        names = list(self._place.files(self._machines, self._scripts))
        return f"{self._place.printed(names, command)}# job.sh:\n{self._script()}"

    # -- the job -----------------------------------------------------------------------------------------------

    @property
    def _machines(self) -> list[int]:
        return [node.machine for node in self._job.nodes]

    def _in_queue(self) -> tuple[str, str]:
        """The job's state and its reason, in Slurm's words; empty where there is no such job any more."""
        job = self._submitted
        command = f"test -e {job} || exit 0; squeue -h -o '%T|%r' -j $(cat {job})"
        status, out, err = self._shell.run(command)
        if status and GONE not in err:
            raise SiteError(f"{self._shell.name}: squeue: {last_line(err)}")
        state, _, why = out.decode().strip().partition("|")
        return ("", "") if state in OVER else (state, why)

    @property
    def _submitted(self) -> str:
        """The file with the job's number."""
        return self._place.path("submitted")

    def _words(self) -> list[str]:
        count = max(self._machines) + 1
        options = {"job-name": f"geomx-{self._job.run}-{self._job.name}", "nodes": count, "ntasks": count}
        options |= {name: value for name, value in self._options.items() if value}
        return [f"--{name}={value}" for name, value in options.items()]

    def _script(self) -> str:
        """The batch script: one keeper a machine, and what happens before the time limit."""
        may_requeue = self._job.restart.most and not any(node.vital for node in self._job.nodes)
        again = 'scontrol requeue "$SLURM_JOB_ID"'
        leave = 'scancel --signal=USR1 "$SLURM_JOB_ID"'
        options = [
            *self._words(),
            "--ntasks-per-node=1",
            "--output=logs/slurm",
            "--open-mode=append",
            f"--signal=B:USR1@{BEFORE_LIMIT_S}",
            "--requeue" if may_requeue else "--no-requeue",
        ]
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in options),
            'host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            f"before_limit() {{ {again if may_requeue else leave}; }}",
            "trap before_limit USR1",
            'srun --kill-on-bad-exit=0 --wait=0 sh keep.sh "$host" &',
            "step=$!",
            'while kill -0 "$step" 2> /dev/null; do wait "$step"; done',
        ]
        return "\n".join([*lines, ""])

    @property
    def _scripts(self) -> dict[str, bytes]:
        keeper = self._place.keep('"$SLURM_PROCID"', '"$1"')
        return {"job.sh": self._script().encode(), "keep.sh": keeper.encode()}
