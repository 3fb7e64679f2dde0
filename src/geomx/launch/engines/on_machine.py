"""What is called on a machine of a site: looks at it, places a run's files, starts its keeper, tells of it, ends it.

    python on_machine.py VERB ...      `up` sends this file, and the other machine's Python runs it: nothing else is
                                       needed there to find out that geomx is missing

One folder holds what runs on one machine, or on several that share a disk:

    job.json     what to run: nodes, words of their commands, restarts, how long a stop may take
    keep.sh      starts the keeper: a script of the site's `setup`, then `keeper.py`
    keeper.py, secret, tls/
    work/        where the nodes run, with the script and the description; what a script writes stays here when all
                 else is removed
    logs/, records/, state/        one file a node
    lock0, ...   locked by the keeper of each machine as long as it lives; its process and its machine

Everything here is of Python's own library, and of 3.8: other versions are to be told, not to fail.
"""

from __future__ import annotations

import base64
import fcntl
import io
import json
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

POLL_S = 0.1
START_S = 300.0  # for a keeper to take its lock, behind the site's `setup`
END_S = 15.0  # for it to end, behind its nodes
DIAL_S = 5.0
PLACED = "placed.json"  # the names of the files that `start` has placed
CHUNK = 1 << 20
LINGERING = Path("/var/lib/systemd/linger")  # `loginctl enable-linger` puts a file there

Json = Any  # an object of any keys: `dict[str, Any]` is no name before Python 3.9


class Refused(Exception):
    """What is told to whoever asked, in one line."""


def main() -> None:
    """Do what the command line says. A refusal is one line on stderr, and status 3."""
    os.umask(0o077)
    verb, *words = sys.argv[1:]
    try:
        answer = VERBS[verb](*words)
        if answer is not None:
            print(json.dumps(answer))
    except Refused as error:
        print(error, file=sys.stderr)
        raise SystemExit(3) from None
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"{place}{error.strerror or error}", file=sys.stderr)
        raise SystemExit(3) from None


# -- before anything starts ------------------------------------------------------------------------------------


def probe() -> Json:
    """What this machine is, for whoever asks on stdin: `folder`, `dials`, `listens`."""
    asked = json.load(sys.stdin)
    folder = Path(asked["folder"]).expanduser()
    there = folder
    while not there.exists():
        there = there.parent
    return {
        "python": list(sys.version_info[:3]),
        "geomx": _version("geomx"),
        "torch": _version("torch"),
        "time": time.time(),
        "free_mb": shutil.disk_usage(there).free >> 20,
        "writable": os.access(there, os.W_OK),
        "folder": str(there),
        "keeps": _has_keeper(folder),
        "unreached": {address: why for address in asked["dials"] if (why := _unreached(address))},
        "taken": {address: why for address in asked["listens"] if (why := _taken(address))},
    }


def _version(package: str) -> str | None:
    """Without importing it: PyTorch takes seconds."""
    from importlib import metadata  # noqa: PLC0415 (not there before Python 3.8)

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _unreached(address: str) -> str:
    """Why an address cannot be dialled. That nobody listens there yet is no reason: its machine has answered."""
    try:
        socket.create_connection(_split(address), DIAL_S).close()
    except ConnectionRefusedError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _taken(address: str) -> str:
    host, port = _split(address)
    try:
        for family, kind, _, _, place in socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(place)
    except OSError as error:
        return error.strerror or str(error)
    return ""


# -- files, and the keeper's start ----------------------------------------------------------------------------------


def start(place: str) -> Json:
    """Unpack the files (a tar on stdin) into a folder, and start its keeper; `by` is empty where it has one."""
    with _placed(_folder(place)) as folder:
        if folder is None:
            return {"by": ""}
        began = time.monotonic()
        unit, session = _start_by_systemd(folder), None
        if not unit:
            session = _start_session(folder)
        while not _has_keeper(folder):
            has_ended = session is not None and session.poll() is not None
            if has_ended or time.monotonic() > began + START_S:
                _end_start(unit, session)
                raise Refused(f"the keeper did not start: {_tail(folder / 'logs' / 'keeper')}")
            time.sleep(POLL_S)
        return {"by": f"systemd, as {unit}" if unit else "a session of its own"}


