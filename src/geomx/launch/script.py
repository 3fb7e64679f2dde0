"""Runs a training script as `python SCRIPT` does, and sees how it ends.

With which status a process ends nobody can know within it: `sys.exit(3)` is an exception, and exit handlers are told
nothing of it. So `geomx worker -- python SCRIPT ...` has the same interpreter run this file, which runs the script in
the same process and tells `geomx.launch.join` how it ended. It needs nothing but Python: the interpreter may be another
one than ours.

What a script may see is as without it: `sys.argv`, `sys.path[0]`, and a module `__main__` with the script's names and
`__file__`, and `__spec__` None, by which `pickle` finds its classes and `multiprocessing` starts processes that
import it (`spawn`, `forkserver`). Tracebacks begin in the script. `coverage run` and `pdb` do it in this way.
"""

import builtins
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

PLAIN_OPTIONS = frozenset(
    "bBdEIOPqsSuv"
)  # of Python, without a value; others than these leave a command alone
OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
JOINED = "geomx.launch.join"


def through(command: Sequence[str]) -> list[str]:
    """The command, run by this file where it is `python [OPTIONS] SCRIPT ...` or `python -m MODULE ...`.

    Any other is given back as it is, also one that Python itself would refuse.
    """
    interpreter, *words = command
    if not Path(interpreter).name.startswith("python"):
        return list(command)
    at = _behind_options(words)
    script = words[at : at + 1]
    is_module = script == ["-m"] and len(words) > at + 1
    if is_module or (script and Path(script[0]).is_file() and not script[0].endswith((".pyc", ".zip"))):
        return [interpreter, *words[:at], __file__, *words[at:]]
    return list(command)


def _behind_options(words: Sequence[str]) -> int:
    """Where the script stands."""
    at = 0
    while at < len(words):
        if words[at] in OPTIONS_WITH_VALUE:
            at += 2
        elif len(words[at]) > 1 and words[at][0] == "-" and PLAIN_OPTIONS.issuperset(words[at][1:]):
            at += 1
        else:
            break
    return at


def main() -> None:
    """Run what the command line names behind this file."""
    del sys.argv[0]
    if sys.argv[0] == "-m":
        _, module, *rest = sys.argv
        sys.argv[:] = [module, *rest]
        _set_path(os.getcwd())  # noqa: PTH109 (as Python does it)
        _watch("", lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))
    else:
        script = os.path.abspath(sys.argv[0])  # noqa: PTH100 (links stay as they are)
        _set_path(os.path.dirname(os.path.realpath(script)))  # noqa: PTH120
        code = Path(script).read_bytes()
        names = _main_module(script).__dict__
        _watch(script, lambda: exec(compile(code, script, "exec", dont_inherit=True), names))


def _set_path(folder: str) -> None:
    if not sys.flags.safe_path:  # else there is no folder of ours either
        sys.path[0] = folder


def _main_module(script: str) -> ModuleType:
    module = ModuleType("__main__")
    module.__file__ = script
    module.__loader__ = SourceFileLoader("__main__", script)
    module.__dict__["__builtins__"] = builtins
    for name, value in (("__cached__", None), ("__annotations__", {})):
        if name in globals():  # as in this Python's own `__main__`
            module.__dict__[name] = value
    sys.modules["__main__"] = module
    return module


def _watch(script: str, run: Callable[[], object]) -> None:
    """Run it, and tell who joined a run how it ended; of what it raised the hook for exceptions tells.

    `script`: what must have joined then; a module may be a launcher.
    """
    try:
        run()
    except SystemExit as end:
        _tell(script, end)
        raise
    except BaseException as error:
        error.with_traceback(_of_script(error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        if not isinstance(error, KeyboardInterrupt):
            sys.exit(1)
        sys.excepthook = lambda *_: None
        raise  # so that Python ends as after Ctrl-C
    else:
        _tell(script, None)


def _tell(script: str, end: SystemExit | None) -> None:
    joined = sys.modules.get(JOINED)
    if joined is not None and joined.has_joined():
        joined.script_ended(end)
    elif script and (end is None or not end.code):
        _tell_not_joined(script)


def _of_script(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames through which we have called it."""
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


def _tell_not_joined(script: str) -> None:
    """Another process may have joined that it has started, so this is a word and no failure."""
    party, rank = os.environ.get("GEOMX_PARTY"), os.environ.get("GEOMX_RANK")
    if party and not os.environ.get("GEOMX_WATCHED"):
        worker = f"{party}/{rank}" if rank else f"a worker of {party}"
        print(
            f"geomx: {script} has ended without calling geomx.join(): the run still waits for {worker}, "
            "unless a process that the script started has joined",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
