"""What goes past the SDK: a call's exact text and its progress, and a list with tools that it would not let through.

Both go through `Tap`, a dispatcher of the SDK around the SDK's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any

import mcp_types as types
import trio
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus
from mcp.client import IncomingMessage
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest, coerce_request_id
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types import RequestId
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Raw
from pydantic import ValidationError

from oubliette.protocol.members import members
from oubliette.upstreams.connection import Attempt, ProgressListener, RemoteError
from oubliette.upstreams.messages import Ledger


class ExactCall:
    """A call under way: `arguments` as they are to be sent, and the `answer` as it came.

    `on_progress` is called as progress comes, and not any more once the answer has.
    """

    def __init__(self, arguments: bytes, on_progress: ProgressListener) -> None:
        self.arguments = arguments
        self.on_progress = on_progress
        self.answer = b""

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Within it, the call that the current task makes of the SDK is this one."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def result(self) -> bytes:
        """Returns the source text of the result. Raises RemoteError for one that may not be passed on."""
        try:
            text = members(self.answer.decode())["result"]
            # MCP 2026-07-28's mark of a result that is complete, or is not: it belongs to this hop.
            parts = members(text) if "resultType" in text else {}
        except (ValueError, KeyError):
            raise RemoteError("its answer holds what JSON cannot say") from None
        kind = parts.pop("resultType", '"complete"')
        if kind != '"complete"':
            raise RemoteError(f"it asks for {kind}, which nobody here can give")
        return (_join(parts) if parts else text).encode()


# The call that the current task makes: the SDK has no way of its own to carry its text down to `Tap`.
_current: ContextVar[ExactCall | None] = ContextVar("oubliette_upstream_call", default=None)


def _join(parts: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in parts.items()) + "}"


class Tap:
    """A dispatcher of the SDK that passes everything on, with two exceptions.

    Arguments and results of calls are kept exactly, and their progress in its order. And of a list the SDK gets to see
    no tool for which it would refuse the whole: `tools` is the last page as it came, `known` the names that the SDK saw
    of it. Only in MCP 2026-07-28 has it any use for them: it mirrors some arguments into headers.
    """

    def __init__(self, inner: JSONRPCDispatcher, ledger: Ledger, attempt: Attempt) -> None:
        self._inner = inner
        self._ledger = ledger
        self._attempt = attempt
        # Beside the SDK's own, which count from 1.
        self._ids = count(1_000_000)
        self._calls: dict[RequestId, ExactCall] = {}
        self.revision = ""
        self.tools: list[Any] = []
        self.known: set[str] = set()

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: TaskStatus[None] = TASK_STATUS_IGNORED,
    ) -> None:
        def intercept(method: str, params: Mapping[str, Any] | None) -> bool:
            if method == "notifications/progress":
                self._report(params or {})
                return True
            return on_notify_intercept is not None and on_notify_intercept(method, params)

        await self._inner.run(on_request, on_notify, intercept, task_status=task_status)
        # Not where it was cancelled: then the end is ours.
        self._attempt.fate.end("it closed the connection")

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        await self._inner.notify(method, params, opts)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        call = _current.get()
        if method == "tools/call" and call is not None:
            return await self._call(call, params or {}, opts or {})
        result = await self._inner.send_raw_request(method, params, opts)
        return self._sifted(result) if method == "tools/list" and isinstance(result.get("tools"), list) else result

    async def _call(self, call: ExactCall, params: Mapping[str, Any], opts: CallOptions) -> dict[str, Any]:
        id = next(self._ids)
        meta = {**params.get("_meta", {}), "progressToken": id}
        exact = {**params, "arguments": Raw(call.arguments), "_meta": meta}
        self._calls[id] = call
        self._ledger.want(id)
        try:
            return await self._inner.send_raw_request("tools/call", exact, {**opts, "request_id": id})
        finally:
            call.answer = self._ledger.take(id)
            del self._calls[id]

    def _report(self, params: Mapping[str, Any]) -> None:
        # The SDK would do so in a task for each, which may overtake one another, and the answer.
        match params:
            case {"progressToken": int() | str() as token, "progress": int() | float() as done}:
                call = self._calls.get(coerce_request_id(token))
                total, message = params.get("total"), params.get("message")
                if call is not None:
                    of = float(total) if isinstance(total, int | float) else None
                    call.on_progress(float(done), of, message if isinstance(message, str) else None)

    def _sifted(self, result: dict[str, Any]) -> dict[str, Any]:
        self.tools = result["tools"]
        is_modern = self.revision in MODERN_PROTOCOL_VERSIONS
        bare = [tool for tool in map(_bare, self.tools) if is_modern and self._is_fit(tool, result)]
        self.known = {tool["name"] for tool in bare}
        return {**result, "tools": bare}

    async def hear(self, message: IncomingMessage) -> None:
        """Takes what the server says unasked."""
        await trio.lowlevel.checkpoint()
        if isinstance(message, types.ToolListChangedNotification):
            self._attempt.on_list_changed()

    def _is_fit(self, tool: dict[str, Any], result: dict[str, Any]) -> bool:
        try:
            validate_server_result("tools/list", self.revision, {**result, "tools": [tool]})
        except ValidationError:
            return False
        return True


def _bare(tool: Any) -> dict[str, Any]:
    return {key: tool[key] for key in ("name", "inputSchema") if key in tool} if isinstance(tool, dict) else {}
