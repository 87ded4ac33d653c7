"""The Agent Client Protocol, version 1, as its client speaks it: what to send, and what was meant. No I/O.

agentclientprotocol.com: JSON-RPC 2.0 in lines over the agent's stdio. Agents add members and kinds of updates all the
time, so what is not known is ignored, and what does not fit is as good as absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from oubliette import __version__
from oubliette.agents.base import ToolOutcome, ToolUse
from oubliette.agents.process import oversized_note
from oubliette.agents.profile import (
    MAX_CALLS,
    MAX_LINE,
    MAX_MESSAGE,
    MAX_REASON,
    SERVER,
    Calls,
    Said,
    Used,
    is_ours,
    used,
)
from oubliette.protocol import jsonrpc

PROTOCOL_VERSION: Final = 1
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602

_MAX_DIGITS: Final = 18
_ABSENT: Final = (b"", b"null")
_encode: Final = msgspec.json.Encoder().encode


# What we send


def request(number: int, method: str, params: Mapping[str, Any]) -> bytes:
    """Returns a request on one line."""
    return _encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def cancellation(session: str) -> bytes:
    """Returns what ends a turn: its request is answered then, with the stop reason `cancelled`."""
    return jsonrpc.encode_notification("session/cancel", _encode({"sessionId": session}))


def refusal(asked: jsonrpc.Message) -> bytes:
    """Returns the answer to a request of the agent for what this client does not offer: files, terminals."""
    error = {"code": METHOD_NOT_FOUND, "message": f"this client does not offer {asked.method[:64]}"}
    return jsonrpc.encode_error(asked.id, error)


HELLO: Final[Mapping[str, Any]] = {
    "protocolVersion": PROTOCOL_VERSION,
    "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
    "clientInfo": {"name": SERVER, "title": "Oubliette", "version": __version__},
}


def place(workspace: str, client: list[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """Returns the parameters that session/new and session/load share: where it works, and our client."""
    program, *arguments = client
    env = [{"name": name, "value": value} for name, value in variables.items()]
    return {"cwd": workspace, "mcpServers": [{"name": SERVER, "command": program, "args": arguments, "env": env}]}


def prompt(session: str, text: str) -> dict[str, Any]:
    """Returns the parameters of session/prompt."""
    return {"sessionId": session, "prompt": [{"type": "text", "text": text}]}


# What we hear


class Answer(Struct, frozen=True):
    """An answer to the request of this number: a result, or an error in words."""

    number: int
    result: Raw
    error: str


class _Content(Struct, frozen=True):
    type: str = ""
    text: str = ""


class Update(Struct, frozen=True):
    """What has happened within a turn. Members that an update of its kind does not have are empty."""

    kind: str = msgspec.field(name="sessionUpdate")
    content: Raw = Raw(b"{}")
    message_id: str | None = msgspec.field(default=None, name="messageId")
    call: str = msgspec.field(default="", name="toolCallId")
    title: str | None = None
    status: str | None = None
    raw_input: Raw = msgspec.field(default=Raw(b""), name="rawInput")


# What is told in the place of a line that is too long.
LEFT_OUT_NOTE: Final = oversized_note(MAX_LINE)
LEFT_OUT: Final = Update(
    kind="agent_message_chunk",
    message_id="left out",
    content=Raw(_encode({"type": "text", "text": LEFT_OUT_NOTE})),
)


class _Told(Struct, frozen=True):
    update: Update


class _Error(Struct, frozen=True):
    message: str = ""
    data: Raw = Raw(b"")


class Capabilities(Struct, frozen=True):
    can_load: bool = msgspec.field(default=False, name="loadSession")


class Hello(Struct, frozen=True):
    """The answer to `initialize`."""

    version: int = msgspec.field(name="protocolVersion")
    capabilities: Capabilities = msgspec.field(default_factory=Capabilities, name="agentCapabilities")


class _ConfigOption(Struct, frozen=True):
    id: str = ""
    category: str | None = None


class NewSession(Struct, frozen=True):
    """The answer to `session/new`."""

    session: str = msgspec.field(name="sessionId")
    options: list[_ConfigOption] | None = msgspec.field(default=None, name="configOptions")

    @property
    def model_option(self) -> str | None:
        """The option by which the model is chosen, where the agent leaves the choice."""
        return next((option.id for option in self.options or [] if option.category == "model"), None)


class _TokenCounts(Struct, frozen=True):
    inputTokens: int = 0
    outputTokens: int = 0
    thoughtTokens: int | None = None
    cachedReadTokens: int | None = None
    cachedWriteTokens: int | None = None


class PromptEnd(Struct, frozen=True):
    """The answer to `session/prompt`."""

    stop_reason: str = msgspec.field(name="stopReason")
    usage: _TokenCounts | None = None

    @property
    def used(self) -> Used:
        """What the turn used, where the agent tells it."""
        if self.usage is None:
            return Used({})
        return used(
            {
                "input_tokens": self.usage.inputTokens,
                "output_tokens": self.usage.outputTokens,
                "reasoning_output_tokens": self.usage.thoughtTokens or 0,
                "cache_read_input_tokens": self.usage.cachedReadTokens or 0,
                "cache_creation_input_tokens": self.usage.cachedWriteTokens or 0,
            }
        )


T = TypeVar("T", bound=Struct)


def receive(line: bytes) -> jsonrpc.Message | Answer | Update | None:
    """Returns what a line of the agent says: a request, an answer, an update; None for anything else."""
    try:
        message = jsonrpc.decode(line)
    except jsonrpc.MalformedError:
        return None
    if message.is_response:
        return _answer(message)
    if message.id:
        return message
    told = read(_Told, message.params) if message.method == "session/update" else None
    return told.update if told else None


def _answer(message: jsonrpc.Message) -> Answer | None:
    # Our numbers are small; Python refuses to read long ones.
    if not message.id.isdigit() or len(message.id) > _MAX_DIGITS:
        return None
    return Answer(int(message.id), message.result, _in_words(message.error))


def _in_words(raw: Raw) -> str:
    """An error in words; the details are often in `data` alone. Empty where there is none."""
    if bytes(raw) in _ABSENT:
        return ""
    error = read(_Error, raw) or _Error()
    details = "" if bytes(error.data) in _ABSENT else bytes(error.data).decode(errors="replace")
    return " ".join(filter(None, (error.message or "an error", details)))[:MAX_REASON]


def read(kind: type[T], raw: Raw) -> T | None:
    """Returns a result or parameters as `kind`, None where they do not fit."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError:
        return None


