"""The URL of a store or of objects as people may see it: without passwords.

One function for every message, answer, log line and `repr`. What it shows of a URL without secrets is the URL itself,
so that a command which names it can be typed; in the place of a secret stands `***`, and a URL that is opened with that
is refused with the ways to fill it in (`check_whole`).

Too much is hidden rather than too little: a password that is not escaped may contain `/`, `?`, `#` and `@`.
"""

from __future__ import annotations

import re
import shlex
import urllib.parse
from typing import Final

from worldline.base import errors

HIDDEN: Final = "***"

# `scheme://user:password@place`: up to the last @, whatever is between. A slash or two may be missing.
_LOGIN: Final = r"(?P<user>[A-Za-z][A-Za-z0-9+.-]*:/{0,2}[^\s:@/?#]*):%s@"
_IN_URL: Final = re.compile(_LOGIN % ".*", re.DOTALL)
_IN_TEXT: Final = re.compile(_LOGIN % r"\S*")  # a text continues behind the URL
_PARAMETER: Final = re.compile(r"(?P<name>[^\s&?;=]+)=(?P<value>[^\s&;]+)")
_SECRET: Final = re.compile(r"password|passwd|secret|token", re.IGNORECASE)


def shown(url: str) -> str:
    """A URL for people."""
    return _PARAMETER.sub(_without_value, _IN_URL.sub(rf"\g<user>:{HIDDEN}@", url))


def hidden(text: str) -> str:
    """A message without the passwords of URLs in it: of those that a person typed in the wrong place, say."""
    return _PARAMETER.sub(_without_value, _IN_TEXT.sub(rf"\g<user>:{HIDDEN}@", text)) if "@" in text else text


def option(name: str, url: str) -> str:
    """` --store URL`, as it is typed."""
    return f" --{name} {shlex.quote(shown(url))}"


def check_whole(url: str) -> str:
    """A URL that is to be opened. `BadUrl` if it was copied from a message that hides its password."""
    if f":{HIDDEN}@" in url or f"={HIDDEN}" in url:
        raise errors.BadUrl(
            f"{url} was copied from a message, which hides passwords: put the password in the place of {HIDDEN}, or "
            f"leave --store away and set WORLDLINE_STORE, or leave the password away and set PGPASSWORD"
        )
    return url


def _without_value(match: re.Match[str]) -> str:
    # A name may be percent-encoded, and the driver decodes it before it looks.
    name = urllib.parse.unquote(match["name"])
    return f"{match['name']}={HIDDEN}" if _SECRET.search(name) else match[0]
