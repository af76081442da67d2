"""Bodies for `benchmarks.bodies`: large legal requests, and the costliest ones for each stage that reads them."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_LIMIT = 9_900_000
_CHAT, _MESSAGES, _COUNT = "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"
_RPC, _REST = "/a2a", "/a2a/rest/message:send"


@dataclass(frozen=True)
class Sample:
    """One body, and where it is sent."""

    name: str
    path: str
    body: Callable[[], bytes]
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "POST"


def _repeated(head: str, item: str, tail: str, size: int) -> bytes:
    """JSON text of some size whose middle is one item many times, with commas between."""
    count = max(1, (size - len(head) - len(tail)) // (len(item) + 1))
    return (head + ",".join([item] * count) + tail).encode()


def _chat(messages: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "bench", "messages": messages, **fields}).encode()


def _anthropic(messages: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "bench", "max_tokens": 100, "messages": messages, **fields}).encode()


def _turn(number: int, anthropic: bool = False) -> list[Any]:
    id_, text, result = f"call_{number}", "Look it up, please. " * 10, "result " * 143
    if anthropic:
        return [
            {"role": "user", "content": text},
            {"role": "assistant", "content": [{"type": "tool_use", "id": id_, "name": "look", "input": {"of": "x"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": result}]},
            {"role": "assistant", "content": text},
        ]
    function = {"name": "look", "arguments": '{"of": "x"}'}
    return [
        {"role": "user", "content": text},
        {"role": "assistant", "content": None, "tool_calls": [{"id": id_, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": id_, "content": result},
        {"role": "assistant", "content": text},
    ]


def _history(turns: int, anthropic: bool = False) -> list[Any]:
    history = [message for number in range(turns) for message in _turn(number, anthropic)]
    return [*history, {"role": "user", "content": "And now?"}]


def _schema(fields: int) -> dict[str, Any]:
    one = {"type": "string", "description": "One of the values that the search takes.", "enum": ["a", "b", "c"]}
    properties = {f"field_{number}": one for number in range(fields)}
    return {"type": "object", "properties": properties, "required": ["field_0"], "additionalProperties": False}


def _tools(count: int, fields: int) -> list[Any]:
    return [
        {
            "type": "function",
            "function": {"name": f"tool_{n}", "description": "Searches. " * 20, "parameters": _schema(fields)},
        }
        for n in range(count)
    ]


def _anthropic_tools(count: int, fields: int) -> list[Any]:
    return [{"name": f"tool_{n}", "description": "Searches.", "input_schema": _schema(fields)} for n in range(count)]


def _picture(size: int) -> str:
    return base64.b64encode(random.Random(1).randbytes(size)).decode()


def _image(size: int) -> Any:
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_picture(size)}"}},
    ]
    return [{"role": "user", "content": parts}]


def _anthropic_image(size: int) -> Any:
    source = {"type": "base64", "media_type": "image/png", "data": _picture(size)}
    return [{"role": "user", "content": [{"type": "image", "source": source}]}]


def _user(text: str) -> Any:
    return [{"role": "user", "content": text}]


_HI = '{"model":"bench","messages":[{"role":"user","content":"hi"}],'
_AHI = '{"model":"bench","max_tokens":9,"messages":[{"role":"user","content":"hi"}],'
_NEW = {"a2a-version": "1.0"}
_SEND = (
    '{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","parts":['
)
_OLD = '{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"m","role":"user","parts":['
_REST_SEND = '{"message":{"messageId":"m","role":"ROLE_USER","parts":['


# fmt: off
# A body a line, so that they can be compared.
def _keyed(head: str, count: int, value: Callable[[int], str], tail: str) -> bytes:
    return (head + ",".join(f'"k{n}":{value(n)}' for n in range(count)) + tail).encode()


SAMPLES: list[Sample] = [
    # Legal ones.
    Sample("chat: 200 turns", _CHAT, lambda: _chat(_history(200))),
    Sample("chat: 200 turns, 200 tools", _CHAT, lambda: _chat(_history(200), tools=_tools(200, 10))),
    Sample("chat: 200 tools of 20 fields", _CHAT, lambda: _chat(_user("hi"), tools=_tools(200, 20))),
    Sample("chat: image of 5 MB", _CHAT, lambda: _chat(_image(5_000_000))),
    Sample("chat: image of 7 MB", _CHAT, lambda: _chat(_image(7_200_000))),
    Sample("chat: text of 9.5 MB, ASCII", _CHAT, lambda: _chat(_user("word " * 1_900_000))),
    Sample("chat: text of 9.5 MB, escapes", _CHAT, lambda: _chat(_user("\u00e9\n" * 1_180_000))),
    Sample("chat: text of 9.5 MB, UTF-8", _CHAT, lambda: json.dumps({"model": "bench", "messages": _user("é\U0001f600" * 1_550_000)}, ensure_ascii=False).encode()),
    Sample("chat: text of 9.5 MB, surrogates", _CHAT, lambda: _chat(_user("\ud800a" * 1_350_000))),
    Sample("messages: 200 turns, 200 tools", _MESSAGES, lambda: _anthropic(_history(200, True), tools=_anthropic_tools(200, 10))),
    Sample("messages: image of 5 MB", _MESSAGES, lambda: _anthropic(_anthropic_image(5_000_000))),
    Sample("count: 200 turns, 200 tools", _COUNT, lambda: _anthropic(_history(200, True), tools=_anthropic_tools(200, 10))),
    Sample("count: text of 9.5 MB", _COUNT, lambda: _anthropic(_user("word " * 1_900_000))),
    Sample("a2a: text of 9.5 MB", _RPC, lambda: (_SEND + json.dumps({"text": "word " * 1_900_000}) + "]}}}").encode(), _NEW),
    Sample("a2a: raw of 5 MB", _RPC, lambda: (_SEND + '{"text":"hi"},' + json.dumps({"raw": _picture(5_000_000)}) + "]}}}").encode(), _NEW),
    Sample("a2a 0.3: text of 9.5 MB", _RPC, lambda: (_OLD + json.dumps({"kind": "text", "text": "word " * 1_900_000}) + "]}}}").encode()),
    # Small things without end.
    Sample("chat: tiny objects", _CHAT, lambda: _repeated(_HI + '"x":[', "{}", "]}", _LIMIT)),
    Sample("chat: tiny lists", _CHAT, lambda: _repeated(_HI + '"x":[', "[]", "]}", _LIMIT)),
    Sample("chat: ones", _CHAT, lambda: _repeated(_HI + '"x":[', "1", "]}", _LIMIT)),
    Sample("chat: keys", _CHAT, lambda: _keyed(_HI, 700_000, lambda n: "1", "}")),
    Sample("chat: repeated key", _CHAT, lambda: _repeated(_HI[:-1] + ",", '"a":1', "}", _LIMIT)),
    Sample("chat: faults in messages", _CHAT, lambda: _repeated('{"model":"bench","messages":[', "1", "]}", _LIMIT)),
    Sample("chat: small messages", _CHAT, lambda: _repeated('{"model":"bench","messages":[', '{"role":"user","content":"x"}', "]}", _LIMIT)),
    Sample("chat: small parts", _CHAT, lambda: _repeated('{"model":"bench","messages":[{"role":"user","content":[', '{"type":"text","text":"x"}', "]}]}", _LIMIT)),
    Sample("chat: small calls", _CHAT, lambda: _repeated(_HI[:-2] + ',{"role":"assistant","tool_calls":[', '{"id":"a","function":{"name":"a"}}', ']},{"role":"user","content":"x"}]}', _LIMIT)),
    Sample("chat: calls' arguments", _CHAT, lambda: _chat([*_user("hi"), {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "a", "arguments": '{"x":[' + "1," * 4_700_000 + "1]}"}}]}, {"role": "tool", "tool_call_id": "a", "content": "x"}])),
    Sample("chat: small tools", _CHAT, lambda: (_HI + '"tools":[' + ",".join('{"type":"function","function":{"name":"t%d"}}' % n for n in range(180_000)) + "]}").encode()),
    Sample("chat: wide tool schema", _CHAT, lambda: _keyed(_HI + '"tools":[{"type":"function","function":{"name":"t","parameters":{"type":"object","properties":{', 500_000, lambda n: "{}", "}}}}]}")),
    Sample("chat: answer schema", _CHAT, lambda: _keyed(_HI + '"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object","properties":{', 3_800, lambda n: "{}", "}}}}}")),
    Sample("chat: stops", _CHAT, lambda: _repeated(_HI + '"stop":[', '"a"', "]}", _LIMIT)),
    Sample("chat: metadata", _CHAT, lambda: _keyed(_HI + '"metadata":{', 700_000, lambda n: "1", "}}")),
    Sample("chat: deep", _CHAT, lambda: (_HI + '"x":' + "[" * 900 + "]" * 900 + "}").encode()),
    Sample("chat: very deep", _CHAT, lambda: (_HI + '"x":' + "[" * 4_900_000 + "]" * 4_900_000 + "}").encode()),
    Sample("chat: open brackets", _CHAT, lambda: b"[" * _LIMIT),
    Sample("chat: long number", _CHAT, lambda: (_HI + '"x":' + "1" * 9_800_000 + "}").encode()),
    Sample("chat: numbers of 4,000 digits", _CHAT, lambda: _repeated(_HI + '"x":[', "9" * 4_000, "]}", _LIMIT)),
    Sample("chat: fractions of 9.8 MB", _CHAT, lambda: (_HI + '"temperature":0.' + "1" * 9_800_000 + "}").encode()),
    Sample("chat: numbers with exponents", _CHAT, lambda: _repeated(_HI + '"x":[', "1." + "7" * 700 + "e-300", "]}", _LIMIT)),
    Sample("chat: long keys", _CHAT, lambda: (_HI + ",".join('"%s%d":1' % ("k" * 1_000, n) for n in range(9_500)) + "}").encode()),
    Sample("chat: long text for a short enum", _CHAT, lambda: _chat([{"role": "u" * 9_500_000, "content": "x"}])),
    Sample("chat: long tool name", _CHAT, lambda: _chat(_user("hi"), tools=[{"type": "function", "function": {"name": "t" * 9_500_000}}])),
    Sample("chat: spaces", _CHAT, lambda: (_HI + " " * 9_800_000 + '"x":1}').encode()),
    Sample("chat: no JSON", _CHAT, lambda: b"x" * _LIMIT),
    Sample("chat: unterminated string", _CHAT, lambda: b'{"a":"' + b"x" * _LIMIT),
    Sample("chat: backslashes", _CHAT, lambda: _chat(_user("\\" * 4_800_000))),
    Sample("chat: plain text type", _CHAT, lambda: _repeated(_HI + '"x":[', "{}", "]}", _LIMIT), {"content-type": "text/plain"}),
    Sample("messages: small blocks", _MESSAGES, lambda: _repeated('{"model":"bench","max_tokens":9,"messages":[{"role":"user","content":[', '{"type":"text","text":"x"}', "]}]}", _LIMIT)),
    Sample("messages: nested results", _MESSAGES, lambda: _repeated('{"model":"bench","max_tokens":9,"messages":[{"role":"user","content":[', '{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"x"}]}', "]}]}", _LIMIT)),
    Sample("messages: tool inputs", _MESSAGES, lambda: _repeated(_AHI + '"x":[', "{}", "]}", _LIMIT)),
    Sample("messages: deep blocks", _MESSAGES, lambda: ('{"model":"bench","max_tokens":9,"messages":[{"role":"user","content":' + '[{"type":"tool_result","tool_use_id":"a","content":' * 95 + '"x"' + "}]" * 95 + "}]}").encode()),
    Sample("count: small blocks", _COUNT, lambda: _repeated('{"model":"bench","messages":[{"role":"user","content":[', '{"type":"text","text":"x"}', "]}]}", _LIMIT)),
    Sample("steer: tiny objects", "/sessions/s/steer", lambda: _repeated('{"text":"x","y":[', "{}", "]}", _LIMIT)),
    Sample("resume: ones", "/sessions/s/resume", lambda: _repeated('{"answer":[', "1", "]}", _LIMIT)),
    Sample("a2a: ones as data, 1 MB", _RPC, lambda: _repeated(_SEND + '{"data":[', "1", "]}]}}}", 1_000_000), _NEW),
    Sample("a2a: ones as data, 50 KB", _RPC, lambda: _repeated(_SEND + '{"data":[', "1", "]}]}}}", 50_000), _NEW),
    Sample("a2a: metadata, 1 MB", _RPC, lambda: _keyed(_SEND + '{"text":"x"}],"metadata":{', 100_000, lambda n: "1", "}}}}"), _NEW),
    Sample("a2a: small parts, 1 MB", _RPC, lambda: _repeated(_SEND, '{"text":"x"}', "]}}}", 1_000_000), _NEW),
    Sample("a2a: passed-on parts, 1 MB", _RPC, lambda: _repeated(_SEND, '{"text":"x","metadata":{"a":1}}', "]}}}", 1_000_000), _NEW),
    Sample("a2a: deep data", _RPC, lambda: (_SEND + '{"data":' + "[" * 24 + "]" * 24 + "}]}}}").encode(), _NEW),
    Sample("a2a: unknown method", _RPC, lambda: _repeated('{"jsonrpc":"2.0","id":1,"method":"x","params":[', "{}", "]}", _LIMIT), _NEW),
    Sample("a2a: long unknown method", _RPC, lambda: json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x" * 9_500_000}).encode(), _NEW),
    Sample("a2a: wrong params of 9 MB", _RPC, lambda: json.dumps({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": "x" * 9_000_000}).encode(), _NEW),
    Sample("a2a: batch", _RPC, lambda: _repeated("[", '{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"x"}}', "]", _LIMIT), _NEW),
    Sample("a2a 0.3: ones as data, 1 MB", _RPC, lambda: _repeated(_OLD + '{"kind":"data","data":{"x":[', "1", "]}}]}}}", 1_000_000)),
    Sample("a2a 0.3: faulty parts, 1 MB", _RPC, lambda: _repeated(_OLD, "1", "]}}}", 1_000_000)),
    Sample("a2a 0.3: small parts, 1 MB", _RPC, lambda: _repeated(_OLD, '{"kind":"text","text":"x"}', "]}}}", 1_000_000)),
    Sample("a2a rest: ones as data, 1 MB", _REST, lambda: _repeated(_REST_SEND + '{"data":[', "1", "]}]}}", 1_000_000), _NEW),
]

_A2A = 4_950  # values that the default bound of an A2A request admits, the frame aside
_ALL = 59_900  # the same for other bodies


def _fit(head: str, item: str, tail: str, values: int, per_item: int) -> bytes:
    """JSON text with some number of values, each item having so many."""
    return (head + ",".join([item] * (values // per_item)) + tail).encode()


def _pairs(count: int) -> Any:
    calls = [
        message
        for _ in range(count)
        for message in (
            {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": {"name": "a"}}]},
            {"role": "tool", "content": "", "tool_call_id": "a"},
        )
    ]
    return [*_user("hi"), *calls, *_user("hi")]


_PASSED = '{"text":"x","metadata":{"a":1}}'
SAMPLES += [
    # As many as the default bounds admit.
    Sample("admitted chat: objects", _CHAT, lambda: _fit(_HI + '"x":[', "{}", "]}", _ALL, 2)),
    Sample("admitted chat: lists", _CHAT, lambda: _fit(_HI + '"x":[', "[]", "]}", _ALL, 2)),
    Sample("admitted chat: ones", _CHAT, lambda: _fit(_HI + '"x":[', "1", "]}", _ALL, 1)),
    Sample("admitted chat: numbers of 100 digits", _CHAT, lambda: _fit(_HI + '"x":[', "9" * 100, "]}", _ALL, 1)),
    Sample("admitted chat: fractions of 100 digits", _CHAT, lambda: _fit(_HI + '"x":[', "0." + "7" * 98, "]}", _ALL, 1)),
    Sample("admitted chat: long keys", _CHAT, lambda: (_HI + ",".join('"%s%d":1' % ("k" * 150, n) for n in range(59_000)) + "}").encode()),
    Sample("admitted chat: strings of 150 characters", _CHAT, lambda: _fit(_HI + '"x":[', json.dumps("é\ud800" * 10), "]}", _ALL, 1)),
    Sample("admitted chat: metadata", _CHAT, lambda: _keyed(_HI + '"metadata":{', 59_000, lambda n: "1", "}}")),
    Sample("admitted chat: messages", _CHAT, lambda: _chat([{"role": "user", "content": "x"}] * 2_000)),
    Sample("admitted chat: messages, long", _CHAT, lambda: _chat([{"role": "user", "content": "word " * 950}] * 2_000)),
    Sample("admitted chat: parts", _CHAT, lambda: _chat([{"role": "user", "content": [{"type": "text", "text": "x"}] * 1_999}])),
    Sample("admitted chat: calls", _CHAT, lambda: _chat(_pairs(665))),
    Sample("admitted chat: arguments", _CHAT, lambda: _chat([*_user("hi"), {"role": "assistant", "content": "", "tool_calls": [{"id": f"a{n}", "function": {"name": "a", "arguments": '{"x":[' + "1," * 45 + "1]}"}} for n in range(400)]}, *[{"role": "tool", "content": "", "tool_call_id": f"a{n}"} for n in range(400)], *_user("hi")])),
    Sample("admitted chat: too many messages", _CHAT, lambda: _fit('{"model":"bench","messages":[', '{"role":"user","content":"x"}', "]}", _ALL, 3)),
    Sample("admitted chat: too many calls", _CHAT, lambda: _fit(_HI[:-2] + ',{"role":"assistant","tool_calls":[', '{"id":"a","function":{"name":"a"}}', ']},{"role":"user","content":"x"}]}', _ALL, 4)),
    Sample("admitted chat: faulty messages", _CHAT, lambda: _fit('{"model":"bench","messages":[', "1", "]}", _ALL, 1)),
    Sample("admitted chat: tools", _CHAT, lambda: _chat(_user("hi"), tools=_tools(1_000, 6))),
    Sample("admitted chat: large tools", _CHAT, lambda: _chat(_user("hi"), tools=_tools(10, 800))),
    Sample("admitted chat: one tool", _CHAT, lambda: _keyed(_HI + '"tools":[{"type":"function","function":{"name":"t","parameters":{"type":"object","properties":{', 29_500, lambda n: "{}", "}}}}]}")),
    Sample("admitted chat: too many tools", _CHAT, lambda: (_HI + '"tools":[' + ",".join('{"type":"function","function":{"name":"t%d"}}' % n for n in range(14_900)) + "]}").encode()),
    Sample("admitted chat: JSON in a result", _CHAT, lambda: _chat([*_turn(1)[:2], {"role": "tool", "tool_call_id": "call_1", "content": "[" + "1," * 4_700_000 + "1]"}])),
    Sample("admitted messages: blocks", _MESSAGES, lambda: _anthropic([{"role": "user", "content": [{"type": "text", "text": "x"}] * 1_999}])),
    Sample("admitted messages: inputs", _MESSAGES, lambda: (_AHI[:-2] + ',{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"a","input":{"x":[' + ",".join(["{}"] * 29_000) + ']}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"x"}]}]}').encode()),
    Sample("admitted messages: too many blocks", _MESSAGES, lambda: _fit('{"model":"bench","max_tokens":9,"messages":[{"role":"user","content":[', '{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"x"}]}', "]}]}", _ALL, 7)),
    Sample("admitted resume: ones", "/sessions/s/resume", lambda: _fit('{"answer":[', "1", "]}", _ALL, 1)),
    Sample("admitted a2a: ones as data", _RPC, lambda: _fit(_SEND + '{"data":[', "1", "]}]}}}", _A2A, 1), _NEW),
    Sample("admitted a2a: objects as data", _RPC, lambda: _fit(_SEND + '{"data":[', '{"a":1}', "]}]}}}", _A2A, 2), _NEW),
    Sample("admitted a2a: lists as data", _RPC, lambda: _fit(_SEND + '{"data":[', "[]", "]}]}}}", _A2A, 2), _NEW),
    Sample("admitted a2a: text and data", _RPC, lambda: (_SEND + '{"data":[1]},' + json.dumps({"text": "[" + "1," * 490_000 + "1]"}) + "]}}}").encode(), _NEW),
    Sample("admitted a2a: text of 1 MB", _RPC, lambda: (_SEND + json.dumps({"text": "word " * 199_000}) + "]}}}").encode(), _NEW),
    Sample("admitted a2a: no base64", _RPC, lambda: (_SEND + json.dumps({"raw": "\u00e9" * 1_500_000}) + "]}}}").encode(), _NEW),
    Sample("admitted a2a: file of text", _RPC, lambda: (_SEND + json.dumps({"raw": base64.b64encode(b"word " * 1_400_000).decode(), "mediaType": "text/plain"}) + "]}}}").encode(), _NEW),
    Sample("admitted a2a 0.3: file", _RPC, lambda: (_OLD + '{"kind":"text","text":"x"},' + json.dumps({"kind": "file", "file": {"bytes": _picture(7_000_000), "mimeType": "image/png"}}) + "]}}}").encode()),
    Sample("admitted a2a: wrong params of 1 MB", _RPC, lambda: json.dumps({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": "x" * 990_000}).encode(), _NEW),
    Sample("admitted a2a: metadata", _RPC, lambda: _keyed(_SEND + '{"text":"x"}],"metadata":{', 4_900, lambda n: "1", "}}}}"), _NEW),
    Sample("admitted a2a: parts", _RPC, lambda: _fit(_SEND, '{"text":"x"}', "]}}}", 400, 2), _NEW),
    Sample("admitted a2a: parts with metadata", _RPC, lambda: _fit(_SEND, _PASSED, "]}}}", 800, 4), _NEW),
    Sample("admitted a2a: reference ids", _RPC, lambda: _fit(_SEND + '{"text":"x"}],"referenceTaskIds":[', '"a"', "]}}}", _A2A, 1), _NEW),
    Sample("admitted a2a: extensions", _RPC, lambda: _fit(_SEND + '{"text":"x"}],"extensions":[', '"a"', "]}}}", _A2A, 1), _NEW),
    Sample("admitted a2a 0.3: ones as data", _RPC, lambda: _fit(_OLD + '{"kind":"data","data":{"x":[', "1", "]}}]}}}", _A2A, 1)),
    Sample("admitted a2a 0.3: objects as data", _RPC, lambda: _fit(_OLD + '{"kind":"data","data":{"x":[', '{"a":1}', "]}}]}}}", _A2A, 2)),
    Sample("admitted a2a 0.3: faulty parts", _RPC, lambda: _fit(_OLD, "1", "]}}}", 199, 1)),
    Sample("admitted a2a 0.3: faulty ids", _RPC, lambda: _fit(_OLD + '{"kind":"text","text":"x"}],"referenceTaskIds":[', "1", "]}}}", _A2A, 1)),
    Sample("admitted a2a 0.3: parts", _RPC, lambda: _fit(_OLD, '{"kind":"text","text":"x"}', "]}}}", 600, 3)),
    Sample("admitted a2a rest: ones as data", _REST, lambda: _fit(_REST_SEND + '{"data":[', "1", "]}]}}", _A2A, 1), _NEW),
]
