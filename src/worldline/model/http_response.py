"""What an HTTP request is answered with, as a workflow sees it and as it is journaled."""

from __future__ import annotations

import codecs
import re
from typing import Any

import msgspec

from worldline.codec import outside_json

# The codecs that servers declare. Python has others that are no encodings of text: some raise although told to replace,
# some unfold, some take quadratic time.
_TEXT_CODECS = re.compile(
    r"ascii|utf-8(-sig)?|utf-(16|32)(-le|-be)?|iso8859-\d+|cp125\d|cp(437|850|866|874|932|949)|tis-620|koi8-[rut]|"
    r"gb2312|gbk|gb18030|big5|big5hkscs|euc_jp|euc_kr|shift_jis|iso2022_jp|mac-roman|mac-cyrillic"
)
_URL = re.compile(r"([a-z][a-z0-9+.-]*:(?://)?)(?:[^/?#]*@)?([^/?#]*)([^?#]*)", re.IGNORECASE)
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
        return self.body.decode(_codec(found.group(1)) if found else "utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON. `BadInput` if it is not."""
        return outside_json.decode(self.body, what=f"the answer of {shown_url(self.url) or 'the server'}")


def shown_url(url: str) -> str:
    """A URL for messages: scheme, host and path. Its name and password, query and fragment may be secrets."""
    found = _URL.match(url)
    return "".join(found.groups()) if found else ""


def _codec(charset: str) -> str:
    try:
        name = codecs.lookup(charset).name
    except LookupError:
        return "utf-8"
    return name if _TEXT_CODECS.fullmatch(name) else "utf-8"
