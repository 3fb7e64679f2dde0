"""Compiles the kernels of codecs and trees where there is a C compiler, and packs the examples.

Without a compiler the package is whole, and slower.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = (Path("src/geomx/codecs/pack/kernels"), Path("src/geomx/learn/trees/kernels"))
# The same bits everywhere: no fused multiply-add. The others change no result.
FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")


class Additions(BuildHookInterface):  # type: ignore[misc]
    """Called by hatchling before it packs a wheel or installs in place."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile next to the sources; the wheel is then one of this platform."""
        if self.target_name != "wheel":
            return
        if version != "editable":  # there the repository has them
            build_data["force_include"]["examples"] = "geomx/examples"
        made = [each for each in SOURCES if self._compile(Path(self.root) / each)]
        if not made:
            return
        build_data["artifacts"] += [f"/{each.with_suffix('.so')}" for each in made]
        build_data["pure_python"] = False
        platform_tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform_tag}"

    def _compile(self, sources: Path) -> bool:
        target = sources.with_suffix(".so")
        compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
        if platform.system() != "Linux" or shutil.which(compiler[0]) is None:
            self.app.display_warning(
                "no C compiler: codecs use torch operations, and trees NumPy's, which are slower"
            )
            return False
        target.unlink(missing_ok=True)  # not overwritten: a process may have it open
        source = b"".join(
            file.read_bytes() for file in sorted(sources.iterdir())
        )  # as `library.digest_of` has it
        digest = int.from_bytes(hashlib.blake2b(source, digest_size=8).digest())
        done = subprocess.run(
            [
                *compiler,
                *FLAGS,
                f"-DSOURCE={digest}ull",
                "-o",
                str(target),
                *map(str, sorted(sources.glob("*.c"))),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            self.app.display_warning(
                f"{sources.name} of {sources.parent.name} do not compile here: {done.stderr.strip()[-500:]}"
            )
        return done.returncode == 0
