"""Engines whose site is a number of machines on which a shell runs: each has a keeper."""

from __future__ import annotations

import base64
import io
import json
import shlex
import subprocess
import tarfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from geomx import __version__
from geomx.config.tables.sites import SiteTable
from geomx.launch.engines import keeper, on_machine
from geomx.launch.engines.contract import Dialled, FileOf, Job, JobNode, NodeState, SiteError, file_name

LEAST_FREE_MB = 500
CLOCK_S = 60.0  # by which clocks may differ: certificates begin and end at a moment
ANSWER_S = 120.0
CHANGES = ("start", "submit", "stop")  # which may take as long as a site's `setup`, or its nodes' end
LEAST_PYTHON = (3, 11)
SETUP_FAILED = 99
NOT_FOUND = (126, 127)  # the shell's, for a command that it cannot run
# The program comes before its input, on stdin: nothing has to be installed, and nothing stands in a process list.
# What is printed before the mark is not its answer: a login may greet.
MARK = "geomx on this machine\n"
BOOT = (
    "import sys; n = int(sys.stdin.buffer.readline()); code = compile(sys.stdin.buffer.read(n), 'on_machine', 'exec'); "
    f"sys.stdout.write({MARK!r}); sys.stdout.flush(); exec(code)"
)
Answer = TypeVar("Answer")


class Shell(ABC):
    """Runs commands on one machine. `name`: of the machine, for messages. `python`: where the site names none."""

    name: str
    python = "python3"

    def run(self, command: str, data: bytes = b"", within_s: float = ANSWER_S) -> tuple[int, bytes, str]:
        """Run a shell's command with this stdin; gives status, stdout, stderr. `SiteError`: the machine is away."""
        try:
            done = subprocess.run(
                self.words(command), input=data, capture_output=True, check=False, timeout=within_s
            )
        except subprocess.TimeoutExpired:
            hint = "is it overloaded, or does a disk of its not answer?"
            raise SiteError(f"{self.name}: no answer within {within_s:g} s: {hint}") from None
        except FileNotFoundError:
            raise SiteError(f"this machine has no `{self.words(command)[0]}`: install it") from None
        return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")

    @abstractmethod
    def words(self, command: str) -> list[str]:
        """What is called here."""

    @abstractmethod
    def by_hand(self, command: str) -> str:
        """How a user runs it."""

    def must(self, command: str, data: bytes = b"") -> str:
        """What a command prints. Raises `SiteError` with its last words where it fails."""
        status, out, err = self.run(command, data)
        if status:
            raise SiteError(f"{self.name}: {last_line(err) or f'it ended with status {status}'}")
        return out.decode("utf-8", "replace")


