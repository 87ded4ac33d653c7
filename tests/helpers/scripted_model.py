"""A model server that follows a script, so that real agents run without a real model.

SCRIPT is a list of steps, taken in turn within one conversation (a conversation's position is the number of tool
results that it already holds):

    [{"calls": [{"call": "myapp_send", "arguments": {"message": "hi"}}]}, {"say": "done: {last}"}]

`call` names a tool by the end of its name, whatever prefix the agent puts before it; the calls of one step run in
parallel. `{last}` in `say` stands for the last tool result. It speaks the Anthropic Messages API, OpenAI chat
completions and OpenAI responses, always streamed, and listens on 127.0.0.1 alone.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from msgspec import Struct

Json = dict[str, Any]
Events = list[tuple[str | None, Json | str]]

_serial = itertools.count(1)


class Asked(Struct):
    """One request to the model: the names of the tools offered, the results of tools so far, what users have said.

    `key` is what the agent showed as its API key.
    """

    path: str
    key: str
    tools: list[str]
    results: list[str]
    users: list[str]


class Call(Struct):
    """A call that the model makes. Codex groups tools in a namespace."""

    tool: str
    namespace: str | None
    arguments: Json

    def __post_init__(self) -> None:
        self.id = f"call_{next(_serial)}"

    id: str = ""


class ScriptedModel:
    """A running server. `asked` are the requests that offered tools; `gate` holds all answers back while it is clear.

    Where `error` is set, that HTTP status is the answer to everything.
    """

    def __init__(self, script: Sequence[Json]) -> None:
        self.script = list(script)
        self.asked: list[Asked] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error = 0
        self.url = ""

    def next_step(self, asked: Asked, offered: list[tuple[str, str | None]]) -> tuple[list[Call], str]:
        """Returns the calls of the next step, or what to say."""
        if not offered:
            return [], "a title"
        self.asked.append(asked)
        done = 0
        for step in self.script:
            calls = step.get("calls", [])
            if not calls:
                return [], step["say"].replace("{last}", asked.results[-1] if asked.results else "")
            if done >= len(asked.results):
                return self._calls(calls, offered)
            done += len(calls)
        return [], "the script has ended"

    def _calls(self, calls: list[Json], offered: list[tuple[str, str | None]]) -> tuple[list[Call], str]:
        found = []
        for call in calls:
            hits = [(name, space) for name, space in offered if f"{space or ''}{name}".endswith(call["call"])]
            if not hits:
                return [], f"no tool offered ends with {call['call']}"
            found.append(Call(*hits[0], call.get("arguments", {})))
        return found, ""


@contextmanager
def serve(script: Sequence[Json]) -> Iterator[ScriptedModel]:
    """Runs a model as long as the block."""
    model = ScriptedModel(script)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"model": model}))
    server.daemon_threads, server.block_on_close = True, False
    model.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield model
    finally:
        model.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: ScriptedModel

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._send(200, "text/plain", b"")

    def do_GET(self) -> None:
        self._send(200, "application/json", b'{"object":"list","data":[]}')

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        self.model.gate.wait()
        if self.model.error:
            return self._send(self.model.error, "application/json", b'{"error":{"message":"no such key"}}')
        api = _APIS.get(self.path.partition("?")[0].rsplit("/", 1)[-1])
        if api is None:
            return self._send(200, "application/json", b'{"input_tokens":1}')
        read, write = api
        results, users = read(query)
        offered = list(_flat(query.get("tools")))
        key = self.headers.get("x-api-key") or self.headers.get("Authorization", "").removeprefix("Bearer ")
        tools = [f"{space or ''}{name}" for name, space in offered]
        calls, text = self.model.next_step(Asked(self.path, key, tools, results, users), offered)
        lines = [
            (f"event: {name}\n" if name else "") + f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
            for name, data in write(query.get("model", ""), calls, text)
        ]
        self._send(200, "text/event-stream", "".join(lines).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _flat(tools: list[Json] | None) -> Iterator[tuple[str, str | None]]:
    """Yields name and namespace of every tool offered."""
    for tool in tools or []:
        if tool.get("type") == "namespace":
            yield from ((inner["name"], tool["name"]) for inner in tool.get("tools", []))
        elif name := tool.get("name") or tool.get("function", {}).get("name"):
            yield name, None


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content or [] if isinstance(block, dict))


# The Anthropic Messages API


def _read_anthropic(query: Json) -> tuple[list[str], list[str]]:
    results, users = [], []
    for message in query["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        results += [_text(block.get("content")) for block in blocks if block["type"] == "tool_result"]
        if message["role"] == "user":
            users += [block["text"] for block in blocks if block["type"] == "text"]
    return results, users


def _write_anthropic(model: str, calls: list[Call], text: str) -> Events:
    message = {"id": f"msg_{next(_serial)}", "type": "message", "role": "assistant", "model": model, "content": []}
    usage = {"input_tokens": 1, "output_tokens": 1}
    events: Events = [
        ("message_start", {"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage}})
    ]
    uses = [{"type": "tool_use", "id": call.id, "name": call.tool, "input": {}} for call in calls]
    deltas: list[Json] = [
        {"type": "input_json_delta", "partial_json": json.dumps(call.arguments, ensure_ascii=False)} for call in calls
    ]
    blocks = uses or [{"type": "text", "text": ""}]
    for index, (block, delta) in enumerate(zip(blocks, deltas or [{"type": "text_delta", "text": text}], strict=True)):
        events += [
            ("content_block_start", {"type": "content_block_start", "index": index, "content_block": block}),
            ("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}),
            ("content_block_stop", {"type": "content_block_stop", "index": index}),
        ]
    stop = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    return [
        *events,
        ("message_delta", {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 1}}),
        ("message_stop", {"type": "message_stop"}),
    ]


# OpenAI chat completions


def _read_chat(query: Json) -> tuple[list[str], list[str]]:
    messages = query["messages"]
    return (
        [_text(message["content"]) for message in messages if message["role"] == "tool"],
        [_text(message["content"]) for message in messages if message["role"] == "user"],
    )


def _write_chat(model: str, calls: list[Call], text: str) -> Events:
    delta: Json = {"role": "assistant", "content": text or None}
    if calls:
        delta["tool_calls"] = [
            {"index": index, "id": call.id, "type": "function", "function": _function(call)}
            for index, call in enumerate(calls)
        ]
    base = {"id": f"c{next(_serial)}", "object": "chat.completion.chunk", "created": 1, "model": model}
    finish = [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}]
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return [
        (None, {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}),
        (None, {**base, "choices": finish, "usage": usage}),
        (None, "[DONE]"),
    ]


def _function(call: Call) -> Json:
    return {"name": call.tool, "arguments": json.dumps(call.arguments, ensure_ascii=False)}


# OpenAI responses


def _read_responses(query: Json) -> tuple[list[str], list[str]]:
    items = [item for item in query["input"] if isinstance(item, dict)]
    return (
        [_text(item.get("output")) for item in items if item.get("type") == "function_call_output"],
        [_text(item.get("content")) for item in items if item.get("role") == "user"],
    )


def _write_responses(model: str, calls: list[Call], text: str) -> Events:
    items: list[Json] = [
        {
            "type": "function_call",
            "id": f"fc_{next(_serial)}",
            "call_id": call.id,
            **_function(call),
            "status": "completed",
            **({"namespace": call.namespace} if call.namespace else {}),
        }
        for call in calls
    ]
    content = [{"type": "output_text", "text": text, "annotations": []}]
    said = {"type": "message", "id": f"m_{next(_serial)}", "role": "assistant", "status": "completed"}
    items = items or [{**said, "content": content}]
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, **details}
    whole = {"id": f"resp_{next(_serial)}", "object": "response", "status": "completed", "model": model, "usage": usage}
    begun = {**whole, "status": "in_progress", "output": []}
    return [
        ("response.created", {"type": "response.created", "response": begun}),
        *(
            ("response.output_item.done", {"type": "response.output_item.done", "output_index": index, "item": item})
            for index, item in enumerate(items)
        ),
        ("response.completed", {"type": "response.completed", "response": {**whole, "output": items}}),
    ]


_APIS = {
    "messages": (_read_anthropic, _write_anthropic),
    "completions": (_read_chat, _write_chat),
    "responses": (_read_responses, _write_responses),
}
