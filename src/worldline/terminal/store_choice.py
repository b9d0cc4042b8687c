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
    secrets = "/run/secrets"      # a folder with a file for each secret of effects
    on_hang = "exit"              # settings, as `worldline settings` names them

    [worker]
    max_inbox_batch = 64
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from worldline.base import errors, limits
from worldline.model import setting_names
from worldline.runtime import store_opening
from worldline.store import urls
from worldline.terminal import file_trust, payload_words, program_files, suggest

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
    secrets: str | None = None
    settings: dict[str, Any] = {}  # by name, from its sections


class StoreChoice(msgspec.Struct, frozen=True):
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
    secrets: str | None = None
    settings: dict[str, Any] = {}  # that the project says, by name
    project: str = ""  # the file that says so

    def __repr__(self) -> str:
        return f"Place({urls.shown(self.store)!r}, universe={self.universe!r})"

    @property
    def shown(self) -> str:
        """The store, for people."""
        return urls.shown(self.store)


def choose(
    *,
    store: str | None,
    universe: str | None,
    apps: tuple[str, ...],
    store_given: bool,
    objects: str | None = None,
    keys: str | None = None,
    keys_given: bool = False,
) -> StoreChoice:
    """Put together what was said here and in the project."""
    folder, project = nearest(_here())
    named = [project.app] if isinstance(project.app, str) else project.app
    own = _beside(folder, project.store) if project.store else DEFAULT_STORE
    chosen = store or own
    if not store and not project.store:  # a store that lies here was not named, so another user may have put it here
        file_trust.check(Path(DEFAULT_STORE), "the store in this folder")
    if not keys and project.keys:
        file_trust.check(folder / project.keys, f"the key file that {FILE} names")
    for each in [] if apps else named:  # what the command line names is not checked: naming it is the consent
        file_trust.check(folder / program_files.split(each)[0], f"the app that {FILE} names", importable=True)
    # Another folder has its objects beside it: reading the project's objects for it would find none of its values.
    theirs = store_opening.scheme(chosen) == "" and Path(chosen).resolve() != Path(own).resolve()
    objects_of_project = _beside(folder, project.objects) if project.objects and not theirs else None
    return StoreChoice(
        chosen,
        universe or project.universe or DEFAULT_UNIVERSE,
        objects or objects_of_project,
        list(apps) or [_beside(folder, each) for each in named],
        store_given,
        universe is not None,
        objects is not None,
        {name: _beside(folder, url) for name, url in project.peers.items()},
        keys or (_beside(folder, project.keys) if project.keys else None),
        keys_given,
        secrets=_beside(folder, project.secrets) if project.secrets else None,
        settings=_settings_beside(folder, project.settings),
        project=_beside(folder, FILE),
    )


def nearest(start: Path) -> tuple[Path, Project]:
    """The project that a folder belongs to: what the first `worldline.toml` on the way up says."""
    for folder in (start, *start.parents):
        file = folder / FILE
        if file.is_file():
            file_trust.check(file, FILE)
            return folder, read(file)
    return start, Project()


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise errors.BadInput("this folder was deleted; change into another") from None


def read(file: Path) -> Project:
    data = payload_words.read_bytes(file, limits.TOML_BYTES_MAX)
    if len(data) > limits.TOML_BYTES_MAX:  # the parser would build all of it in memory
        raise errors.TooLarge(str(file), size=len(data), limit=limits.TOML_BYTES_MAX)
    try:
        said = tomllib.loads(data.decode())
        settings = _take_settings(file, said)
        found = msgspec.convert(said | {"settings": settings}, Project)
    except UnicodeDecodeError as error:
        raise errors.BadInput(f"{file} is not UTF-8 text") from error
    except RecursionError as error:  # the parser has no bound of its own
        raise errors.BadInput(f"{file} is nested too deep") from error
    except ValueError as error:  # also of numbers with too many digits
        raise errors.BadInput(f"{file}: {str(error).partition(';')[0]}") from error
    # Checked once for all words: each file call raises a ValueError of its own over a null character.
    if b"\\u0000" in msgspec.json.encode(found):
        raise errors.BadInput(f"{file}: no path, name or URL has a null character in it")
    return found


def _take_settings(file: Path, said: dict[str, Any]) -> dict[str, Any]:
    """Take what a file says of settings out of it. A name that is neither a setting nor anything else is refused."""
    found: dict[str, Any] = {}
    for key in list(said):
        if key in setting_names.SECTIONS:
            section = said.pop(key)
            if not isinstance(section, dict):
                raise errors.BadInput(f"{file}: {key} is a section: [{key}], and its settings below")
            found |= {f"{key}.{field}": value for field, value in section.items()}
        elif key in setting_names.ALL:
            found[key] = said.pop(key)
    ours = [each for each in Project.__struct_fields__ if each != "settings"]
    words = [*ours, *setting_names.SECTIONS, *setting_names.ALL]
    # After both were taken apart: a word that is misspelt is compared with everything that may stand here.
    for key in [*found, *said]:
        if key not in words:
            what = "setting" if key in found else "word for a project or setting"
            raise errors.BadInput(
                f"{file}: no {what} {key!r}; `worldline settings` lists settings{suggest.near(key, words)}"
            )
    for name, value in found.items():
        if not _is_plain(value):
            raise errors.BadInput(f"{file}: {name} is {str(value)[:100]}; use {setting_names.ALL[name].values}")
    return found


def _is_plain(value: Any) -> bool:
    """Whether a setting may be so: which of these it must be, and in which range, is checked with all others."""
    if isinstance(value, dict):
        return all(isinstance(each, str) for each in value.values())
    return isinstance(value, str | bool) or (isinstance(value, int) and abs(value) < 2**62)


def _settings_beside(folder: Path, said: dict[str, Any]) -> dict[str, Any]:
    path = said.get("cache.folder")
    return {**said, "cache.folder": _beside(folder, path)} if isinstance(path, str) and path else said


def _beside(folder: Path, text: str) -> str:
    """A path as seen from here; a URL as it is."""
    if store_opening.scheme(text):
        return text
    path = folder / text
    # Short, as it stands in messages and in commands to paste.
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
