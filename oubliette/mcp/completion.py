"""`completion/complete`: the arguments of prompts and the variables of resource templates."""

from __future__ import annotations

import msgspec

from oubliette.errors import InvalidParams
from oubliette.mcp import prompts, resources
from oubliette.mcp.envelope import params_of
from oubliette.mcp.exchange import Exchange
from oubliette.protocol.jsonrpc import Message
from oubliette.protocol.mcp import CompleteParams, PromptReference

# MCP, completion: "values: Array of completion values (max 100)".
MAX_VALUES = 100


async def complete(exchange: Exchange, message: Message) -> bytes:
    """Answers `completion/complete`. Raises `InvalidParams` for what is unknown."""
    params = params_of(CompleteParams, message)
    found = await _values(exchange, params)
    completion = {"values": found[:MAX_VALUES], "total": len(found), "hasMore": len(found) > MAX_VALUES}
    return msgspec.json.encode({"completion": completion})


async def _values(exchange: Exchange, params: CompleteParams) -> list[str]:
    argument = params.argument
    if isinstance(params.ref, PromptReference):
        return prompts.find(exchange.services, params.ref.name).complete(argument.name, argument.value)
    for template in resources.TEMPLATES:
        if template.entry["uriTemplate"] == params.ref.uri:
            return await template.complete(exchange.call, argument.name, argument.value)
    raise InvalidParams(f"unknown resource template {params.ref.uri!r}", field="ref.uri")
