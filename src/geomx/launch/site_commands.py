"""The commands of runs on sites, as `geomx.cli` adds them: `init`, `doctor`, `up`, `status`, ...

Each action is given the parsed arguments; `arguments.read(arguments)` is the run's description, loaded.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from geomx.config import Run

EXAMPLES = {
    "init": ("", "sites.toml --script train.py --sites paris=gpu1,gpu2 tokyo=slurm --workers 2"),
    "doctor": ("", "sites.toml"),
    "up": ("sites.toml", "sites.toml --print"),
    "kubernetes": ("sites.toml",),
    "provision": ("sites.toml", "sites.toml --renew", "sites.toml --revoke paris/0"),
    "status": ("sites.toml",),
    "logs": ("sites.toml paris/0", "sites.toml global/0 --follow"),
    "attach": ("sites.toml",),
    "down": ("sites.toml", "sites.toml --records records"),
}
MOST_DAYS = 3650  # as the authority's own
Add = Callable[..., argparse.ArgumentParser]
Read = Callable[[argparse.Namespace], Run]


def add(of_run: Add, plain: Add, read: Read) -> None:
    """Add the commands. `of_run` adds one that takes a description, `plain` one that need not; `read` reads that."""

    def command(
        name: str, action: Callable[[argparse.Namespace], None], text: str
    ) -> argparse.ArgumentParser:
        added = of_run(name, action, text)
        added.set_defaults(read=read)
        return added

    added = plain("init", _init, "write the description of a run on sites, from four answers")
    added.add_argument(
        "file", nargs="?", default="sites.toml", metavar="FILE", help="new file (default: %(default)s)"
    )
    added.add_argument("--script", metavar="FILE", help="the training script")
    text = "a site, the first with the global server: NAME=HOST,HOST or NAME=ENGINE"
    added.add_argument("--sites", nargs="+", default=[], metavar="NAME=HOST", help=text)
    added.add_argument("--workers", type=int, metavar="N", help="workers at each site")
    added.add_argument("--address", metavar="HOST[:PORT]", help="how the other sites reach the first one")

    added = plain(
        "doctor", _doctor, "look for what is wrong with this machine, and with those of a run's sites"
    )
    added.add_argument("run", nargs="?", metavar="RUN.toml", help="description of a run")
    added.add_argument("overrides", nargs="*", metavar="key=value", help="change a key of it for this call")
    added.set_defaults(read=read)

    added = command("up", _up, "start every node of a run on its sites, from this machine")
    added.add_argument("--print", action="store_true", help="start nothing: print how it is done by hand")
    text = "print what `kubectl apply` brings the run's sites of the engine kubernetes up with, keys included"
    command("kubernetes", _kubernetes, text)
    text = "make the certificates of a run, and a bundle for each site; `up` does it unasked"
    added = command("provision", _provision, text)
    added.add_argument("--renew", action="store_true", help="new certificates for all nodes")
    text = "its certificate counts no more, at once on sites that run (may be repeated)"
    added.add_argument("--revoke", action="append", default=[], metavar="NODE", help=text)
    text = "for how many days new ones count (default: %(default)s)"
    added.add_argument("--days", type=_days, default=90, metavar="N", help=text)

    command("status", _status, "show what runs where")
    text = "print what a node has written, wherever it runs"
    added = partial(of_run, node="a node, such as paris/0, paris or global/0")("logs", _logs, text)
    added.set_defaults(read=read)
    text = "how many of the last (default: %(default)s)"
    added.add_argument("--lines", type=int, default=50, metavar="N", help=text)
    added.add_argument(
        "--follow", action="store_true", help="go on with what comes, until the node has ended"
    )
    added = command(
        "attach", _attach, "show how far a run on its sites is, until it has ended; Ctrl-C detaches"
    )
    added.add_argument("--plain", action="store_true", help="print lines of progress instead of a live table")
    added = command("down", _down, "end a run on all of its sites, and remove its files there")
    text = "get the nodes' records before, for `geomx report`"
    added.add_argument("--records", type=Path, metavar="FOLDER", help=text)
    added.add_argument("--purge", action="store_true", help="remove what its scripts have written there, too")


def _days(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_DAYS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days from 1 to {MOST_DAYS}")
    return int(text)


# What the actions import takes its time, so each imports its own.


def _init(arguments: argparse.Namespace) -> None:
    from geomx.launch.init import Answers, init  # noqa: PLC0415

    answers = Answers(arguments.script, arguments.sites, arguments.workers, arguments.address)
    print(init(Path(arguments.file), answers))


def _doctor(arguments: argparse.Namespace) -> None:
    from geomx.launch.doctor import doctor  # noqa: PLC0415

    file = None if arguments.run is None else Path(arguments.run)
    _end_with(doctor(None if file is None else arguments.read(arguments), file))


def _up(arguments: argparse.Namespace) -> None:
    from geomx.launch import sites  # noqa: PLC0415

    sites.up(*_run(arguments), only_print=arguments.print)


def _kubernetes(arguments: argparse.Namespace) -> None:
    from geomx.launch import sites  # noqa: PLC0415

    sites.manifests(*_run(arguments))


def _provision(arguments: argparse.Namespace) -> None:
    from geomx.launch import sites  # noqa: PLC0415

    sites.provision(*_run(arguments), arguments.renew, arguments.revoke, arguments.days)


def _status(arguments: argparse.Namespace) -> None:
    from geomx.launch import sites  # noqa: PLC0415

    _end_with(sites.status(*_run(arguments)))


def _logs(arguments: argparse.Namespace) -> None:
    from geomx.launch import sites  # noqa: PLC0415

    sites.logs(*_run(arguments), str(arguments.node), arguments.lines, arguments.follow)


def _attach(arguments: argparse.Namespace) -> None:
    from geomx.launch import sites  # noqa: PLC0415

    _end_with(sites.attach(*_run(arguments), arguments.plain))


def _down(arguments: argparse.Namespace) -> None:
    from geomx.launch import sites  # noqa: PLC0415

    sites.down(*_run(arguments), arguments.records, arguments.purge)


def _run(arguments: argparse.Namespace) -> tuple[Run, Path]:
    return arguments.read(arguments), Path(arguments.run)


def _end_with(is_well: bool) -> None:
    if not is_well:
        raise SystemExit(1)
