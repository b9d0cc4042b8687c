"""Hostile programs by hand, and the processes of their tests.

`python -m tests.hostile N...`: these programs, each on the kernel alone and then on three hosts.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import msgspec

from tests.hostile import attack, host, programs, rehearsal


def by_hand(number: int) -> None:
    print(programs.program(number))
    print("kernel:", rehearsal.rehearse(number))
    with tempfile.TemporaryDirectory() as folder:
        print("hosts:", asyncio.run(attack.attack(Path(folder), number, number + 1, proofs=1)))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["rehearse", first, end]:
            rehearsal.main(int(first), int(end))
        case ["host", url, numbers]:
            first, _, end = numbers.partition("-")
            asyncio.run(host.serve(url, int(first), int(end)))
        case ["attack", folder, first, end, proofs]:
            sys.unraisablehook = lambda _: None  # some objects refuse to die quietly
            outcome = asyncio.run(attack.attack(Path(folder), int(first), int(end), proofs=int(proofs)))
            print(msgspec.json.encode(outcome).decode())
        case ["prove", url, *numbers]:
            asyncio.run(attack.prove(url, [int(each) for each in numbers]))
        case numbers:
            for each in numbers:
                by_hand(int(each))