# Permissions


class _Option(Struct, frozen=True):
    id: str = msgspec.field(name="optionId")
    kind: str = ""


class _ToolCall(Struct, frozen=True):
    call: str = msgspec.field(default="", name="toolCallId")
    title: str | None = None
    kind: str | None = None


class _PermissionAsked(Struct, frozen=True):
    tool: _ToolCall = msgspec.field(name="toolCall")
    options: list[_Option] = []


# Once, even where it is ours: for what else "always" counts, the agent alone knows.
_ALLOW_OURS: Final = ("allow_once", "allow_always")
_ALLOW_ALL: Final = ("allow_always", "allow_once")
_REJECT: Final = ("reject_once", "reject_always")


def permission(asked: jsonrpc.Message, *, free_hand: bool) -> bytes:
    """Returns the answer to `session/request_permission`. Nobody is asked: it is policy."""
    wanted = read(_PermissionAsked, asked.params)
    if wanted is None:
        return jsonrpc.encode_error(asked.id, {"code": INVALID_PARAMS, "message": "toolCall and options are needed"})
    # A title is free text for tools that run commands or edit files: a model could make it look like ours.
    ours = wanted.tool.kind in (None, "other") and is_ours(wanted.tool.title or "")
    kinds = _ALLOW_ALL if free_hand else _ALLOW_OURS if ours else _REJECT
    return jsonrpc.encode_result(asked.id, _encode({"outcome": _outcome(wanted.options, kinds)}))


def _outcome(options: list[_Option], kinds: tuple[str, ...]) -> dict[str, str]:
    chosen = [option.id for kind in kinds for option in options if option.kind == kind]
    return {"outcome": "selected", "optionId": chosen[0]} if chosen else {"outcome": "cancelled"}


# Updates


class TurnUpdates:
    """Makes one turn's updates into what the agent said and did. Its words come in pieces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0
        self._message_id: str | None = None
        self._calls = Calls()
        self._pending: dict[str, tuple[str, Raw]] = {}

    def hear(self, update: Update) -> Iterator[Said | ToolUse | ToolOutcome]:
        """Returns what an update brings to an end or begins."""
        if update.kind == "agent_message_chunk":
            yield from self._piece(update)
        elif update.kind in ("tool_call", "tool_call_update"):
            yield from self.end()
            yield from self._call(update)

    def end(self) -> Iterator[Said]:
        """Returns the message whose pieces came last."""
        if self._pieces:
            yield Said("".join(self._pieces))
        self._pieces, self._size = [], 0

    def _piece(self, update: Update) -> Iterator[Said]:
        content = read(_Content, update.content) or _Content()
        if update.message_id != self._message_id or self._size + len(content.text) > MAX_MESSAGE:
            yield from self.end()
        self._message_id = update.message_id
        self._pieces.append(content.text)
        self._size += len(content.text)

    def _call(self, update: Update) -> Iterator[ToolUse | ToolOutcome]:
        """A call is told of when it is more than announced: its arguments may come after it."""
        title, arguments = self._pending.pop(update.call, ("", Raw(b"{}")))
        arguments = arguments if bytes(update.raw_input) in _ABSENT else update.raw_input
        title = update.title or title
        is_over = update.status in ("completed", "failed")
        if update.call not in self._calls and (is_over or update.status == "in_progress"):
            yield self._calls.begin(update.call, title or "a tool", arguments)
        elif update.call not in self._calls and len(self._pending) < MAX_CALLS:
            self._pending[update.call] = (title, arguments)
        if is_over:
            yield from self._calls.end(update.call, is_error=update.status == "failed")
