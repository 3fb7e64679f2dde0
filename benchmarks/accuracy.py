"""Does a run over two data centers learn what one process learns? Test accuracy of both, over seeds.

    python benchmarks/accuracy.py [--data digits|fashion-mnist] [--epochs 20] [--seeds 3]

One process trains on batches of 128; the run's four workers, two in each of two parties, on batches of 32. Prints
a table, and leaves its figures in `out/bench/one_process.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

EXAMPLES = Path(__file__).parents[1] / "examples"
WORKERS = 4
BATCH = 32


def alone(script: list[str]) -> float:
    """The last accuracy that the script prints, in one process, without a launcher."""
    command = [sys.executable, str(EXAMPLES / "cnn.py"), *script, "--batch", str(WORKERS * BATCH)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(re.findall(r"test accuracy ([\d.]+)%", printed)[-1]) / 100


def in_parties(script: list[str]) -> float:
    """The final accuracy of the same script in a run of two parties of two workers."""
    with tempfile.TemporaryDirectory() as folder:
        report, log = Path(folder, "report.json"), Path(folder, "log")
        arguments = f"run.arguments={json.dumps([*script, '--batch', str(BATCH)])}"
        command = [sys.executable, "-m", "geomx", "run", str(EXAMPLES / "demo.toml"), arguments]
        with log.open("w") as output:
            subprocess.run([*command, "--report", str(report)], check=True, stdout=output, stderr=output)
        return float(json.loads(report.read_text())["final_accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[float]] = {"one process": [], "2 parties × 2 workers": []}
    for seed in range(options.seeds):
        script = [
            "--data",
            options.data,
            "--epochs",
            str(options.epochs),
            "--lr",
            "0.002",
            "--seed",
            str(seed),
        ]
        found["one process"].append(alone(script))
        found["2 parties × 2 workers"].append(in_parties(script))
    table = Table(title=f"{options.data}, {options.epochs} epochs: test accuracy, %", title_justify="left")
    for column in ("", "mean", "least", "most", "spread"):
        table.add_column(column, justify="right" if column else "left")
    path = Path("out/bench/one_process.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for name, values in found.items():
            figures = (statistics.mean(values), min(values), max(values), max(values) - min(values))
            table.add_row(name, *(f"{100 * figure:.2f}" for figure in figures))
            row = {"system": name, "data": options.data, "epochs": options.epochs, "accuracies": values}
            file.write(json.dumps(row) + "\n")
    Console().print(table)


if __name__ == "__main__":
    main()
