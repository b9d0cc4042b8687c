"""Signatures and annotations of users' code, before all that they name is defined.

From Python 3.14 on annotations are evaluated when they are read (PEP 649), and a declaration may stand above its types
without quotes. What names nothing yet is read as a `ForwardRef`; what it names is asked for when a program is hosted.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

if sys.version_info >= (3, 14):
    import annotationlib

    def annotations_of(thing: Any) -> dict[str, Any]:
        """The annotations of a function or class, its own."""
        return annotationlib.get_annotations(thing, format=annotationlib.Format.FORWARDREF)

    def of(function: Callable[..., Any]) -> inspect.Signature:
        """The parameters of a function."""
        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)

else:

    def annotations_of(thing: Any) -> dict[str, Any]:
        """The annotations of a function or class, its own."""
        found: dict[str, Any] = getattr(thing, "__annotations__", {})
        return found

    def of(function: Callable[..., Any]) -> inspect.Signature:
        """The parameters of a function."""
        return inspect.signature(function)
