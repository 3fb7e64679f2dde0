"""The command `geomx`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import geomx
from geomx.config import EVERY_FILE, Needed, Run, describe, load_whole, notices
from geomx.config.compatibility.choices import Choices
from geomx.config.compatibility.decision import decide
from geomx.config.compatibility.script import Script
from geomx.errors import ConfigError, Fault, GeomxError, Unsupported
from geomx.launch import site_commands
from geomx.launch.environment import apply_switches
from geomx.tree import ROW_SERVERS

OK, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130
LOG_LINE = "%(asctime)s %(message)s"

START = """\
start here:
  geomx examples fsa    run an example: two data centers, emulated on this machine
  geomx run RUN.toml    run what you have described yourself

`geomx COMMAND --help` shows a command's options, and examples of its use."""

# What stands behind each command's name.
EXAMPLES = {
    "run": ("demo.toml", "demo.toml wan.link.rate_mbps=20 --report report.json"),
    "serve": (
        "sites.toml --role global",
        "sites.toml --role global --standby",
        "sites.toml --role local --party paris",
        "sites.toml --role rows --place 2",
    ),
    "worker": (
        "sites.toml --party paris --rank 0 -- python train.py",
        "sites.toml --party tokyo -- torchrun --nproc-per-node 2 train.py",
    ),
    "leave": ("sites.toml paris/1", "sites.toml tokyo run.on_loss=continue"),
    "check": ("demo.toml", "sites.toml run.shards=2 --elsewhere"),
    "plan": (
        "demo.toml --measure",
        'demo.toml --parameters 1000000 --step-ms 50 --codec int8 --codec "int8; int4"',
    ),
    "examples": ("", "hfa esync"),
    "replay": ("sites.toml --shard 0 --first 800 --last 812",),
    "report": ("sites.toml records --json report.json --trace trace.json",),
    "secret": ("sites.secret",),
    "codec": ("", 'int4 "bisparse ratio=0.01" --model train:make_model'),
    **site_commands.EXAMPLES,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; gives its exit status: 0, 1 (a node failed), 2 (wrong usage or description), 130 (Ctrl-C).
    Raises SystemExit where something is told already: wrong usage, and of servers a failure of another node."""
    try:
        arguments = _parse(list(sys.argv[1:] if argv is None else argv))
        apply_switches()
        action: Callable[[argparse.Namespace], None] = arguments.action
        action(arguments)
    except ConfigError as error:
        return _say(error, BAD_USAGE)
    except BrokenPipeError as error:
        if arguments.action in (_run, _serve, _worker):  # of which nobody has had enough
            return _say(error, FAILED)
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # whoever reads, as `head` does, has enough
    except (GeomxError, OSError) as error:
        return _say(error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK


def _say(error: Exception, status: int) -> int:
    print(f"geomx: {error}", file=sys.stderr, flush=True)
    return status


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
        prog="geomx",
        description="Train one PyTorch model across data centers that are far apart.",
        epilog=START,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    text = "start every node of a run on this machine, and print the results"
    run = _command(commands, "run", _run, text)
    run.add_argument("--report", type=Path, metavar="FILE", help="write the results to FILE as JSON")
    _add_trace(run)
    run.add_argument("--keep", action="store_true", help="keep the nodes' records, and print where they are")
    _add_plain(run)
    _add_strict(run, "treat settings that are known to cost accuracy as errors")

    _add_serve(commands)
    worker = _command(commands, "worker", _worker, "run a training script, or any command, as one worker")
    worker.usage = "geomx worker RUN.toml --party NAME [--rank I] [key=value ...] -- COMMAND ..."
    worker.add_argument("--party", metavar="NAME", required=True, help="the worker's party")
    worker.add_argument(
        "--rank",
        type=int,
        metavar="I",
        help="the worker's rank in its party, from 0; leave it out where torchrun sets it "
        '(party.inside = "collective")',
    )

    text = "have workers or servers that run on this machine leave the run, which goes on without them"
    leave = _add(commands, "leave", _leave, text)
    leave.add_argument("run", metavar="RUN.toml", help="description of the run")
    leave.add_argument(
        "nodes",
        nargs="+",
        metavar="NODE",
        help="worker, local server, region or row server, such as paris/1 or paris",
    )
    leave.set_defaults(overrides=[])

    check = _command(commands, "check", _check, "validate a run's description and draw its tree of nodes")
    check.add_argument(
        "--elsewhere",
        action="store_true",
        help="do not look for the script and the certificates: this machine runs no node",
    )
    check.add_argument(
        "--overlay",
        action="store_true",
        help="draw the ways of run.overlay and lan.overlay, by the links described",
    )
    _add_hub(check, "draw them")

    text = "predict seconds and bytes of a step for several sync policies and codecs"
    plan = _command(commands, "plan", _plan, text)
    _add_facts(plan)
    _add_choices(plan)
    plan.add_argument("--json", type=Path, metavar="FILE", help="write the predictions to FILE as JSON")
    _add_hub(plan, "compare overlays")
    _add_strict(plan, "leave out settings that are known to cost accuracy")

    examples = _add(commands, "examples", _examples, "list the examples, or run some of them")
    examples.add_argument("names", nargs="*", metavar="NAME", help="examples to run; `all` runs every one")
    _add_plain(examples)

    _add_looks(commands)
    site_commands.add(partial(_command, commands), partial(_add, commands), _load)

    secret = _add(commands, "secret", _secret, "make the secret by which a run's nodes recognize each other")
    secret.add_argument(
        "file", type=Path, metavar="FILE", help="new file; copy it to every machine of the run"
    )

    inspect = commands.add_parser("inspect", help="measure codecs on this machine")
    subjects = inspect.add_subparsers(title="subjects", metavar="SUBJECT", required=True)
    text = "measure how many bytes codecs save, and how long they take"
    codec = _add(subjects, "codec", _inspect_codec, text)
    codec.add_argument(
        "specs", nargs="*", metavar="CODEC", help='such as "bisparse ratio=0.01" (default: all codecs)'
    )
    codec.add_argument("--model", metavar="MODULE:FUNCTION", help="function that returns the model")
    codec.add_argument(
        "--parameters",
        type=int,
        default=10_000_000,
        metavar="N",
        help="size of one tensor, instead of a model (default: %(default)s)",
    )
    return parser


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    action: Callable[[argparse.Namespace], None],
    text: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.epilog = "\n".join(
        ["examples:", *(f"  {command.prog} {words}".rstrip() for words in EXAMPLES[name])]
    )
    command.set_defaults(action=action)
    return command


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    serve = _command(
        commands, "serve", _serve, "run one server: a global server, a region's or party's, or of rows"
    )
    serve.add_argument(
        "--role", choices=("global", "region", "local", "rows"), required=True, help="which kind of server"
    )
    serve.add_argument(
        "--shard", type=int, default=None, metavar="I", help="which global server, from 0 (default: 0)"
    )
    serve.add_argument(
        "--standby",
        type=int,
        nargs="?",
        const=1,
        default=0,
        metavar="K",
        help="stand by to take that server's place, at its further address K of global.addresses (default: 1)",
    )
    serve.add_argument(
        "--place",
        type=int,
        metavar="I",
        help=f"which row server, from 1 to {len(ROW_SERVERS)} (default: 1): it holds rows of tables, and may come and "
        "go while the run lasts",
    )
    serve.add_argument("--party", metavar="NAME", help="whose local server")
    serve.add_argument("--region", metavar="NAME", help="which region's server")


def _add_looks(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """What looks at a run that was."""
    text = "make the report of a run on several machines"
    report = _command(commands, "report", _report, text, records="folder with the nodes' records")
    report.add_argument("--json", type=Path, metavar="FILE", help="write the report to FILE as JSON")
    _add_trace(report)

    text = "repeat what global servers have in the run's store, and compare"
    again = _command(commands, "replay", _replay, text)
    again.add_argument("--shard", type=int, metavar="I", help="which global server, from 0 (default: all)")
    again.add_argument("--first", type=int, default=0, metavar="TURN", help="list no turn before this one")
    again.add_argument(
        "--last", type=int, default=1 << 62, metavar="TURN", help="list no turn behind this one"
    )
    again.add_argument("--json", type=Path, metavar="FILE", help="write what is printed to FILE as JSON")


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    action: Callable[[argparse.Namespace], None],
    text: str,
    **paths: str,
) -> argparse.ArgumentParser:
    """A command that takes a run's description, `paths`, and keys in place of the file's."""
    command = _add(commands, name, action, text)
    command.add_argument("run", metavar="RUN.toml", help="description of the run")
    for path, meaning in paths.items():
        command.add_argument(path, type=Path, metavar=path.upper(), help=meaning)
    command.add_argument(
        "overrides", nargs="*", metavar="key=value", help="change a key of the description for this call"
    )
    return command


def _add_facts(plan: argparse.ArgumentParser) -> None:
    """Where a prediction gets its facts from."""
    text = "--measure, --report, or a size with --step-ms"
    facts = plan.add_argument_group("model and computation", text)
    known = facts.add_mutually_exclusive_group()
    known.add_argument("--measure", action="store_true", help="train a few steps on this machine")
    known.add_argument("--report", type=Path, metavar="FILE", help="take them from an earlier run's report")
    size = facts.add_mutually_exclusive_group()
    size.add_argument("--model", metavar="MODULE:FUNCTION", help="function that returns the model")
    size.add_argument("--parameters", type=int, metavar="N", help="number of trained parameters")
    text = "milliseconds of computation in a step, everywhere or in one party (may be repeated)"
    facts.add_argument("--step-ms", action="append", default=[], metavar="[PARTY=]MS", help=text)
    facts.add_argument("--steps", type=int, metavar="N", help="number of steps that each worker will take")


def _add_choices(plan: argparse.ArgumentParser) -> None:
    text = "instead of the usual ones; each may be repeated"
    choices = plan.add_argument_group("what to compare", text)
    choices.add_argument("--algorithm", action="append", default=[], metavar="POLICY", help="sync policy")
    choices.add_argument(
        "--codec", action="append", default=[], metavar="UP[;DOWN]", help="codecs of the WAN"
    )


def _add_hub(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument(
        "--hub-mbps",
        type=float,
        default=0.0,
        metavar="MBPS",
        help=f"{what} where each global server has a link of so many Mbit/s, which parties share (default: no bound)",
    )


def _add_trace(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a timeline to FILE, for ui.perfetto.dev"
    )


def _add_plain(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--plain", action="store_true", help="print lines of progress instead of a live table"
    )


def _add_strict(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument("--strict", action="store_true", help=text)


class _Version(argparse.Action):
    """Prints the version, which takes a look at the installed packages: only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"geomx {geomx.__version__}")
        parser.exit()


