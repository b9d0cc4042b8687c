"""The declaration of the built-in effect `http.request`: public as `worldline.http`.

It is an effect like any other, known to every program, and journaled in the same way; what is special is who performs
it: the host's own HTTP client, under the host's egress policy, with the intent's id as `Idempotency-Key`. Nothing here
touches a network.

Everything that a call is given is journaled, headers included: a secret does not belong into it. `credential` is only
the name of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from worldline.base import failures
from worldline.kernel.authoring.calls import Effect, Retry
from worldline.model.http_response import Response

P = ParamSpec("P")
R = TypeVar("R")

NAME = "http.request"
TIMEOUT_SECONDS = 60

__all__ = ["Response", "request"]


def _declare(function: Callable[P, R]) -> Effect[P, R]:
    return Effect(function, NAME, {}, timeout=TIMEOUT_SECONDS, retry=Retry())


@_declare
def request(
    method: str,
    url: str,
    *,
    params: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
    json: Any = None,
    body: bytes = b"",
    credential: str = "",
) -> Response:
    """Make an HTTP request from a workflow: `await wl.http.request("POST", url, json={...})`.

    Every attempt carries the same `Idempotency-Key`. Connection failures, 429 and 5xx are tried again as the effect's
    `Retry` says, and raise `EffectFailed` in the end; any other status is a `Response`. Hosts that the process was not
    opened for (`wl.open(..., egress=wl.ops.Egress(allow=[...]))`) are refused with code `egress_refused`.
    `credential` names one of `wl.ops.Egress(credentials=...)`: its secret goes into a header where the request is made,
    and to its origin only.
    """
    del url, params, headers, json, body, credential  # only the host's HTTP client performs it
    raise failures.OutsideWorkflow(
        f"wl.http.request({method!r}, ...) is performed for workflows; outside of one, use an HTTP client"
    )


BUILTIN: dict[str, Effect[..., Any]] = {NAME: request}
