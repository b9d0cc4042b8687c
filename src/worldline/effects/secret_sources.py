"""Where a process has its secrets from: its environment, a folder, a table, or a user's own function.

::

    WORLDLINE_SECRET_STRIPE=sk_...        the variable of the secret `stripe`; a `-` in a name is a `_` here
    WORLDLINE_SECRETS=/run/secrets        a folder with a file for each, as mounted secrets are: /run/secrets/stripe

A variable comes before a file. Files are read at each call, so a new value is used by the next attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from worldline.base import errors, limits
from worldline.base.secret import SecretSource
from worldline.effects import secret_reading

Given = str | Path | Mapping[str, str] | Callable[[str], str | None]

PREFIX = "WORLDLINE_SECRET_"
FOLDER = "WORLDLINE_SECRETS"


class Environment(msgspec.Struct, frozen=True):
    """Variables, then files of a folder."""

    variables: Mapping[str, str]
    folder: Path | None = None

    def find(self, name: str) -> str | None:
        return self.variables.get(_variable(name)) or self._file(name)

    def _file(self, name: str) -> str | None:
        if self.folder is None:
            return None
        file = self.folder / name
        try:
            with file.open("rb") as opened:
                # Bounded, however large the file is: more than this is no secret.
                data = opened.read(4 * limits.SECRET_CHARACTERS_MAX + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise errors.BadInput(f"the secret {name!r} cannot be read from {file}: {error.strerror}") from error
        try:
            # Editors end a file with a line break, which is no part of the secret.
            return data.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:  # its text would quote the secret
            raise errors.BadInput(f"the secret {name!r} in {file} is not UTF-8 text") from None

    def hint(self, name: str) -> str:
        by_file = f"write it to {self.folder / name}" if self.folder else f"name a folder with {FOLDER}=..."
        return f"{by_file}, or start the process that performs effects with {_variable(name)}=..."


class Table(msgspec.Struct, frozen=True):
    values: Mapping[str, str]

    def find(self, name: str) -> str | None:
        return self.values.get(name)

    def hint(self, name: str) -> str:
        return f"add {name!r} to what wl.open(secrets=) is given"


class Function(msgspec.Struct, frozen=True):
    """A user's own. It is called in the effect's thread, or in the event loop for an `async def`: it must be quick."""

    function: Callable[[str], str | None]

    def find(self, name: str) -> str | None:
        return self.function(name)

    def hint(self, name: str) -> str:
        return f"the function that wl.open(secrets=) was given has none of the name {name!r}"


def chosen(source: Given | None, variables: Mapping[str, str]) -> SecretSource:
    """What `wl.open(secrets=)` was given. A folder is looked into behind the environment."""
    if source is None:
        named = variables.get(FOLDER)
        return Environment(variables, Path(named) if named else None)
    if isinstance(source, str | Path):
        return Environment(variables, Path(source))
    if isinstance(source, Mapping):
        return Table({secret_reading.check_name(name): value for name, value in source.items()})
    if callable(source):
        return Function(source)
    raise errors.BadInput(f"secrets= is a folder, a mapping, or a function of a name, not {type(source).__name__}")


def _variable(name: str) -> str:
    return PREFIX + name.upper().replace("-", "_")
