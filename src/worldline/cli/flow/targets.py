"""Which domain a command is about: a document in a JSON file, or a class, as FILE.py:Class or module:Class."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import msgspec

from worldline.base import errors
from worldline.host import program_files
from worldline.kernel.flow import validation
from worldline.kernel.flow.authoring import domains
from worldline.kernel.flow.compiled import Compiled

HELP = "order.json, shop.py:Order or package.module:Order"


def document(target: str) -> Any:
    """What a target says, which may be no valid document. Raises `BadInput`, also for a class that is none."""
    path, name = program_files.split(target)
    if not name:
        return read(path)
    found = program_files.load_member(path, name) if path.suffix == ".py" or path.is_file() else _member(path, name)
    if not isinstance(found, type) or not issubclass(found, domains.Domain):
        raise errors.BadInput(f"{target} is no class that derives from flow.Domain")
    return found.document()


def compiled(target: str) -> Compiled:
    """A target, which must be valid."""
    return validation.load(document(target))


def read(path: Path) -> Any:
    """The value in a JSON file."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise errors.BadInput(f"{path} cannot be read: {error.strerror}; name a domain as {HELP}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.BadInput(f"{path} is no JSON: {error}") from error


def _member(module: Path, name: str) -> object:
    """What a module on the path of Python, or in this folder, calls by a name."""
    if not all(part.isidentifier() for part in str(module).split(".")):
        raise errors.BadInput(f"there is no file {module}, and no module is called so; name a domain as {HELP}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = importlib.import_module(str(module))
    except ModuleNotFoundError as error:
        raise errors.BadInput(f"{module} cannot be imported: {error}; name a domain as {HELP}") from error
    except Exception as error:
        raise errors.BadInput(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    return getattr(found, name, None)
