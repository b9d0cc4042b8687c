"""Which store, which objects and which program a command is about.

Store: the flag, then `WORLDLINE_STORE`, then the nearest `worldline.toml`, then `./.worldline`. Program: the flag, then
the nearest `worldline.toml`. Objects: the flag, then the nearest `worldline.toml`, unless a folder that is not the
project's own store was named: a folder has its objects beside it. Paths in a `worldline.toml` are relative to it::

    store = ".worldline"          # a folder, or postgresql://...
    app = "app.py"                # or "app.py:name", or a list of them
    universe = "default"
    objects = "s3://bucket/prefix"
    peers = { billing = "postgresql://..." }    # other stores that messages go to, by name
    keys = "keys.json"            # the key file of an encrypted store
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from worldline.base import errors
from worldline.host import compose
from worldline.store.encryption.master_keys import AesGcm

FILE = "worldline.toml"
DEFAULT_STORE = ".worldline"
DEFAULT_UNIVERSE = "default"


class Project(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a `worldline.toml` says."""

    store: str | None = None
    app: str | list[str] = []
    universe: str | None = None
    objects: str | None = None
    peers: dict[str, str] = {}
    keys: str | None = None


class Place(msgspec.Struct, frozen=True):
    """What a command is about. `given`: the store was named on the command line; so the universe and the objects."""

    store: str
    universe: str
    objects: str | None
    apps: list[str]
    given: bool
    universe_given: bool
    objects_given: bool = False
    peers: dict[str, str] = {}
    keys: str | None = None
    keys_given: bool = False
    universes: list[str] = []  # names and patterns, of a process that serves many

    def codec(self) -> AesGcm | None:
        """What the store is encrypted with, by the key file that was named."""
        return None if self.keys is None else AesGcm.from_file(self.keys)


def choose(
    *, store: str | None, universe: str | None, apps: tuple[str, ...], given: bool, objects: str | None = None,
    keys: str | None = None, keys_given: bool = False,
) -> Place:  # fmt: skip
    """Put together what was said here and in the project."""
    folder, project = nearest(Path.cwd())
    named = [project.app] if isinstance(project.app, str) else project.app
    own = _beside(folder, project.store) if project.store else DEFAULT_STORE
    chosen = store or own
    theirs = compose.scheme(chosen) == "" and Path(chosen).resolve() != Path(own).resolve()
    objects_of_project = _beside(folder, project.objects) if project.objects and not theirs else None
    return Place(
        chosen,
        universe or project.universe or DEFAULT_UNIVERSE,
        objects or objects_of_project,
        list(apps) or [_beside(folder, each) for each in named],
        given,
        universe is not None,
        objects is not None,
        {name: _beside(folder, url) for name, url in project.peers.items()},
        keys or (_beside(folder, project.keys) if project.keys else None),
        keys_given,
    )


def nearest(start: Path) -> tuple[Path, Project]:
    """The project that a folder belongs to: what the first `worldline.toml` on the way up says."""
    for folder in (start, *start.parents):
        file = folder / FILE
        if file.is_file():
            return folder, read(file)
    return start, Project()


def read(file: Path) -> Project:
    try:
        return msgspec.convert(tomllib.loads(file.read_text()), Project)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise errors.BadInput(f"{file}: {error}") from error


def _beside(folder: Path, text: str) -> str:
    """A path as seen from here; a URL as it is."""
    if compose.scheme(text):
        return text
    path = folder / text
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
