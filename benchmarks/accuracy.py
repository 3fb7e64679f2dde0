"""Does a run over two data centers learn what one process learns? Test accuracy of both, over seeds.

    python benchmarks/accuracy.py [--data digits|fashion-mnist] [--epochs 20] [--seeds 3]

One process trains on batches of 128; the run's four workers, two in each of two parties, on batches of 32. Prints
a table.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import sweep

EXAMPLES = Path(__file__).parents[1] / "examples"


def alone(script: list[str]) -> float:
    """The last accuracy that the script prints, in one process, without a launcher."""
    command = [sys.executable, str(EXAMPLES / "cnn.py"), *script, "--batch", "128"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(re.findall(r"test accuracy ([\d.]+)%", printed)[-1]) / 100


def in_parties(script: list[str]) -> float:
    """The final accuracy of the same script in a run of two parties of two workers."""
    arguments = f"run.arguments={json.dumps([*script, '--batch', '32'])}"
    with tempfile.NamedTemporaryFile() as report:
        command = [sys.executable, "-m", "geomx", "run", str(EXAMPLES / "demo.toml"), arguments]
        subprocess.run([*command, "--report", report.name], check=True, capture_output=True)
        return float(json.loads(Path(report.name).read_text())["final_accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    script = ["--data", options.data, "--epochs", str(options.epochs), "--lr", "0.002", "--seed"]
    rows = []
    for name, train in (("one process", alone), ("2 parties × 2 workers", in_parties)):
        found = [train([*script, str(seed)]) for seed in range(options.seeds)]
        rows.append(
            {"system": name, "mean": statistics.fmean(found), "least": min(found), "most": max(found)}
        )
    sweep.show(f"Test accuracy: {options.data}, {options.epochs} epochs, {options.seeds} seeds", rows)


if __name__ == "__main__":
    main()