def _check(arguments: argparse.Namespace) -> None:
    run = _load(arguments, "proof", *(() if arguments.elsewhere else EVERY_FILE))
    decision = decide(Choices.of(run), Script())
    if decision.refusals:
        raise Unsupported("; ".join(decision.refusals))
    told = [*notices(run, script=True), *(f"known to cost accuracy: {cost.text}" for cost in decision.costs)]
    print("\n".join([describe(run), *(f"\nnote: {notice}" for notice in told)]))
    if run.overlays or arguments.overlay:
        from geomx.launch.overlay_tables import drawing  # noqa: PLC0415 (it imports torch)

        drawn = drawing(run, arguments.hub_mbps)  # or it says what cannot be
        if arguments.overlay:
            print(f"\n{drawn}")


def _load(arguments: argparse.Namespace, *needed: Needed) -> Run:
    """The description, with everything beside it that it names; those of its files must be here that are needed."""
    return load_whole(_found(arguments), arguments.overrides, needed)


def _read(arguments: argparse.Namespace) -> Run:
    """The description alone; what it names is not looked for yet, which may take PyTorch."""
    return Run.load(_found(arguments), arguments.overrides)


def _found(arguments: argparse.Namespace) -> Path:
    from geomx.launch.environment import import_beside  # noqa: PLC0415 (only needed by commands that read one)

    import_beside(Path(arguments.run))
    return Path(arguments.run)


