"""The engine `ssh`: nodes on machines that the system's own `ssh` reaches, with the user's configuration and agent."""

from __future__ import annotations

import shlex

from geomx.launch.engines.contract import Job, SiteError
from geomx.launch.engines.machines import ANSWER_S, OnMachines, Shell

LOST = 255  # the status of `ssh` itself, where it could not run the command
CONNECT_S = 15
SILENT_S = 15  # between probes of a connection that carries nothing; three of them unanswered end it
# What `ssh` says, and what to do about it.
REMEDIES = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key is another one than known_hosts has: find out why, and "
     "only then `ssh-keygen -R` it"),
    ("Host key verification failed", "its host key is not known: connect once by hand, `ssh {host}`"),
    ("Permission denied", "it does not let you in without a password: `ssh-copy-id {host}`, or load your key into the "
     "agent (`ssh-add`)"),
    ("Could not resolve hostname", "nobody knows this name: is it in ~/.ssh/config, or in DNS?"),
    ("timed out", "it does not answer: is it up, and does a firewall let you through?"),
    ("Connection refused", "no sshd listens there: is the port right?"),
    ("No route to host", "there is no way to it: is its network up?"),
)  # fmt: skip


class Ssh(OnMachines):
    """The nodes of a job on `hosts`. `config`: a file instead of ~/.ssh/config."""

    def __init__(self, job: Job, *, config: str = "") -> None:
        super().__init__(job, [Host(host, config) for host in job.site.hosts])


class Host(Shell):
    """A machine that `ssh` reaches."""

    def __init__(self, name: str, config: str = "") -> None:
        self.name = name
        self._words = ["ssh", *(["-F", config] if config else [])]

    def run(self, command: str, data: bytes = b"", within_s: float = ANSWER_S) -> tuple[int, bytes, str]:
        """See `Shell`."""
        status, out, said = super().run(command, data, within_s)
        if status == LOST:
            raise SiteError(f"{self.name}: {_remedy(said, shlex.join([*self._words[1:], self.name]))}")
        return status, out, said

    def words(self, command: str) -> list[str]:
        """See `Shell`. Never asks for a password, and ends when the machine is silent."""
        options = {"BatchMode": "yes", "ConnectTimeout": CONNECT_S, "ServerAliveInterval": SILENT_S}
        words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        # whatever shell the account has, `sh` reads the command
        return [*self._words, *words, self.name, f"exec sh -c {shlex.quote(command)}"]

    def by_hand(self, command: str) -> str:
        """See `Shell`."""
        return shlex.join([*self._words, self.name, command])


def _remedy(said: str, host: str) -> str:
    """What `ssh` said, and what to do."""
    for words, remedy in REMEDIES:
        if words in said:
            return remedy.format(host=host)
    lines = said.strip().splitlines()
    return f"ssh: {lines[-1]}" if lines else "ssh ended without a word"
