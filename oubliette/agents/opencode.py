"""The profile `opencode`: OpenCode (`opencode-ai`), tried with 1.18.33. It can also be run as `acp`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from oubliette.agents.profile import (
    SERVER,
    TOOL_SECONDS,
    Begun,
    Calls,
    Ended,
    Heard,
    Profile,
    Said,
    Start,
    own_folders,
    used,
)

_CONFIG: Final = "opencode.json"
# What it would fetch from the internet at its start.
SETTINGS: Final[Mapping[str, str]] = {
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_SHARE": "1",
}
# At its first start it installs a package from npm into its configuration's folder, which costs 2 s of CPU also without
# a network, unless this is what it finds there.
INSTALLED: Final[Mapping[str, bytes]] = {
    ".config/opencode/package-lock.json": b'{"packages":{"":{"dependencies":{"@opencode-ai/plugin":"*"}}}}',
    ".config/opencode/node_modules/.keep": b"",
}


def _files(start: Start) -> dict[str, bytes]:
    return {_CONFIG: msgspec.json.encode(_config(start)), **INSTALLED}


def _config(start: Start) -> dict[str, Any]:
    # The one timer is for its start and for calls, where progress sets it back.
    server = {"type": "local", "command": start.client, "enabled": True, "timeout": TOOL_SECONDS * 1000}
    return {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "mcp": {SERVER: server},
        "permission": "allow" if start.free_hand else {"*": "deny", f"{SERVER}_*": "allow"},
        **_model(start),
    }


def _model(start: Start) -> dict[str, Any]:
    options = start.options
    if not options.base_url:
        return {"model": options.model} if options.model else {}
    if not options.model:
        raise ValueError("beside its base_url, OpenCode has to be told of a model")
    endpoint = {"baseURL": options.base_url, "apiKey": f"{{env:{options.api_key_env}}}"}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": SERVER, "options": endpoint}
    model = f"{SERVER}/{options.model}"
    return {
        "provider": {SERVER: {**provider, "models": {options.model: {"name": options.model}}}},
        "enabled_providers": [SERVER],
        "model": model,
        "small_model": model,
    }


def _arguments(start: Start) -> list[str]:
    arguments = ["run", "--format", "json"]
    if start.is_first:
        # Without a title it asks the model for one.
        return [*arguments, "--title", SERVER]
    # It tells its session's name with the model's first words. All sessions in this home are one conversation.
    return [*arguments, *(["--session", start.conversation] if start.conversation else ["--continue"])]


def _environment(start: Start) -> dict[str, str]:
    # The configuration of a workspace might allow more.
    bounds = {} if start.free_hand else {"OPENCODE_DISABLE_PROJECT_CONFIG": "1"}
    own = {**own_folders(start.place.home), **locked_server(), "OPENCODE_CONFIG": start.path(_CONFIG)}
    return {**SETTINGS, **start.variables, **bounds, **own}


def locked_server() -> dict[str, str]:
    """Returns the variables that close OpenCode's own HTTP server, on loopback where it has one, to everyone else.

    HAZARDS T37: who can reach it has a shell. `run` opens none, `acp` does. Nobody knows this password.
    """
    return {"OPENCODE_SERVER_PASSWORD": secrets.token_urlsafe(32)}


class _State(Struct, frozen=True):
    status: str = ""
    input: Raw = Raw(b"{}")


class _Cache(Struct, frozen=True):
    read: int = 0
    write: int = 0


class _Tokens(Struct, frozen=True):
    input: int = 0
    output: int = 0
    reasoning: int = 0
    cache: _Cache = _Cache()


class _Part(Struct, frozen=True):
    text: str = ""
    tool: str = ""
    call_id: str = msgspec.field(default="", name="callID")
    state: _State = _State()
    tokens: _Tokens = _Tokens()


class _Error(Struct, frozen=True):
    name: str = ""
    data: Raw = Raw(b"{}")


class _Reason(Struct, frozen=True):
    message: str = ""


class _Event(Struct, frozen=True):
    type: str
    session_id: str = msgspec.field(default="", name="sessionID")
    part: _Part = _Part()
    error: _Error = _Error()


_decode: Final = msgspec.json.Decoder(_Event).decode
_decode_reason: Final = msgspec.json.Decoder(_Reason).decode


class _Parser:
    def __init__(self) -> None:
        self._calls = Calls()

    def hear(self, line: bytes) -> Iterator[Heard]:
        event = _decode(line)
        if event.session_id:
            yield Begun(event.session_id)
        match event.type:
            case "text":
                yield Said(event.part.text)
            case "tool_use":
                yield from self._call(event.part)
            case "step_finish":
                yield _used(event.part.tokens)
                yield Ended()
            case "error":
                yield Ended(failure=_decode_reason(event.error.data).message or event.error.name or "an error")

    def _call(self, part: _Part) -> Iterator[Heard]:
        """It tells of a call when it is over."""
        yield self._calls.begin(part.call_id, part.tool, part.state.input)
        yield from self._calls.end(part.call_id, is_error=part.state.status == "error")


def _used(tokens: _Tokens) -> Heard:
    return used(
        {
            "input_tokens": tokens.input,
            "output_tokens": tokens.output,
            "reasoning_output_tokens": tokens.reasoning,
            "cache_read_input_tokens": tokens.cache.read,
            "cache_creation_input_tokens": tokens.cache.write,
        }
    )


OPENCODE: Final = Profile(files=_files, arguments=_arguments, environment=_environment, parser=_Parser)
