"""Numbers and names in sentences for people: `1 run`, `2 runs`, `an int`."""

from __future__ import annotations

_VOWELS = "aeiouAEIOU"


def count(number: int, noun: str) -> str:
    """A number and what it counts. `noun` is one of them; its last word gets the plural."""
    return f"{number} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """The plural of a regular noun."""
    if noun.endswith("y") and noun[-2:-1] not in _VOWELS:
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def an(name: str) -> str:
    """A name with its article: by its first letter, which is right for nearly all names of types."""
    return f"{'an' if name[:1] and name[0] in _VOWELS else 'a'} {name}"


def clause(number: int, noun: str, one: str, many: str) -> str:
    """The same, with a verb that agrees: `1 run goes on`, `2 runs go on`."""
    return f"{count(number, noun)} {one if number == 1 else many}"
