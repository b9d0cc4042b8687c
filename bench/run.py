"""`make bench`: every benchmark, one after the other, as one JSON object. Ratios are taken inside each run."""

from __future__ import annotations

import json
import subprocess
import sys

COMMANDS = {
    "store_lmdb": [sys.executable, "-m", "bench.store_lmdb", "--json"],
    "store_postgres": [sys.executable, "-m", "bench.store_postgres", "--json"],
    "cluster": [sys.executable, "-m", "bench.cluster_bench", "--json"],
    "flow": [sys.executable, "-m", "bench.flow", "--json"],
    "worldline": [sys.executable, "-m", "worldline.cli", "bench", "--json"],
}


def main() -> None:
    figures = {}
    for name, command in COMMANDS.items():
        print(f"{name} ...", file=sys.stderr)
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        figures[name] = json.loads(done.stdout)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
