"""Patterns of names, as grants and rules have them."""

from __future__ import annotations

from typing import Any

from worldline.base import errors
from worldline.model import ids, policy


def check(text: Any, what: str) -> str:
    """A name, the beginning of one with a star behind it, or a star alone."""
    if not isinstance(text, str) or policy.ANY in text[:-1]:
        raise errors.BadInput(f"{what}= takes a name, or the beginning of one with * behind it, not {text!r}")
    return text if text == policy.ANY else ids.check_name(text, what)
