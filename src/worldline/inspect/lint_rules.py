"""The table behind `worldline check`: which names do not replay, and what to write instead."""

from __future__ import annotations

import msgspec

FLOAT_KEY = "float_key"

NOW = "use wl.now()"
SLEEP = "use await wl.sleep(...)"
RANDOM = "use wl.random() or wl.uuid()"
IN_EFFECT = "do it in an @effect and await that"
NO_THREADS = "do it in an @effect, or start a workflow with wl.start(...)"
NO_ASYNCIO = "use wl.gather, wl.start and wl.scope, or do it in an @effect"
NO_HASH = "it differs between processes: use hashlib over the value's bytes"
NO_GLOBAL = "keep it in a reducer, or pass it along"
NO_FLOAT = "use an int or a str: floats that look equal may differ"
SORT_IT = "use sorted(...), or a dict or list"
LOG = "it is repeated on every replay: use wl.log"

MUTATORS = (
    "add",
    "append",
    "appendleft",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popitem",
    "popleft",
    "remove",
    "setdefault",
    "sort",
    "update",
)
# These keep the order in which a set gives its members; `sorted`, `sum` or `len` do not depend on it.
ORDERED_COPIES = ("list", "tuple", "enumerate", "iter", "next", "map", "filter", "zip", "reversed")
OUTSIDE_VALUES = ("os.environ", "sys.argv", "sys.stdin", "sys.stdout", "sys.stderr")


class LintRule(msgspec.Struct, frozen=True):
    name: str
    instead: str


_ASYNCIO = {
    "asyncio.gather": "use wl.gather(...)",
    "asyncio.sleep": SLEEP,
    "asyncio.timeout": "use wl.scope(timeout=...)",
    "asyncio.wait_for": "use wl.scope(timeout=...)",
    "asyncio.create_task": "use wl.start(...)",
    "asyncio.ensure_future": "use wl.start(...)",
    "asyncio.TaskGroup": "use wl.scope() and its start(...)",
    "asyncio.shield": "use wl.scope(shield=True)",
    "asyncio.to_thread": IN_EFFECT,
}

_CALLS: dict[str, LintRule] = {
    **{name: LintRule("asyncio", instead) for name, instead in _ASYNCIO.items()},
    **dict.fromkeys(
        (
            "time.time",
            "time.time_ns",
            "time.monotonic",
            "time.monotonic_ns",
            "time.perf_counter",
            "time.perf_counter_ns",
            "time.localtime",
            "time.gmtime",
            "time.ctime",
            "time.strftime",
            "datetime.datetime.now",
            "datetime.datetime.utcnow",
            "datetime.datetime.today",
            "datetime.date.today",
        ),
        LintRule("clock", NOW),
    ),
    "time.sleep": LintRule("clock", SLEEP),
    **dict.fromkeys(("os.urandom", "uuid.uuid1", "uuid.uuid4", "uuid.getnode"), LintRule("random", RANDOM)),
    **dict.fromkeys(("hash", "id"), LintRule("hash", NO_HASH)),
    **dict.fromkeys(("open", "input"), LintRule("io", IN_EFFECT)),
    "print": LintRule("io", LOG),
    "os.getenv": LintRule("io", IN_EFFECT),
}

_MODULES: dict[str, LintRule] = {
    **dict.fromkeys(("random", "secrets", "numpy.random"), LintRule("random", RANDOM)),
    **dict.fromkeys(("asyncio", "anyio", "trio", "curio"), LintRule("asyncio", NO_ASYNCIO)),
    **dict.fromkeys(("threading", "multiprocessing", "concurrent.futures", "_thread"), LintRule("thread", NO_THREADS)),
    **dict.fromkeys(
        (
            "socket",
            "subprocess",
            "shutil",
            "tempfile",
            "sqlite3",
            "urllib.request",
            "urllib3",
            "requests",
            "httpx",
            "aiohttp",
            "http.client",
            "smtplib",
            "ftplib",
            "psycopg",
            "psycopg2",
            "asyncpg",
            "redis",
            "boto3",
            "openai",
            "anthropic",
            "glob",
            "platform",
        ),
        LintRule("io", IN_EFFECT),
    ),
}

# Of `os` and `pathlib` only what looks outside; joining paths is harmless.
_OS_CALLS = (
    "access",
    "chdir",
    "chmod",
    "chown",
    "execv",
    "fork",
    "getcwd",
    "getlogin",
    "getpid",
    "getppid",
    "kill",
    "link",
    "listdir",
    "lstat",
    "makedirs",
    "mkdir",
    "open",
    "popen",
    "putenv",
    "read",
    "readlink",
    "remove",
    "removedirs",
    "rename",
    "replace",
    "rmdir",
    "scandir",
    "stat",
    "symlink",
    "system",
    "truncate",
    "unlink",
    "walk",
    "write",
    "cpu_count",
    "uname",
    "times",
)
_FILE_METHODS = ("read_text", "read_bytes", "write_text", "write_bytes")
_PATH_CALLS = ("cwd", "home")


def of_call(name: str) -> LintRule | None:
    """The rule that a call of this dotted name breaks, if any."""
    if name in _CALLS:
        return _CALLS[name]
    module, _, last = name.rpartition(".")
    # From the longest prefix on: `concurrent.futures.thread.x` breaks the rule of `concurrent.futures`.
    while module:
        if module in _MODULES:
            return _MODULES[module]
        if module == "os" and last in _OS_CALLS:
            return LintRule("io", IN_EFFECT)
        if module == "pathlib.Path" and last in _PATH_CALLS:
            return LintRule("io", IN_EFFECT)
        module = module.rpartition(".")[0]
    return None


def of_method(name: str) -> LintRule | None:
    """The rule that a method of this name breaks on a path, whatever holds the path."""
    # By name alone: which object is a path is not known, and these names are seldom anything else's.
    return LintRule("io", IN_EFFECT) if name in _FILE_METHODS else None
