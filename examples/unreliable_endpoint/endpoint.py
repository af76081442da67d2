"""Serves OpenAI's chat completions and fails on purpose; the name of the model selects what is wrong with it."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

REFUSED = {
    "no-tools": (400, "This model does not support tools."),
    "locked": (401, "Incorrect API key provided."),
    "empty": (429, "insufficient_quota: You exceeded your current quota."),
    "filtered": (400, "content_filter: The prompt was blocked."),
    "missing": (404, "The model `missing` does not exist."),
}
bodies: list[dict[str, Any]] = []
"""The requests that were received, oldest first."""


def refusal(body: dict[str, Any]) -> tuple[int, str] | None:
    """Return the status and the text of an error; None if the request is fine."""
    name, last = body["model"], body["messages"][-1]
    if name == "no-tools" and not body.get("tools"):
        return None
    if name == "strict" and "max_completion_tokens" in body:
        return 400, "Unsupported parameter: 'max_completion_tokens'. Use 'max_tokens' instead."
    if name == "plain" and "response_format" in body:
        return 400, "response_format is not supported."
    if name == "small" and len(json.dumps(body["messages"])) > 6000:
        return 400, "This model's maximum context length is 1024 tokens."
    if name == "busy" and sum(each["model"] == name for each in bodies) < 3:
        return 429, "Rate limit reached; try again in 0.1 s."
    if name == "down":
        return 503, "The server is overloaded."
    return REFUSED.get(name) if "OK" not in str(last["content"]) else None


def answer(body: dict[str, Any]) -> dict[str, Any]:
    """Return the message of a reply."""
    last = body["messages"][-1]
    if last["role"] == "tool" or "tool_result" in str(last["content"]):
        return {"content": "Take an umbrella: it rains."}
    if tools := body.get("tools"):
        function = {"name": tools[0]["function"]["name"], "arguments": '{"city": "Bergen"}'}
        return {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]}
    if body["model"] in ("no-tools", "deaf"):
        call = {"name": "weather", "arguments": {"city": "Bergen"}}
        return {"content": f"<tool_call>{json.dumps(call)}</tool_call>"}
    if body["model"] == "plain":
        return {"content": '{"city": "Bergen", "rain": true}'}
    return {"content": "OK"}


class Endpoint(BaseHTTPRequestHandler):
    """Answers, refuses or drops what the model's name selects."""

    def do_POST(self) -> None:
        """Answer a chat completion, as a stream if the request asks for one."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        bodies.append(body)
        if (refused := refusal(body)) is not None:
            error = {"message": refused[1], "type": "invalid_request_error"}
            self.send(refused[0], json.dumps({"error": error}), "application/json")
            return
        dropped = body["model"] == "deaf" and body.get("tools")
        message = {"content": "Sunny."} if dropped else answer(body)
        read = sum(len(str(each["content"])) for each in body["messages"]) // 4 + 3
        read += 0 if body["model"] == "deaf" else 200 * len(body.get("tools", ()))
        usage = {"prompt_tokens": read, "completion_tokens": 3, "total_tokens": read + 3}
        end = "tool_calls" if "tool_calls" in message else "stop"
        chunk = {"id": "r1", "created": 1, "model": body["model"], "usage": usage}
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": end}
            reply = {**chunk, "object": "chat.completion", "choices": [choice]}
            self.send(200, json.dumps(reply), "application/json")
            return
        choice = {"index": 0, "delta": {"role": "assistant", **message}, "finish_reason": end}
        part = {**chunk, "object": "chat.completion.chunk", "choices": [choice]}
        self.send(200, f"data: {json.dumps(part)}\n\ndata: [DONE]\n\n", "text/event-stream")

    def do_GET(self) -> None:
        """List the models, with the window that the server reads."""
        names = [{"id": "good", "object": "model", "max_model_len": 8192}]
        self.send(200, json.dumps({"object": "list", "data": names}), "application/json")

    def send(self, status: int, text: str, kind: str) -> None:
        """Send a whole response."""
        content = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def start() -> tuple[ThreadingHTTPServer, str]:
    """Start the server on a free port of this machine; return it and the `base_url` of its API."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}/v1"
