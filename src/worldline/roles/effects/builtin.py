"""The effects that every program has, brought to life with what this process performs them by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from worldline.adapters.egress import Egress, Filled
from worldline.kernel.authoring import http_call
from worldline.kernel.authoring.calls import Effect
from worldline.model.http import Response
from worldline.roles.effects import attempt, secrets


class HttpRequester(Protocol):
    """An HTTP client of `worldline.adapters`."""

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
    """`http.request`, performed under this process's egress policy."""
    made: list[HttpRequester] = []

    def client() -> HttpRequester:
        if not made:
            from worldline.adapters import http  # noqa: PLC0415 - a third of all import time, where it is needed

            made.append(http.HttpClient(policy))
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
            filled = declared.filled(secrets.secret(declared.secret or credential).reveal())
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
