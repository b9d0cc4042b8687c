"""The demo's outside: a small HTTP server in a thread, which keeps count of what it really got.

It is honest about the world Worldline lives in: it may be called twice for one effect, and tells repeats by their
key. The first `/ship` never gets its answer out in time, because the caller is killed meanwhile.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_SCRIPT = ("look up weather", "ask: book the night train?", "booked: night train, window seat")


class DemoServer:
    """What the server has seen. `requests` counts calls, `parcels` what came of them, one for each key."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()  # each request has a thread; a key that was answered must be seen by the next
        self.requests: list[tuple[str, str, int]] = []
        self.parcels: dict[str, str] = {}
        self.charges: dict[str, str] = {}
        self.shipping = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    def keys(self, path: str) -> list[str]:
        return list(dict.fromkeys(key for called, key, _ in self.requests if called == path))

    def count(self, path: str) -> int:
        return sum(1 for called, _, _ in self.requests if called == path)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path: str, key: str, attempt: int, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.requests.append((path, key, attempt))
            first = self.count("/ship") == 1
            self._say(f"POST {path:<7} key {key[:12]}…  attempt {attempt}")
            if path == "/charge":
                return {"charge": self.charges.setdefault(key, f"charge-{len(self.charges) + 1}")}
            if path == "/think":
                return {"say": _SCRIPT[min(len(_SCRIPT) - 1, _turn(body["transcript"]))]}
            if path == "/look":
                return {"found": f"{body['what']}: sunny, 21 degrees"}
            parcel = self.parcels.setdefault(key, f"parcel-{len(self.parcels) + 1}")
        if first:
            self.shipping.set()
            threading.Event().wait(1.0)  # a slow warehouse: long enough to be killed in the middle
        return {"parcel": parcel}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outside = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                key, attempt = self.headers["Idempotency-Key"], int(self.headers["Attempt"])
                data = json.dumps(outside.answer(self.path, key, attempt, body)).encode()
                try:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except ConnectionError:
                    outside._say(f"     {self.path:<7} the caller is gone: the answer is not delivered")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


def _turn(transcript: list[str]) -> int:
    """How far the conversation is: one turn for each thing the model has said."""
    return sum(1 for line in transcript if line in _SCRIPT)
