"""The pack `token`."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from oubliette.errors import NotFound
from oubliette.records import TokenRecord
from oubliette.scopes import parse_scope
from oubliette.toolbox.call import Call
from oubliette.toolbox.declare import tool

_TEN_YEARS = 10 * 366 * 24 * 3600


class NewToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=200, description="What the token is for")]
    scope: Annotated[str, Meta(description="admin, admin:ro, project:<id> or project:<id>:ro")]
    expires_in_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=_TEN_YEARS)] | None,
        Meta(description="Seconds until it expires; without it never"),
    ] = None


class TokenId(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    token_id: Annotated[str, Meta(description="The token's id, as token_list shows it")]


class Nothing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """No arguments."""


class CreatedToken(Struct, frozen=True, kw_only=True):
    token_id: str
    token: Annotated[str, Meta(description="The token itself, shown this once")]
    name: str
    scope: str
    expires_at: str | None
    warnings: list[str] | UnsetType = UNSET


class TokenView(Struct, frozen=True, kw_only=True):
    token_id: str
    name: str
    scope: str
    created_at: str
    last_used_at: str | None
    expires_at: str | None


class TokenList(Struct, frozen=True, kw_only=True):
    tokens: list[TokenView]


class Revoked(Struct, frozen=True, kw_only=True):
    revoked: bool


@tool("token.create", access="admin", target="global")
async def token_create(call: Call, arguments: NewToken) -> CreatedToken:
    """Issues an API token. Its secret is in the answer and nowhere else."""
    token, record = await call.services.tokens.create(arguments.name, arguments.scope, arguments.expires_in_seconds)
    return CreatedToken(
        token_id=record.token_id,
        token=token,
        name=record.name,
        scope=record.scope,
        expires_at=record.expires_at,
        warnings=_warnings(call, record),
    )


@tool("token.list", access="admin", target="global")
async def token_list(call: Call, arguments: Nothing) -> TokenList:
    """Lists the API tokens, without their secrets."""
    return TokenList(tokens=[_view(record) for record in call.services.tokens.all()])


@tool("token.revoke", access="admin", target="global", destructive=True)
async def token_revoke(call: Call, arguments: TokenId) -> Revoked:
    """Makes a token worthless from now on."""
    await call.services.tokens.revoke(arguments.token_id)
    return Revoked(revoked=True)


def _warnings(call: Call, record: TokenRecord) -> list[str] | UnsetType:
    """A project that is not there is most often a name in the place of an id. The token is issued all the same: it
    opens nothing, as an id is never given out twice.
    """
    scope = parse_scope(record.scope)
    if scope is None or scope.project_id is None:
        return UNSET
    try:
        call.services.projects.project(scope.project_id)
    except NotFound:
        return [f"there is no project {scope.project_id!r}: this token opens nothing (a scope takes a project's id)"]
    return UNSET


def _view(record: TokenRecord) -> TokenView:
    return TokenView(
        token_id=record.token_id,
        name=record.name,
        scope=record.scope,
        created_at=record.created_at,
        last_used_at=record.last_used_at,
        expires_at=record.expires_at,
    )
