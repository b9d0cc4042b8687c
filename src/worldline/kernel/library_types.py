"""Types of libraries as values: paths, and pydantic's own types (urls, sizes and the like), written as in JSON.

Nothing of them is imported: a program that uses one has done so, and the kernel touches no files. Pydantic's models are
no part of this, they read and write themselves.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

_TIMED = ("PastDate", "FutureDate", "PastDatetime", "FutureDatetime")
_REFUSED = {
    **dict.fromkeys(
        ("SecretStr", "SecretBytes", "Secret"), "it has no stored form; the effect that needs it calls wl.secret()"
    ),
    **dict.fromkeys(
        _TIMED, "whether it fits depends on when it is read; use date or datetime, and check it where it is set"
    ),
    **dict.fromkeys(("IPvAnyAddress", "IPvAnyInterface", "IPvAnyNetwork"), "its values have no stored form; use str"),
    "Json": "what it holds is not the text that it is read from; use Any, or a model",
    "ImportString": "what it names may be another thing where it is read; use str",
}


def is_path(kind: Any) -> bool:
    """Return whether objects of a class are paths."""
    # By its name: the kernel does not import `pathlib`, which reaches files.
    return any(each.__name__ == "PurePath" and _root(each) == "pathlib" for each in kind.__mro__)


def is_pydantic(kind: Any) -> bool:
    """Return whether a class is one of pydantic's own types."""
    # Only a program that has imported it can have its types.
    return _root(kind) in ("pydantic", "pydantic_core") and "pydantic" in sys.modules


def _root(kind: Any) -> str:
    return str(getattr(kind, "__module__", "")).partition(".")[0]


def refusal(kind: Any) -> str:
    """Say why values of one cannot be stored, or nothing."""
    why = _REFUSED.get(str(getattr(kind, "__name__", "")))
    if why:
        return why
    try:
        _adapter(kind)
    except Exception as error:  # noqa: BLE001 - some need packages that are not installed
        return str(error).partition("\n")[0]
    return ""


def path_text(value: Any) -> str:
    return str(value.as_posix())


def dump(value: object) -> Any:
    kind: Any = type(value)
    why = refusal(kind)
    if why:
        raise TypeError(f"{kind.__name__}: {why}")
    return _adapter(kind).dump_python(value, mode="json")


def path(kind: Any, value: object) -> Any:
    if type(value) is not str:
        raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
    return kind(value)


def load(kind: type, value: object) -> Any:
    try:
        return _adapter(kind).validate_python(value)
    except ValueError as error:
        said = [each["msg"] for each in error.errors()] if hasattr(error, "errors") else [str(error)]
        raise ValueError("; ".join(said)) from error  # one line, without where to read about it


# Making an adapter compiles the schema of the type, which is slow: once for each.
@functools.lru_cache(maxsize=256)
def _adapter(kind: type) -> Any:
    return sys.modules["pydantic"].TypeAdapter(kind)