def _run(arguments: argparse.Namespace) -> None:
    from geomx.launch.local.local_run import RunOptions, run_here  # noqa: PLC0415 (other commands do without rich)

    run = _load(arguments, *EVERY_FILE)
    for notice in notices(run):
        print(f"note: {notice}", file=sys.stderr)
    run_here(run, RunOptions(arguments.report, arguments.trace, arguments.keep, arguments.plain))


def _serve(arguments: argparse.Namespace) -> None:
    from geomx.launch.local.ports import Ports  # noqa: PLC0415 (only needed here)

    run = _read(arguments)
    name = _server_name(run, arguments)
    with Ports() as ports:
        if name not in ROW_SERVERS:  # before seconds are spent on PyTorch
            ports.claim(run, name, by="geomx serve", place=arguments.standby)
        run = _load(arguments, "tls", "proof", "hand")
        from geomx.launch.serve import serve  # noqa: PLC0415 (it imports torch)

        logging.basicConfig(level=logging.INFO, format=LOG_LINE, datefmt="%H:%M:%S", stream=sys.stdout)
        serve(run, name, arguments.standby)


def _server_name(run: Run, arguments: argparse.Namespace) -> str:
    """The server that the options mean; raises `ConfigError`."""
    if arguments.standby and arguments.role != "global":
        raise _wrong("--standby", str(arguments.standby), "only with --role global")
    for option, role in (("party", "local"), ("shard", "global"), ("region", "region"), ("place", "rows")):
        if getattr(arguments, option) is not None and arguments.role != role:
            raise _wrong(f"--{option}", str(getattr(arguments, option)), f"only with --role {role}")
    if arguments.role == "global":
        shard = arguments.shard or 0
        if not 0 <= shard < run.run.shards:
            raise _wrong(
                "--shard", str(shard), f"0 to {run.run.shards - 1}, since run.shards = {run.run.shards}"
            )
        places = len(run.addresses_of(run.shard_names[shard])) if arguments.standby else 1
        if not 0 <= arguments.standby < places:
            allowed = f"at most {places - 1}, since global.addresses[{shard}] has {places} of them"
            raise _wrong("--standby", str(arguments.standby), allowed)
        return run.shard_names[shard]
    if arguments.role == "rows":
        place = 1 if arguments.place is None else arguments.place
        if not 1 <= place <= len(ROW_SERVERS):
            raise _wrong("--place", str(place), f"1 to {len(ROW_SERVERS)}")
        if run.is_durable:
            raise _wrong(
                "--role", "rows", "no store.url and no run.replicas: rows that move are in no log yet"
            )
        return ROW_SERVERS[place - 1]
    if arguments.role == "region":
        names = [region.name for region in run.regions]
        allowed = f"one of {', '.join(names)}" if names else "no region, since there is no [[region]]"
        if arguments.region not in names:
            raise _wrong("--region", arguments.region or "nothing", allowed)
        return str(arguments.region)
    if arguments.party is None:
        raise _wrong("--party", "nothing", f"one of {', '.join(run.servers)}")
    return run.party(arguments.party).name


