"""The only place that reads the environment: variables of this project, and those that others are told of.

Everything else of a process is an argument or a setting. What is read is read anew at each call.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from worldline.base import errors
from worldline.model import setting_names
from worldline.model.settings import CacheSettings

STORE = "WORLDLINE_STORE"
OBJECTS = "WORLDLINE_OBJECTS"
TRUSTED = "WORLDLINE_TRUSTED"
CACHE = "WORLDLINE_CACHE"
CACHE_BYTES = "WORLDLINE_CACHE_BYTES"
LEDGER = "WORLDLINE_LEDGER"


def variables() -> Mapping[str, str]:
    """Return all variables of this process. Secrets of effects may be in them, and what S3 is told."""
    return os.environ


def variables_with_store(url: str) -> dict[str, str]:
    """Return the variables of a process that is to open this store. The URL is not an argument of it: all users of a
    machine see those, and it may have a password in it.
    """
    return {**os.environ, STORE: url}


def objects() -> str:
    """Return where the objects of a server's store are, if that is named."""
    return os.environ.get(OBJECTS, "")


def ledger() -> str:
    """Return the file that erasures are written to besides, if one is named."""
    return os.environ.get(LEDGER, "")


def cache(settings: CacheSettings) -> CacheSettings:
    """Return the cache that is named, of the size that is said; else of the size of the settings."""
    size = os.environ.get(CACHE_BYTES, "")
    if size and not (size.isascii() and size.isdecimal()):
        raise errors.BadInput(f"{CACHE_BYTES} is {size!r}; use a whole number of bytes")
    return CacheSettings(os.environ.get(CACHE, ""), int(size) if size else settings.bytes_max)


def settings() -> dict[str, str]:
    """Return the variables that say settings."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(setting_names.VARIABLE) or name in (CACHE, CACHE_BYTES)
    }


def trust() -> tuple[tuple[str, ...], str]:
    """Return the folders that are trusted, and the id of the user who called sudo, if anyone did."""
    return tuple(os.environ.get(TRUSTED, "").split(os.pathsep)), os.environ.get("SUDO_UID", "")
