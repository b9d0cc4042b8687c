"""What a word that was not found was probably meant to be: `; did you mean 'alice'?`, or nothing.

Every function looks at a bounded number of candidates, however large the store is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from worldline.client.connection import Connection
from worldline.inspect import store_queries
from worldline.keys import worlds as world_keys
from worldline.layers import inbox as inboxes
from worldline.model.work import WorkKind
from worldline.store import kv

CANDIDATES_MAX = 1_000
NAMES_NEAR_MAX = 200  # of each side of the place where a name would stand, and from the beginning
SHOWN_MAX = 3
LIKENESS_MIN = 0.6  # difflib's own


def near(word: str, known: Iterable[str]) -> str:
    """The known words most like this one, as the end of an error message."""
    candidates: dict[str, str] = {}  # as compared -> as written
    for each in known:
        candidates.setdefault(each.lower(), each)  # compared without case, shown as it is written
        if len(candidates) >= CANDIDATES_MAX:  # comparing is slow, and an error message must not be
            break
    found = _close(word, candidates)
    return did_you_mean([repr(candidates[each]) for each in found])


def did_you_mean(shown: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(shown)}?" if shown else ""


async def worlds(connection: Connection, name: str) -> str:
    """Names like this one. In a large universe: those that stand beside it in order, and the first ones."""
    begin, end = world_keys.names(connection.id)
    here = world_keys.name_key(connection.id, name)
    read = await connection.store.engine.read(
        kv.Range(here, end, count_max=NAMES_NEAR_MAX),
        kv.Range(begin, here, count_max=NAMES_NEAR_MAX, reverse=True),
        # A slip in the first letter stands far away in order: in a small universe these are all names.
        kv.Range(begin, end, count_max=NAMES_NEAR_MAX),
    )
    names = [world_keys.name_of(connection.id, key) for index in range(3) for key, _ in read.page(index).items]
    return near(name, dict.fromkeys(names))


async def work(connection: Connection, text: str, kind: WorkKind) -> str:
    """Open effects or timers with an id like this, or of this name."""
    named: list[str] = []
    by_start: dict[str, str] = {}
    seen = 0
    async for each in store_queries.open_work(connection, None):
        seen += 1
        if seen > CANDIDATES_MAX:  # all open work is in one range, and a suggestion is not worth reading all of it
            break
        if each.work.kind is not kind:
            continue
        shown = f"{each.intent.hex()} ({each.work.name})"
        # Only as much as was typed is compared: an id is typed by its beginning.
        by_start[each.intent.hex()[: len(text)]] = shown
        if each.work.name == text:
            named.append(shown)
    like = _close(text, by_start)
    return did_you_mean((named or [by_start[each] for each in like])[:SHOWN_MAX])


def letters(text: str, dead_letters: Sequence[inboxes.DeadLetterRecord]) -> str:
    """Dead letters with an id like this."""
    return ids(text, [each.stamp.hex() for each in dead_letters[:CANDIDATES_MAX]])


def ids(text: str, known: Iterable[str]) -> str:
    """Ids that begin nearly like this."""
    by_start = {each[: len(text)]: each for each in known}
    like = _close(text, by_start)
    return did_you_mean([by_start[each] for each in like])


def _close(word: str, candidates: Iterable[str]) -> list[str]:
    import difflib  # noqa: PLC0415 - most commands find what they are given, and start without it

    return difflib.get_close_matches(word.lower(), list(candidates), n=SHOWN_MAX, cutoff=LIKENESS_MIN)
