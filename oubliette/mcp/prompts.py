"""`prompts/list` and `prompts/get`: the snippets of the configuration, with their parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from ot_pack.nearest import nearest
from ot_pack.snippets import MISSING, Param, Snippet, SnippetError, expand
from oubliette.errors import InvalidParams
from oubliette.mcp.envelope import params_of
from oubliette.mcp.exchange import Exchange
from oubliette.protocol.jsonrpc import Message
from oubliette.protocol.mcp import GetPromptParams
from oubliette.protocol.mcp_results import list_result
from oubliette.relay import QUOTED
from oubliette.toolbox.call import Services


class Prompt(Struct, frozen=True, kw_only=True):
    """A prompt: its entry of `prompts/list`, what makes its messages, and what completes its arguments."""

    entry: dict[str, Any]
    messages: Callable[[Mapping[str, str]], list[dict[str, Any]]]
    complete: Callable[[str, str], list[str]] = lambda argument, value: []


async def list_prompts(exchange: Exchange, message: Message) -> bytes:
    """Answers `prompts/list`."""
    return list_result("prompts", [prompt.entry for prompt in offered(exchange.services).values()])


async def get_prompt(exchange: Exchange, message: Message) -> bytes:
    """Answers `prompts/get`. Raises `InvalidParams` for an unknown prompt, and for arguments that are not its own."""
    params = params_of(GetPromptParams, message)
    prompt = find(exchange.services, params.name)
    described = _described(prompt.entry.get("description", ""))
    return msgspec.json.encode({**described, "messages": prompt.messages(params.arguments)})


def find(services: Services, name: str) -> Prompt:
    """Returns a prompt. Raises `InvalidParams` (MCP, prompts, "Error Handling": "Invalid prompt name: -32602")."""
    prompts = offered(services)
    if name not in prompts:
        known = ", ".join(nearest(name, prompts)) or "none"
        raise InvalidParams(f"unknown prompt {name[:QUOTED]!r}; there are: {known}", field="name")
    return prompts[name]


def offered(services: Services) -> Mapping[str, Prompt]:
    """Returns the prompts that there are now, by name."""
    snippets = services.packs.offer.settings.config.snippets
    return {name: _prompt(snippet) for name, snippet in snippets.items()}


def _prompt(snippet: Snippet) -> Prompt:
    arguments = [_argument(name, param) for name, param in snippet.params.items()]
    return Prompt(
        entry={"name": snippet.name, **_described(snippet.description), "arguments": arguments},
        messages=partial(_messages, snippet),
        complete=partial(_complete, snippet),
    )


def _argument(name: str, param: Param) -> dict[str, Any]:
    return {"name": name, **_described(param.description), "required": param.default is MISSING}


def _described(description: str) -> dict[str, str]:
    return {"description": description} if description else {}


def _messages(snippet: Snippet, values: Mapping[str, str]) -> list[dict[str, Any]]:
    try:
        text = expand(snippet, values)
    except SnippetError as error:
        raise InvalidParams(str(error), field="arguments") from None
    return [{"role": "user", "content": {"type": "text", "text": text}}]


def _complete(snippet: Snippet, argument: str, begun: str) -> list[str]:
    """What the configuration says of an argument is what may be offered for it."""
    param = snippet.params.get(argument)
    known = [] if param is None else [param.example, param.default]
    values = [str(value) for value in known if value is not MISSING and value is not None]
    return [value for value in dict.fromkeys(values) if value.startswith(begun)]
