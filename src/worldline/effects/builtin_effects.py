"""The effects that every program has, brought to life with what this process performs them by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from worldline.effects import attempt, secret_reading
from worldline.effects.egress import Egress, Filled
from worldline.kernel.authoring import http_call
from worldline.kernel.authoring.calls import Effect
from worldline.model.http_response import Response


class HttpRequester(Protocol):
    """An HTTP client of `worldline.effects`."""

    async def request(
        self,
        method: str,
        url: str,
        *,
        key: str,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        json: Any,
        body: bytes,
        credential: Filled | None,
    ) -> Response: ...


def http_request(policy: Egress) -> Effect[..., Response]:
    """`http_client.request`, performed under this process's egress policy."""
    made: list[HttpRequester] = []

    def client() -> HttpRequester:
        # One client for all requests: it keeps its TLS context.
        if not made:
            from worldline.effects import http_client  # noqa: PLC0415 - a third of all import time, where it is needed

            made.append(http_client.HttpClient(policy))
        return made[0]

    async def request(
        method: str,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        body: bytes = b"",
        credential: str = "",
    ) -> Response:
        filled: Filled | None = None
        if credential:
            declared = policy.credential(credential)
            # Read at each attempt, so a secret that was changed is used by the next one.
            filled = declared.filled(secret_reading.secret(declared.secret or credential).reveal())
        return await client().request(
            method,
            url,
            key=attempt.attempt().key,
            params=params,
            headers=headers,
            json=json,
            body=body,
            credential=filled,
        )

    return http_call.request.performed_by(request)