def _worker(arguments: argparse.Namespace) -> None:
    from geomx.launch.environment import ProcessPlace, environment_of, read_place  # noqa: PLC0415 (only needed here)
    from geomx.launch.script import through  # noqa: PLC0415

    run, overrides, rank = (
        _load(arguments, "tls", "proof", "hand"),
        tuple(arguments.overrides),
        arguments.rank,
    )
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


def _leave(arguments: argparse.Namespace) -> None:
    from geomx.launch.leave import leave  # noqa: PLC0415 (only needed here)

    arguments.overrides += [word for word in arguments.nodes if "=" in word]
    nodes = [word for word in arguments.nodes if "=" not in word]
    if not nodes:
        raise _wrong("NODE", "nothing", "a worker, a local server or a region")
    leave(_read(arguments), nodes)


def _plan(arguments: argparse.Namespace) -> None:
    for option in ("parameters", "steps"):
        given = getattr(arguments, option)
        if given is not None and given < 1:
            raise _wrong(f"--{option}", str(given), "1 or more")
    from geomx.launch.planning.plan import PlanOptions, plan  # noqa: PLC0415
    from geomx.launch.planning.plan_facts import Sources  # noqa: PLC0415 (it imports torch)

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
        _load(arguments, *needed),
        PlanOptions(sources, arguments.algorithm, arguments.codec, arguments.json, arguments.hub_mbps),
    )


def _report(arguments: argparse.Namespace) -> None:
    from geomx.launch.local.gather import gather  # noqa: PLC0415 (it imports rich)

    gather(_load(arguments), arguments.records, arguments.json, arguments.trace)


def _replay(arguments: argparse.Namespace) -> None:
    from geomx.launch.past import replay  # noqa: PLC0415 (it imports torch)

    replay(_load(arguments), arguments.shard, arguments.first, arguments.last, arguments.json)


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
