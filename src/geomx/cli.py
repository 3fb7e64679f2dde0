"""The command `geomx`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import geomx
from geomx.config import EVERY_FILE, Needed, Run, describe, load_whole, notices
from geomx.config.choices import Choices
from geomx.config.decision import decide
from geomx.config.script import Script
from geomx.errors import ConfigError, Fault, GeomxError
from geomx.launch.environment import apply_switches

OK, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130
LOG_LINE = "%(asctime)s %(message)s"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; gives its exit status: 0, 1 (a node failed), 2 (wrong usage or description), 130 (Ctrl-C).

    Raises SystemExit where something is told already: wrong usage, and of servers a failure of another node.
    """
    try:
        arguments = _parse(list(sys.argv[1:] if argv is None else argv))
        apply_switches()
        action: Callable[[argparse.Namespace], None] = arguments.action
        action(arguments)
    except ConfigError as error:
        return _say(error, BAD_USAGE)
    except (GeomxError, OSError) as error:
        return _say(error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK


def _say(error: Exception, status: int) -> int:
    print(f"geomx: {error}", file=sys.stderr, flush=True)
    return status


# -- the command line ----------------------------------------------------------------------------------------


def _parse(argv: list[str]) -> argparse.Namespace:
    """The arguments. What stands behind `--` is a worker's command, and not looked into."""
    end = argv.index("--") if "--" in argv else len(argv)
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv[:end])
    wrong = [word for word in rest if word.startswith("-") or "=" not in word]
    if wrong or (rest and "overrides" not in arguments):
        parser.error(f"cannot make sense of {' '.join(wrong or rest)} (settings are given as key=value)")
    if "overrides" in arguments:
        arguments.overrides += rest  # those between options
    if getattr(arguments, "strict", False):
        arguments.overrides.append("run.strict=true")
    arguments.command = argv[end + 1 :]
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="geomx", description="Train one PyTorch model across data centers that are far apart."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    run = _command(commands, "run", _run, "run every node of a run on this machine")
    run.add_argument("--report", type=Path, metavar="FILE", help="write what remains of the run as JSON")
    run.add_argument("--trace", type=Path, metavar="FILE", help="write a trace for ui.perfetto.dev")
    run.add_argument("--keep", action="store_true", help="keep the run's folder, with its records")
    run.add_argument("--plain", action="store_true", help="plain lines instead of the live view")
    _add_strict(run)

    serve = _command(commands, "serve", _serve, "run one server of a run")
    serve.add_argument("--role", choices=("global", "local"), required=True)
    serve.add_argument(
        "--shard", type=int, default=None, metavar="I", help="which global server (default: 0)"
    )
    serve.add_argument("--party", metavar="NAME", help="whose local server")

    worker = _command(commands, "worker", _worker, "run a command as one worker of a run")
    worker.usage = "geomx worker RUN.toml --party NAME [--rank I] [key=value ...] -- COMMAND ..."
    worker.add_argument("--party", metavar="NAME", required=True)
    worker.add_argument(
        "--rank", type=int, metavar="I", help='left out where party.inside = "collective": torchrun gives it'
    )

    check = _command(commands, "check", _check, "validate a run's description and print its tree")
    check.add_argument(
        "--elsewhere",
        action="store_true",
        help="this machine runs no node: do not look for the script and the certificates",
    )

    plan = _command(
        commands, "plan", _plan, "predict which algorithm and codecs would be fastest, and for what"
    )
    known = plan.add_mutually_exclusive_group()
    known.add_argument(
        "--measure", action="store_true", help="train a few steps on this machine to learn the rest"
    )
    known.add_argument(
        "--report", type=Path, metavar="FILE", help="learn the rest from an earlier run's report"
    )
    size = plan.add_mutually_exclusive_group()
    size.add_argument("--model", metavar="MODULE:FUNCTION", help="gives the model when it is called")
    size.add_argument("--parameters", type=int, metavar="N", help="how many the model trains")
    plan.add_argument(
        "--step-ms",
        action="append",
        default=[],
        metavar="[PARTY=]MS",
        help="how long a worker computes for a step",
    )
    plan.add_argument("--steps", type=int, metavar="N", help="how many steps each worker will take")
    text = "to compare, in place of a choice of them (may be repeated)"
    plan.add_argument("--algorithm", action="append", default=[], metavar="POLICY", help=text)
    plan.add_argument("--codec", action="append", default=[], metavar="UP[;DOWN]", help=text)
    plan.add_argument("--json", type=Path, metavar="FILE", help="write the predictions as JSON")
    _add_strict(plan)

    examples = _add(commands, "examples", _examples, "list the examples, or run some of them")
    examples.add_argument("names", nargs="*", metavar="NAME", help="which to run; `all` for every one")
    examples.add_argument("--plain", action="store_true", help="plain lines instead of the live view")

    text = "make the report of a run on several machines"
    report = _command(commands, "report", _report, text, records="the folder with the nodes' records")
    report.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    report.add_argument("--trace", type=Path, metavar="FILE", help="write a trace for ui.perfetto.dev")

    secret = _add(commands, "secret", _secret, "make a secret for a run, by which its nodes know each other")
    secret.add_argument(
        "file", type=Path, metavar="FILE", help="where to write it; to be copied to every machine"
    )

    inspect = commands.add_parser("inspect", help="measure something on this machine")
    subjects = inspect.add_subparsers(title="subjects", metavar="SUBJECT", required=True)
    codec = _add(subjects, "codec", _inspect_codec, "what codecs would save and cost for a model")
    codec.add_argument(
        "specs", nargs="*", metavar="CODEC", help='such as "bisparse ratio=0.01" (default: every one)'
    )
    codec.add_argument("--model", metavar="MODULE:FUNCTION", help="gives the model when it is called")
    codec.add_argument(
        "--parameters", type=int, default=10_000_000, metavar="N", help="of one tensor, instead of a model"
    )
    return parser


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    action: Callable[[argparse.Namespace], None],
    text: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    command.set_defaults(action=action)
    return command


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    action: Callable[[argparse.Namespace], None],
    text: str,
    **paths: str,
) -> argparse.ArgumentParser:
    """A command that takes a run's description, `paths`, and keys in place of the file's."""
    command = _add(commands, name, action, text)
    command.add_argument("run", metavar="RUN.toml", help="the run's description")
    for path, meaning in paths.items():
        command.add_argument(path, type=Path, metavar=path.upper(), help=meaning)
    command.add_argument("overrides", nargs="*", metavar="key=value", help="settings in place of the file's")
    return command


