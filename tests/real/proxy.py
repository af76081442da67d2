"""A proxy in front of a model server that records what the server receives."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import httpx


class RecordingProxy:
    """The proxy, at `base_url`; `bodies` are the requests, in order of arrival."""

    def __init__(self, upstream: str) -> None:
        self.bodies: list[dict[str, Any]] = []
        proxy = self
        root = urlsplit(upstream)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["content-length"]))
                proxy.bodies.append(json.loads(raw))
                url = f"{root.scheme}://{root.netloc}{self.path}"
                headers = {"content-type": "application/json"}
                with (
                    suppress(ConnectionError),
                    httpx.stream("POST", url, content=raw, headers=headers, timeout=120, trust_env=False) as answer,
                ):
                    self.send_response(answer.status_code)
                    self.send_header("content-type", answer.headers["content-type"])
                    self.send_header("connection", "close")
                    self.end_headers()
                    for piece in answer.iter_raw():
                        self.wfile.write(piece)
                        self.wfile.flush()

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = False
        self.base_url = f"http://127.0.0.1:{self.server.server_port}/v1"
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        """Refuse connections from now on."""
        if self._thread.is_alive():
            self.server.shutdown()
            self.server.server_close()
            self._thread.join()


@contextmanager
def recording_proxy(upstream: str) -> Iterator[RecordingProxy]:
    """Run a proxy in front of the server at this base URL."""
    proxy = RecordingProxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()
