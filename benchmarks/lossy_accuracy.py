"""What do channels that may lose cost in accuracy? The same training over each of them, round for round, over seeds.

    python benchmarks/lossy_accuracy.py                      all channels and losses, three seeds
    python benchmarks/lossy_accuracy.py --missing            the rest, after it was stopped
    python benchmarks/lossy_accuracy.py --losses 0.05 --only "DGT, k = 0"

Fashion-MNIST with Adam, 2 parties × 2 workers, batches of 32, fp16 both ways; real nodes, datagrams included, on the
simulator's virtual clock. Each link has 20 Mbit/s and a round trip of 100 ms, and loses datagrams at random; what goes
over connections arrives, so TCP's accuracy depends on no loss. `lossy_accuracy.toml` says what is compared. Leaves rows
in out/bench/lossy_accuracy.jsonl.
"""

import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import codec_accuracy, sweep
from geomx.node.topology import Edge
from geomx.simulate.network import Network

TABLE = sweep.table_of("lossy_accuracy")
CODEC = "fp16"


def trained(config: str, loss: float, model: str, rounds: int, seed: int) -> dict[str, Any]:
    """One run; its row."""
    wan = Edge(CODEC, CODEC, channel=TABLE["channels"][config])
    network = Network(rate_mbps=20.0, delay_ms=50.0, loss=loss, keeps_streams=True)
    row = {"config": config, "channel": wan.channel, "loss": loss, "codec": CODEC}
    return row | codec_accuracy.run_of(wan, "Adam", network, model, rounds, seed)


def main() -> None:
    parser = sweep.parser_of(__doc__, "lossy_accuracy")
    parser.add_argument("--models", nargs="+", default=["cnn-179k"])
    parser.add_argument("--rounds", type=int, default=940, help="940 are two epochs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--losses", nargs="+", type=float, default=TABLE["losses"], metavar="SHARE")
    parser.add_argument(
        "--only", nargs="+", choices=TABLE["channels"], default=list(TABLE["channels"]), metavar="CONFIG"
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    options = parser.parse_args()
    grid = {
        "seed": range(options.seeds),
        "loss": options.losses,
        "config": options.only,
        "model": options.models,
        "rounds": [options.rounds],
    }
    sweep.run(trained, grid, options)


if __name__ == "__main__":
    main()