def _end_start(unit: str, session: subprocess.Popen[bytes] | None) -> None:
    if session is None:
        subprocess.run(["systemctl", "--user", "stop", unit], check=False)
        return
    with suppress(ProcessLookupError):
        os.killpg(session.pid, signal.SIGKILL)


def submit(place: str, *command: str) -> Json:
    """Unpack the files, and run a command there that has others start the keepers; `said`: what it printed."""
    with _placed(_folder(place)) as folder:
        if folder is None:
            raise Refused("its nodes run already: `geomx status`, or `geomx down` first")
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Refused(f"{command[0]}: {_last_line(done.stderr)}")
        (folder / "submitted").write_text(done.stdout.strip())
        return {"said": done.stdout.strip()}


@contextmanager
def _placed(folder: Path) -> Iterator[Path | None]:
    """The folder with the files in it; None: its nodes run."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for own in (folder.parent, folder, folder / "work"):
        _check_ours(own)
    with _alone(folder):
        if _has_keeper(folder):
            yield None
        else:
            _unpack(folder, sys.stdin.buffer.read())
            yield folder


def _check_ours(path: Path) -> None:
    """Nobody else may have made it, or be able to change what is in it: its files are run, and some are keys."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise Refused(
            f"{path} is no folder that you alone may write: name another one as the site's `folder`"
        )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else starts or ends what is in this folder meanwhile."""
    path = folder.parent / (folder.name + ".claim")
    with path.open("w") as claim:
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = path.exists() and os.path.samestat(os.fstat(claim.fileno()), path.stat())
        except BlockingIOError:
            is_ours = False
        if not is_ours:
            raise Refused(f"another `geomx up` or `geomx down` is at work in {folder}")
        try:
            yield
        finally:
            path.unlink()


def _folder(place: str) -> Path:
    return Path(place).expanduser()


def _unpack(folder: Path, tar: bytes) -> None:
    """Files that only their owner may read. What an earlier start has logged and recorded stays, as in any restart."""
    _clear(folder, ("work", "logs", "records"))
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        members = [(member, _target(folder, member)) for member in archive]
        if not members or members[-1][0].name != "job.json":
            raise Refused("not all files have come: `geomx up` again")
        folder.mkdir(exist_ok=True)
        (folder / PLACED).write_text(json.dumps([member.name for member, _ in members]))
        for member, target in members:
            target.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(_content(archive, member))
    for name in ("work", "logs", "records", "state"):
        (folder / name).mkdir(parents=True, exist_ok=True)


def _target(folder: Path, member: tarfile.TarInfo) -> Path:
    if not member.isfile() or ".." in Path(member.name).parts or Path(member.name).is_absolute():
        raise Refused(f"{member.name} is no file of a run")
    return folder / member.name


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    source = archive.extractfile(member)
    assert source is not None
    return source.read()


def _clear(folder: Path, stays: Sequence[str] = ("work",)) -> None:
    """Remove what was placed here, and what geomx and Python have made of it."""
    work = folder / "work"
    for name in _json(folder / PLACED) or ():
        if name.startswith("work/") and (folder / name).exists():
            (folder / name).unlink()
    inside = sorted((path for path in work.rglob("*") if _is_folder(path)), reverse=True)
    for inner in inside:
        if inner.name == "__pycache__":
            shutil.rmtree(inner)
        elif inner.exists() and not any(inner.iterdir()):
            inner.rmdir()
    for path in folder.iterdir() if folder.exists() else ():
        if not _is_folder(path):
            path.unlink()
        elif path.name not in stays:
            shutil.rmtree(path)


def _is_folder(path: Path) -> bool:
    """And no link to one: a script may have made it."""
    return path.is_dir() and not path.is_symlink()


def _json(path: Path) -> Any:
    """What is in the file; None: there is none, or no room was left for all of it."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _start_by_systemd(folder: Path) -> str:
    """As a unit of the user's own systemd, which outlives a session; "": there is none, or it would not."""
    me = pwd.getpwuid(os.getuid())
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{me.pw_uid}"
    lingers = (LINGERING / me.pw_name).exists() and Path(runtime, "systemd", "private").exists()
    if not lingers or not shutil.which("systemd-run"):
        return ""
    unit = "geomx-" + "-".join(folder.parts[-2:])
    made = subprocess.run(
        ["systemd-run", "--user", "--collect", "--unit", unit, "sh", str(folder / "keep.sh")],
        env={**os.environ, "XDG_RUNTIME_DIR": runtime}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return unit if made.returncode == 0 else ""


def _start_session(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "logs" / "keeper").open("ab") as log:
        return subprocess.Popen(
            ["sh", str(folder / "keep.sh")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _is_locked(path: Path) -> bool:
    """Whether somebody who lives holds it."""
    try:
        with path.open("r+") as file:  # shared: others may ask at the same time
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _has_keeper(folder: Path) -> bool:
    return any(map(_is_locked, folder.glob("lock*")))


def _tail(path: Path) -> str:
    return _last_line(path.read_text(errors="replace") if path.exists() else "")


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "it said nothing"


# -- while it runs, and behind it ----------------------------------------------------------------------------------


def state(place: str) -> Json:
    """What became of each node here, by name; empty where there are no files of the run."""
    folder = _folder(place)
    found = {}
    for node in (_json(folder / "job.json") or {"nodes": ()})["nodes"]:
        keeps = _is_locked(folder / f"lock{node['machine']}")
        told = _json(folder / "state" / node["file"]) or {
            "state": "running" if keeps else "absent", "how": "", "restarts": 0,
        }  # fmt: skip
        if not keeps and told["state"] in ("running", "waiting"):
            told.update(state="failed", how="was killed with its keeper, or by a restart of the machine")
        found[node["name"]] = told
    return found


def read(place: str, folder: str, offsets: str) -> Json:
    """Up to 1 MiB of each file (`offsets`: name to offset, as JSON) in base64; a negative one counts from its end."""
    found = {}
    for name, at in json.loads(offsets).items():
        path = _folder(place) / folder / name
        with suppress(FileNotFoundError), path.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(0, size + at) if at < 0 else at)
            found[name] = base64.b64encode(opened.read(CHUNK)).decode()
    return found


def send(place: str) -> None:
    """Put files (a tar on stdin) in place of those of a run that is here."""
    folder = _folder(place)
    if not (folder / PLACED).exists():
        raise Refused(f"nothing of the run is in {folder}")
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for member in archive:
            target = _target(folder, member)
            new = target.with_name(target.name + ".new")
            new.write_bytes(_content(archive, member))
            new.replace(target)


def stop(place: str, purge: str = "") -> Json:
    """End the keeper with its nodes, and remove what `start` has placed; by "purge" also what scripts have written."""
    folder = _folder(place)
    if not folder.exists():
        return {"left": ""}
    with _alone(folder):
        for lock in folder.glob("lock*"):
            if _is_locked(lock):
                _end_keeper(folder, lock)
        _clear(folder)
        work = folder / "work"
        if purge and work.exists():
            shutil.rmtree(work)
        left = work.exists() and any(work.iterdir())
        if not left:
            shutil.rmtree(folder)
    for path in (folder.parent, folder.parent.parent):
        with suppress(OSError):
            path.rmdir()  # where it was the last run's
    return {"left": str(work) if left else ""}


def _end_keeper(folder: Path, lock: Path) -> None:
    """Only here: its number is another process elsewhere."""
    keeper, _, host = lock.read_text().partition(" ")
    if host != socket.gethostname() or not keeper.isdecimal():
        raise Refused(f"its keeper, process {keeper or '?'} on {host or '?'}, is not to be ended from here")
    patience_s = float((_json(folder / "job.json") or {"stop_s": 60.0})["stop_s"]) + END_S
    os.kill(int(keeper), signal.SIGTERM)
    give_up_at = time.monotonic() + patience_s
    while _is_locked(lock):
        if time.monotonic() > give_up_at:
            raise Refused(f"its keeper, process {keeper}, has not ended within {patience_s:g} s")
        time.sleep(POLL_S)


VERBS: Any = {
    "probe": probe,
    "start": start,
    "submit": submit,
    "send": send,
    "state": state,
    "read": read,
    "stop": stop,
}

if __name__ == "__main__":
    main()
