"""Changes, told to whoever asked: `subscriptions/listen`, and the standing stream of the earlier revisions."""

from __future__ import annotations

from typing import Final

from oubliette.changes import LISTS, MAX_RESOURCES, List, Watch
from oubliette.errors import LimitExceeded, ResourceNotFound
from oubliette.events import EventLog
from oubliette.mcp.envelope import params_of
from oubliette.mcp.exchange import Channel, Exchange
from oubliette.mcp.resources import log_of
from oubliette.protocol.jsonrpc import Message
from oubliette.protocol.mcp import ListenParams, SubscriptionFilter
from oubliette.protocol.mcp_results import acknowledged, listening_ended, told

_METHODS: Final[dict[List, str]] = {changed: f"notifications/{changed}/list_changed" for changed in LISTS}


async def listen(exchange: Exchange, message: Message) -> bytes:
    """Answers `subscriptions/listen`: tells of changes until the peer leaves, or the daemon stops.

    "Notification types the server does not support are omitted" from the acknowledgement, and so is a resource that
    the asker cannot read.
    """
    wanted = params_of(ListenParams, message).notifications
    if len(wanted.resource_subscriptions) > MAX_RESOURCES:
        raise LimitExceeded(f"{len(wanted.resource_subscriptions)} resources; {MAX_RESOURCES} are allowed")
    readable = await _readable(exchange, wanted.resource_subscriptions)
    granted = SubscriptionFilter(
        tools_list_changed=wanted.tools_list_changed,
        prompts_list_changed=wanted.prompts_list_changed,
        resources_list_changed=wanted.resources_list_changed,
        resource_subscriptions=list(readable),
    )
    with Watch(exchange.services.changes, _lists(wanted)) as watch:
        for uri, log in readable.items():
            if log is not None:
                watch.follow(uri, log)
        exchange.services.standing.add(watch)
        try:
            await exchange.channel.send(acknowledged(exchange.id, granted))
            await tell(watch, exchange.channel, exchange.id)
        finally:
            exchange.services.standing.discard(watch)
    return listening_ended(exchange.id)


async def tell(watch: Watch, channel: Channel, subscription: bytes | None = None) -> None:
    """Sends what changes, marked as belonging to a subscription where there is one, until the watch ends."""
    while True:
        lists, resources = await watch.next()
        if watch.has_ended:
            return
        changed = [told(_METHODS[each], {}, subscription) for each in lists]
        updated = [told("notifications/resources/updated", {"uri": uri}, subscription) for uri in resources]
        await channel.send(*changed, *updated)


async def _readable(exchange: Exchange, uris: list[str]) -> dict[str, EventLog | None]:
    found: dict[str, EventLog | None] = {}
    for uri in uris:
        try:
            found[uri] = await log_of(exchange.call, uri)
        except ResourceNotFound:
            continue
    return found


def _lists(wanted: SubscriptionFilter) -> list[List]:
    asked: dict[List, bool] = {
        "tools": wanted.tools_list_changed,
        "prompts": wanted.prompts_list_changed,
        "resources": wanted.resources_list_changed,
    }
    return [each for each, is_wanted in asked.items() if is_wanted]
