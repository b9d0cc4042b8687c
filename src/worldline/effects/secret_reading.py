"""`wl.secret`: secrets for effects, read where the effect runs, anew at each call.

A value is an argument of nothing and is stored nowhere. What an attempt says is cleaned of it (`attempt.py`): a failure
shows the secret's name in its place, and an answer that has it in it becomes a failure. Workflows and handlers get
none: what they know is journaled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from worldline.base import errors, failures, limits
from worldline.base.secret import KNOWN, Secret
from worldline.effects import attempt, open_resources
from worldline.kernel import context

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}", re.ASCII)

_overrides: list[Mapping[str, str]] = []


def secret(name: str, /) -> Secret:
    """Return a secret by its name, as the process that performs the effect has it: `wl.secret("stripe").reveal()`.

    It is read anew at each call, so it is the current one at each attempt. `SecretMissing` if there is none; the
    attempt fails, and the next one looks again.
    """
    check_name(name)
    # Also where a test overrides secrets: what a workflow reads would be journaled.
    if context.current.get() is not None:
        raise failures.OutsideEffect(
            f"wl.secret({name!r}) was called in a workflow or a handler, whose values are journaled; "
            "call it in the effect that needs it"
        )
    if _overrides:
        # The innermost block first.
        found = next((each[name] for each in reversed(_overrides) if name in each), None)
        return _checked(name, found, f"the test gives none: testing.secrets({{{name!r}: ...}})")
    running = attempt.current.get()
    # A resource is opened in no attempt: it has the secrets of its host.
    source = open_resources.opened_with.get() if running is None else running.secrets
    if source is None:
        raise failures.OutsideEffect(
            f"wl.secret({name!r}) is read where an effect runs; in a test: with testing.secrets({{{name!r}: ...}})"
        )
    return _checked(name, source.find(name), source.hint(name))


def check_name(name: str) -> str:
    if type(name) is not str or not _NAME.fullmatch(name):
        raise errors.BadInput(f"a secret's name is a-z, 0-9, _ and -, up to 63 of them, not {name!r}")
    return name


def _checked(name: str, value: str | None, hint: str) -> Secret:
    if not value:
        raise failures.SecretMissing(f"there is no secret {name!r} here; {hint}")
    if not isinstance(value, str):
        raise errors.BadInput(f"the secret {name!r} is {type(value).__name__}, not text")
    if len(value) < limits.SECRET_CHARACTERS_MIN:
        raise errors.BadInput(
            f"the secret {name!r} has fewer than {limits.SECRET_CHARACTERS_MIN} characters, too few to be told from "
            "other text and hidden"
        )
    if len(value) > limits.SECRET_CHARACTERS_MAX:
        raise errors.TooLarge(f"the secret {name!r}", size=len(value), limit=limits.SECRET_CHARACTERS_MAX)
    # Known before it is returned: no text that the effect makes may show it.
    return KNOWN.learn(Secret(name, value))


@contextmanager
def override(values: Mapping[str, str]) -> Iterator[None]:
    """Let `wl.secret` give these within the block, in every effect of this process, and no others."""
    given = {check_name(name): value for name, value in values.items()}
    _overrides.append(given)
    try:
        yield
    finally:
        _overrides.remove(given)
        # What an outer block still gives must stay hidden.
        KNOWN.forget(value for value in given.values() if not any(value in each.values() for each in _overrides))
