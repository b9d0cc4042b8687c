"""`worldline bench --cluster` on a PostgreSQL server of its own: `python -m bench.cluster --json`."""

from __future__ import annotations

import subprocess
import sys

from tests.servers import postgres as servers


def main() -> None:
    server = servers.start()
    try:
        command = [sys.executable, "-m", "worldline.cli", "bench", "--cluster", "--store", server.url()]
        raise SystemExit(subprocess.run([*command, *sys.argv[1:]], check=False).returncode)
    finally:
        server.close()


if __name__ == "__main__":
    main()