class Place:
    """A job's folder on one machine, and the keeper that works there. `nodes`: those that run out of it."""

    def __init__(self, shell: Shell, job: Job, number: int, nodes: Sequence[JobNode]) -> None:
        self.shell, self.nodes = shell, nodes
        self._python = job.site.python or shell.python
        self._job = job
        # Machines may share a disk, and sites a machine.
        self.folder = str(PurePosixPath(job.site.folder, job.run, f"{job.name}.{number}"))

    def path(self, name: str) -> str:
        """Of a file in it, for a shell."""
        path = f"{self.folder}/{name}"
        return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)

    def ask(self, verb: str, *words: str, data: bytes = b"") -> Any:
        """What `on_machine.py` answers to a verb, with this stdin. Raises `SiteError`."""
        answer = self._tell(verb, *words, data=data)
        try:
            return json.loads(answer)
        except ValueError:
            raise SiteError(f"{self.shell.name}: no answer to `{verb}`, but {answer[:100]!r}") from None

    def _tell(self, verb: str, *words: str, data: bytes = b"") -> bytes:
        site, name = self._job.site, self.shell.name
        place = () if verb == "probe" else (self.folder,)
        python = shlex.join([self._python, "-c", BOOT, verb, *place, *words])
        setup = "".join(f"{line} || exit {SETUP_FAILED}\n" for line in site.setup)
        code = Path(on_machine.__file__).read_bytes()
        within_s = on_machine.START_S + self._job.stop_s if verb in CHANGES else ANSWER_S
        status, out, err = self.shell.run(
            f"{setup}exec {python}", b"%d\n%s%s" % (len(code), code, data), within_s
        )
        if status == 0:
            return out.partition(MARK.encode())[2]
        last = last_line(err) or f"it ended with status {status}"
        if status == SETUP_FAILED:
            raise SiteError(f"{name}: its `setup` failed: {last}")
        if status in NOT_FOUND:
            remedy = "install it, or name another one as the site's `python`"
            raise SiteError(f"{name}: no Python `{self._python}` ({last}): {remedy}")
        raise SiteError(f"{name}: {last}")

    def problems(self) -> list[str]:
        """What a probe of the machine finds in the way, with what to do."""
        inside = {address for node in self._job.nodes for address in node.listens}
        asked = {
            "folder": self.folder,
            "dials": sorted({address for node in self.nodes for address in node.dials} - inside),
            "listens": sorted({address for node in self.nodes for address in node.listens}),
        }
        before = time.time()
        try:
            found = self.ask("probe", data=json.dumps(asked).encode())
        except SiteError as error:
            return [str(error)]
        lines = problems_of(found, (before, time.time()), self._python)
        return [f"{self.shell.name}: {line}" for line in lines]

    def place(self, verb: str, *words: str, machines: Sequence[int], more: Mapping[str, bytes]) -> Any:
        """Have `on_machine.py` unpack the job's files, and go on with `verb`.

        `machines`: on which of those that share the folder each node runs. `more`: files besides.
        """
        return self.ask(verb, *words, data=tar_of(self.files(machines, more)))

    def send(self, files: Mapping[str, bytes]) -> None:
        """See `Engine`."""
        self._tell("send", data=tar_of(files))

    def files(self, machines: Sequence[int], more: Mapping[str, bytes]) -> dict[str, bytes]:
        """All files of the folder, by path."""
        restart = self._job.restart
        described = {
            "nodes": [_as_json(*each, restart.most) for each in zip(self.nodes, machines, strict=True)],
            "within_s": restart.within_s,
            "stop_s": self._job.stop_s,
        }
        own = {"keeper.py": Path(keeper.__file__).read_bytes()}
        last = {"job.json": json.dumps(described, indent=1).encode()}  # says that all have come
        return {**self._job.files, **own, **more, **last}

    def keep(self, *words: str) -> str:
        """A shell's script that is the keeper of this folder; `words`: behind the folder."""
        site = self._job.site
        place = ['cd "$(dirname "$0")" || exit', "here=$PWD"]
        keep = f'exec {shlex.quote(self._python)} "$here/keeper.py" "$here" {" ".join(words)}'.rstrip()
        return "\n".join(["#!/bin/sh", *place, *site.setup, keep, ""])

    def state(self, hosts: bool = False) -> dict[str, NodeState]:
        """What became of the nodes, as their keepers have written it. `hosts`: with each machine's own name."""
        told = self.ask("state")
        return {node.name: state_of(told.get(node.name, {}), self.shell.name, hosts) for node in self.nodes}

    def read(self, file: FileOf, offsets: Mapping[str, int]) -> dict[str, bytes]:
        """See `Engine`; nodes that do not run here are left out."""
        ending = ".jsonl" if file == "records" else ""
        nodes = {file_name(node.name) + ending: node.name for node in self.nodes if node.name in offsets}
        if not nodes:
            return {}
        found = self.ask("read", file, json.dumps({name: offsets[node] for name, node in nodes.items()}))
        return {nodes[name]: base64.b64decode(content) for name, content in found.items()}

    def stop(self, purge: bool) -> list[str]:
        """End the keeper that works on this machine, and remove the files. See `Engine.stop`."""
        left = self.ask("stop", *(("purge",) if purge else ()))["left"]
        return [f"{self.shell.name}:{left}"] if left else []

    def printed(self, files: Sequence[str], command: str) -> str:
        """See `Engine`."""
        nodes = "".join(f"#   {node.name}: {shlex.join(node.argv)}\n" for node in self.nodes)
        return (
            f"# {self.shell.name}: in {self.folder}, readable by its owner alone: {', '.join(sorted(files))}\n"
            f"{nodes}{self.shell.by_hand(command)}\n"
        )


