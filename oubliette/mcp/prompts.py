"""`prompts/list` and `prompts/get`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from oubliette.errors import InvalidParams
from oubliette.mcp.envelope import params_of
from oubliette.mcp.exchange import Exchange
from oubliette.protocol.jsonrpc import Message
from oubliette.protocol.mcp import GetPromptParams
from oubliette.protocol.mcp_results import list_result


class Prompt(Struct, frozen=True, kw_only=True):
    """A prompt: its entry of `prompts/list`, what makes its messages, and what completes its arguments."""

    entry: dict[str, Any]
    messages: Callable[[Mapping[str, str]], list[dict[str, Any]]]
    complete: Callable[[str, str], list[str]] = lambda argument, value: []


PROMPTS: Final[dict[str, Prompt]] = {}


async def list_prompts(exchange: Exchange, message: Message) -> bytes:
    """Answers `prompts/list`."""
    return list_result("prompts", [prompt.entry for prompt in PROMPTS.values()])


async def get_prompt(exchange: Exchange, message: Message) -> bytes:
    """Answers `prompts/get`. Raises `InvalidParams` for an unknown prompt and for a missing argument."""
    params = params_of(GetPromptParams, message)
    prompt = find(params.name)
    for argument in prompt.entry.get("arguments", []):
        if argument.get("required") and argument["name"] not in params.arguments:
            raise InvalidParams(
                f"the prompt {params.name!r} needs the argument {argument['name']!r}", field="arguments"
            )
    described = {"description": prompt.entry["description"]} if "description" in prompt.entry else {}
    return msgspec.json.encode({**described, "messages": prompt.messages(params.arguments)})


def find(name: str) -> Prompt:
    """Returns a prompt. Raises `InvalidParams` (MCP, prompts, "Error Handling": "Invalid prompt name: -32602")."""
    if name not in PROMPTS:
        raise InvalidParams(f"unknown prompt {name!r}; there are: {', '.join(PROMPTS) or 'none'}", field="name")
    return PROMPTS[name]