def _add_strict(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--strict", action="store_true", help="make an error of what is known to cost accuracy"
    )


class _Version(argparse.Action):
    """Prints the version, which takes a look at the installed packages: only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"geomx {geomx.__version__}")
        parser.exit()


# -- the commands --------------------------------------------------------------------------------------------------


def _check(arguments: argparse.Namespace) -> None:
    needed = () if arguments.elsewhere else EVERY_FILE
    run = _load(arguments, *needed)
    costs = (f"known to cost accuracy: {cost.text}" for cost in decide(Choices.of(run), Script()).costs)
    print("\n".join([describe(run), *(f"\nnote: {notice}" for notice in (*notices(run), *costs))]))


def _load(arguments: argparse.Namespace, *needed: Needed) -> Run:
    """The description, with everything beside it that it names; those of its files must be here that are needed."""
    from geomx.launch.environment import import_beside  # noqa: PLC0415 (only needed by commands that read one)

    import_beside(Path(arguments.run))
    return load_whole(arguments.run, arguments.overrides, needed)


def _read(arguments: argparse.Namespace) -> Run:
    """The description alone; what it names is not looked for yet, which may take PyTorch."""
    from geomx.launch.environment import import_beside  # noqa: PLC0415 (only needed by commands that read one)

    import_beside(Path(arguments.run))
    return Run.load(arguments.run, arguments.overrides)


def _run(arguments: argparse.Namespace) -> None:
    from geomx.launch.local_run import RunOptions, run_here  # noqa: PLC0415 (other commands do without rich)

    run = _load(arguments, *EVERY_FILE)
    for notice in notices(run):
        print(f"note: {notice}", file=sys.stderr)
    run_here(run, RunOptions(arguments.report, arguments.trace, arguments.keep, arguments.plain))


def _serve(arguments: argparse.Namespace) -> None:
    from geomx.launch.ports import Ports  # noqa: PLC0415 (only needed here)

    run = _read(arguments)
    name = _server_name(run, arguments)
    with Ports() as ports:
        ports.claim(run, name, by="geomx serve")  # before seconds are spent on PyTorch
        run = _load(arguments, "tls")
        from geomx.launch.serve import serve  # noqa: PLC0415 (it imports torch)

        logging.basicConfig(level=logging.INFO, format=LOG_LINE, datefmt="%H:%M:%S", stream=sys.stdout)
        serve(run, name)


def _server_name(run: Run, arguments: argparse.Namespace) -> str:
    """The server that the options mean; raises `ConfigError`."""
    if arguments.role == "global":
        if arguments.party is not None:
            raise _wrong("--party", arguments.party, "only with --role local")
        shard = arguments.shard or 0
        if not 0 <= shard < run.run.shards:
            raise _wrong(
                "--shard", str(shard), f"0 to {run.run.shards - 1}, since run.shards = {run.run.shards}"
            )
        return run.shard_names[shard]
    if arguments.shard is not None:
        raise _wrong("--shard", str(arguments.shard), "only with --role global")
    if arguments.party is None:
        raise _wrong("--party", "nothing", f"one of {', '.join(run.servers)}")
    return run.party(arguments.party).name


def _worker(arguments: argparse.Namespace) -> None:
    from geomx.launch.environment import ProcessPlace, environment_of, read_place  # noqa: PLC0415 (only needed here)
    from geomx.launch.script import through  # noqa: PLC0415

    run, overrides, rank = _load(arguments, "tls"), tuple(arguments.overrides), arguments.rank
    workers = run.workers_of(arguments.party)
    allowed = f"0 to {len(workers) - 1}, since {arguments.party} has {len(workers)}"
    if rank is None and run.party(arguments.party).inside != "collective":
        raise _wrong("--rank", "nothing", allowed)
    if rank is not None and not 0 <= rank < len(workers):
        raise _wrong("--rank", str(rank), allowed)
    if not arguments.command:
        raise _wrong("the worker's command", "nothing", "`-- COMMAND ...`, such as `-- python train.py`")
    now = read_place()
    place = ProcessPlace(
        Path(arguments.run), overrides, arguments.party, rank, now.records, now.trace, now.watched
    )
    try:
        os.execvpe(arguments.command[0], through(arguments.command), environment_of(place))
    except OSError as error:
        raise _wrong("the worker's command", arguments.command[0], f"a command ({error.strerror})") from error


def _plan(arguments: argparse.Namespace) -> None:
    for option in ("parameters", "steps"):
        given = getattr(arguments, option)
        if given is not None and given < 1:
            raise _wrong(f"--{option}", str(given), "1 or more")
    from geomx.launch.plan import PlanOptions, plan  # noqa: PLC0415
    from geomx.launch.plan_facts import Sources  # noqa: PLC0415 (it imports torch)

    sources = Sources(
        arguments.measure,
        arguments.report,
        arguments.model,
        arguments.parameters,
        arguments.step_ms,
        arguments.steps,
    )
    needed = EVERY_FILE if arguments.measure else ()
    plan(
        _load(arguments, *needed), PlanOptions(sources, arguments.algorithm, arguments.codec, arguments.json)
    )


def _report(arguments: argparse.Namespace) -> None:
    from geomx.launch.gather import gather  # noqa: PLC0415 (it imports rich)

    gather(_load(arguments), arguments.records, arguments.json, arguments.trace)


def _examples(arguments: argparse.Namespace) -> None:
    from geomx.launch.examples import choose, listing, run_examples  # noqa: PLC0415 (it imports rich)

    if arguments.names:
        run_examples(choose(arguments.names), arguments.plain)
    else:
        print(listing())


def _secret(arguments: argparse.Namespace) -> None:
    from geomx.drive.secret import make_secret  # noqa: PLC0415 (only needed here)

    make_secret(arguments.file)
    print(f"{arguments.file}: give it to every node as run.secret_file, and to nobody else")


def _inspect_codec(arguments: argparse.Namespace) -> None:
    if arguments.parameters < 1:
        raise _wrong("--parameters", str(arguments.parameters), "1 or more")
    from geomx.launch.inspect_codec import inspect  # noqa: PLC0415 (it imports torch)

    inspect(arguments.specs, arguments.model, arguments.parameters)


def _wrong(option: str, found: str, allowed: str) -> ConfigError:
    return ConfigError("the command line", [Fault(option, found, allowed)])