class OnMachines:
    """An engine over shells, one a machine: each has a folder and a keeper of its own."""

    def __init__(self, job: Job, shells: Sequence[Shell]) -> None:
        self._places = [Place(shell, job, number, job.on(number)) for number, shell in enumerate(shells)]

    @staticmethod
    def machines(site: SiteTable) -> int:
        """See `Engine`: `hosts`, or this one."""
        return max(1, len(site.hosts))

    @staticmethod
    def dialled(site: SiteTable, run: str, server: str, machines: int) -> Dialled:
        """See `Engine`: on the first machine."""
        return Dialled("127.0.0.1" if machines == 1 else site.hosts[0].rpartition("@")[2])

    def prepare(self) -> Sequence[str]:
        """See `Engine`."""
        return [line for lines in self._on_each(Place.problems) for line in lines]

    def start(self) -> str:
        """See `Engine`."""
        by = self._on_each(
            lambda place: place.place("start", machines=_alone(place), more=_keeper(place))["by"]
        )
        started = [
            f"{place.shell.name}: {each}" for place, each in zip(self._places, by, strict=True) if each
        ]
        if not started:
            raise SiteError("its nodes run already: `geomx status`, or `geomx down` first")
        return "; ".join(started)

    def state(self) -> Mapping[str, NodeState]:
        """See `Engine`."""
        return {name: state for states in self._on_each(Place.state) for name, state in states.items()}

    def read(self, file: FileOf, offsets: Mapping[str, int]) -> Mapping[str, bytes]:
        """See `Engine`."""
        found = self._on_each(lambda place: place.read(file, offsets))
        return {node: content for each in found for node, content in each.items()}

    def send(self, files: Mapping[str, bytes]) -> None:
        """See `Engine`."""
        self._on_each(lambda place: place.send(files))

    def stop(self, purge: bool) -> Sequence[str]:
        """See `Engine`."""
        return [line for lines in self._on_each(lambda place: place.stop(purge)) for line in lines]

    def bundled(self) -> bytes:
        """See `Engine`. With several machines, a folder for each."""
        every = {place: place.files(_alone(place), _keeper(place)) for place in self._places}
        if len(every) == 1:
            return tar_of(*every.values())
        return tar_of(
            {
                f"{place.shell.name}/{name}": content
                for place, files in every.items()
                for name, content in files.items()
            }
        )

    def printed(self) -> str:
        """See `Engine`."""
        return "\n".join(
            place.printed(
                list(place.files(_alone(place), _keeper(place))),
                f"nohup setsid sh {place.path('keep.sh')} > /dev/null 2>&1 &",
            )
            for place in self._places
        )

    def _on_each(self, do: Callable[[Place], Answer]) -> list[Answer]:
        with ThreadPoolExecutor(max(1, len(self._places))) as pool:
            return list(pool.map(do, self._places))


def last_line(text: str) -> str:
    """The last line that says anything; "": none does."""
    return (text.strip().splitlines() or [""])[-1].strip()


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """Files in a tar, by path."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o600
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _alone(place: Place) -> list[int]:
    """The folder is one machine's."""
    return [0] * len(place.nodes)


def _keeper(place: Place) -> dict[str, bytes]:
    return {"keep.sh": place.keep().encode()}


def problems_of(found: Mapping[str, Any], asked_at: tuple[float, float], python: str) -> list[str]:
    """What is wrong with a machine, of the facts that a probe has found. `asked_at`: before and after, Unix time."""
    lines = []
    version = tuple(found["python"])
    if version < LEAST_PYTHON:
        least = ".".join(map(str, LEAST_PYTHON))
        lines.append(
            f"`{python}` is Python {'.'.join(map(str, version))}: geomx needs {least} or newer; name another one as "
            "the site's `python`"
        )
    if found["geomx"] is None:
        lines.append(f"geomx is not installed for `{python}`: pip install geomx=={__version__}")
    elif found["geomx"] != __version__:
        lines.append(
            f"geomx {found['geomx']} is installed, and {__version__} here: install the same version on all machines"
        )
    if found["torch"] is None:
        lines.append(f"PyTorch is not installed for `{python}`: pip install torch")
    before, after = asked_at
    off_s = max(before - found["time"], found["time"] - after)
    if off_s > CLOCK_S:
        lines.append(
            f"its clock is {off_s:,.0f} s off: let it be set by NTP; certificates would not be valid"
        )
    if found["free_mb"] < LEAST_FREE_MB:
        lines.append(f"{found['free_mb']} MB are free at {found['folder']}: {LEAST_FREE_MB} are needed")
    if not found["writable"]:
        lines.append(f"{found['folder']} cannot be written: name another one as the site's `folder`")
    lines += [
        f"{address} cannot be reached ({why}): is it the right address, and does a firewall let it through?"
        for address, why in found["unreached"].items()
    ]
    if not found["keeps"]:  # else its own nodes have them
        lines += [
            f"no server can listen at {address} ({why}): {_remedy_of_taken(why)}"
            for address, why in found["taken"].items()
        ]
    return lines


def _remedy_of_taken(why: str) -> str:
    if "assign" in why:
        return (
            "is it this machine's? Where others reach it by another address, give one of its own as `listen`"
        )
    return "end what has it, or give another address or `listen`"


def _as_json(node: JobNode, machine: int, most: int) -> dict[str, Any]:
    return {
        "name": node.name,
        "file": file_name(node.name),
        "machine": machine,
        "argv": node.argv,
        "serves": node.serves,
        "environment": dict(node.environment),
        "most": 0 if node.vital else most,
    }


def state_of(told: Mapping[str, Any], machine: str, hosts: bool) -> NodeState:
    """What a keeper tells of a node; nothing: it does not know it. `hosts`: by the machine's own name."""
    if not told:
        return NodeState("absent", "" if hosts else machine)
    where = str(told.get("host", "")) if hosts else machine
    return NodeState(told["state"], where, told["how"], told.get("since"), told["restarts"])
