"""A role in a process of its own: the command line as users have it, with a recorded store and, if asked, a fate.

    python -m tests.chaos.child worker FILE --store URL ...     one process
    python -m tests.chaos.child account ...                     a client of the account, `account_client.py`
    python -m tests.chaos.child                                 the nursery: makes such processes on request

Starting Python and loading the project takes far longer than a failover, so most processes are forked off a nursery
that has everything loaded and nothing opened: one `Order` on each line of its input, the process id on its output. A
process made here dies with whoever made it, however that ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import msgspec

from tests.chaos import account_client, fates, history
from worldline import cli
from worldline.base import env as envs
from worldline.runtime import store_opening
from worldline.store import kv, postgres  # noqa: F401 - loaded before the fork, as everything else is

PR_SET_PDEATHSIG = 1
PARENT = "WORLDLINE_TEST_PARENT"  # the process that this one must not outlive
LABEL = "WORLDLINE_TEST_HOST"  # name/life
FATE = "WORLDLINE_TEST_FATE"  # fate/commit
LEDGER = "WORLDLINE_TEST_LEDGER"  # where effects leave a line


class Order(msgspec.Struct, frozen=True):
    """A process to be made: the words of its command line, its own variables, and a folder for what it says."""

    words: list[str]
    variables: dict[str, str]
    folder: str


def main() -> int:
    die_with(int(os.environ[PARENT]))
    if len(sys.argv) > 1:
        return role(sys.argv[1:])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    nursery = os.getpid()
    for line in sys.stdin:
        order = msgspec.json.decode(line, type=Order)
        child = os.fork()
        if child == 0:
            become(order, nursery)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
    return 0


def die_with(parent: int) -> None:
    """Be killed when the parent ends; or end now, if it has ended already."""
    assert ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) == 0
    if os.getppid() != parent:
        os._exit(70)


def become(order: Order, nursery: int) -> None:
    """In the new process, which never returns to the nursery."""
    code = 70
    try:
        os.setsid()
        die_with(nursery)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.update(order.variables)
        folder = Path(order.folder)
        for name, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = role(order.words)
    except BaseException:  # noqa: BLE001 - it must not come back into the nursery's loop
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        (Path(order.folder) / "exit").write_text(str(code))
        os._exit(code)


def role(words: list[str]) -> int:
    """The command itself, with every engine it opens recorded."""
    opening = store_opening.open_engine

    async def open_engine(url: str, env: envs.Env, *, create: bool) -> kv.Engine:
        engine = await opening(url, env, create=create)
        host, _, life = os.environ[LABEL].partition("/")
        recorded = history.Recording(engine, env.wall_us, host=host, life=int(life))
        fate, _, at = os.environ.get(FATE, "").partition("/")
        return fates.Fated(recorded, fates.Fate(fate), int(at)) if fate else recorded

    store_opening.open_engine = open_engine
    if words[0] == account_client.WORD:
        return account_client.main(words[1:], os.environ[LABEL])
    return cli.main(words)


if __name__ == "__main__":
    sys.exit(main())
