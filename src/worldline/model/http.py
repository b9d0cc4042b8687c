"""What an HTTP request is answered with, as a workflow sees it and as it is journaled."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from worldline.base import errors

_CHARSET = re.compile(r"charset=\"?([A-Za-z0-9_.:-]+)", re.ASCII)


class Response(msgspec.Struct, frozen=True):
    """An answer with any status that is not tried again. Header names are in lower case; repeated ones are joined."""

    status: int
    headers: dict[str, str] = {}
    body: bytes = b""
    url: str = ""  # where the answer came from: the last one, after redirects

    @property
    def ok(self) -> bool:
        """Whether the status is one of success."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The body as text, in the charset it declares, else UTF-8. What does not decode is replaced."""
        found = _CHARSET.search(self.headers.get("content-type", ""))
        try:
            return self.body.decode(found.group(1) if found else "utf-8", "replace")
        except LookupError:
            return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON. `BadInput` if it is not."""
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError as error:
            raise errors.BadInput(f"the answer of {self.url or 'the server'} is not JSON: {error}") from error
