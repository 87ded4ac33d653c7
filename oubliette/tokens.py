"""API tokens and the principals behind them (WIRE section 6, "Tokens").

`oub_<id>_<secret>`: the id finds the record, the secret's hash is compared in constant time. Only the hash is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Final, NoReturn, Protocol

import trio
from msgspec import Struct

from oubliette import clock
from oubliette.errors import InvalidParams, NotFound, Unauthorized
from oubliette.log import get as get_logger
from oubliette.records import TokenRecord
from oubliette.scopes import EXAMPLES, Scope, parse_scope

_FORMAT: Final = re.compile(r"oub_([a-z0-9]{1,32})_([0-9a-f]{64})\Z", re.ASCII)
# Compared where no record is found, so that an unknown id takes as long as a wrong secret.
_NOBODY: Final = bytes(32)
# Last use is for operators: it is written this seldom, in seconds, and never waited for.
_USE_RECORDED_EVERY: Final = 60.0
# The wall clock may jump while `expire` sleeps on trio's: it looks again this often, in seconds.
_LOOKED_AT_EVERY: Final = 30.0
ADMIN_TOKEN_FILE: Final = "admin.token"  # noqa: S105  # the name of a file, not a secret

log = get_logger(__name__)


class Principal(Struct, frozen=True):
    """Who a request is made as: one token. `name` is what it was issued for."""

    token_id: str
    scope: Scope
    name: str = ""


class TokenExpired(Unauthorized):
    """The one refusal that says whose: who has the whole token may know."""

    def __init__(self, record: TokenRecord) -> None:
        super().__init__(f"the token {record.token_id!r} expired at {record.expires_at}")
        self.token_id = record.token_id


class TokenStore(Protocol):
    def tokens(self) -> list[TokenRecord]: ...
    async def save_token(self, record: TokenRecord) -> None: ...
    async def delete_token(self, token_id: str) -> None: ...
    def post_token_use(self, token_id: str, when: str) -> None: ...


class _Known(Struct):
    """A token that was issued, ready to be compared with."""

    record: TokenRecord
    principal: Principal | None
    expires: float
    use_recorded: float = 0.0
    is_over: bool = False


class Tokens:
    """Every token there is, in memory; changes are recorded before they are confirmed.

    `watchers` are told of each token that is worthless from now on, as it was revoked or has expired (`expire`).
    """

    def __init__(self, store: TokenStore) -> None:
        self.watchers: set[Callable[[str], None]] = set()
        self._store = store
        self._known = {record.token_id: _known(record) for record in store.tokens()}
        self._has_changed = trio.Event()

    def authenticate(self, token: str) -> Principal:
        """Returns the principal of a token. Raises `Unauthorized` for a missing, unknown or expired one."""
        match = _FORMAT.match(token)
        known = self._known.get(match[1]) if match else None
        digest = known.record.digest if known else _NOBODY
        if not match or not hmac.compare_digest(_digest(token), digest) or known is None or known.principal is None:
            raise Unauthorized("missing, unknown or revoked token; send 'Authorization: Bearer oub_…'")
        now = time.time()
        if now >= known.expires:
            raise TokenExpired(known.record)
        if now - known.use_recorded > _USE_RECORDED_EVERY:
            known.use_recorded = now
            self._store.post_token_use(known.record.token_id, clock.now())
        return known.principal

    def is_good(self, principal: Principal) -> bool:
        """Whether the token of a principal, who was let in, is still worth something."""
        known = self._known.get(principal.token_id)
        return known is not None and time.time() < known.expires

    async def create(self, name: str, scope: str, expires_in_seconds: float | None = None) -> tuple[str, TokenRecord]:
        """Issues a token; returns it, the only time that it is shown, and its record. Raises `InvalidParams`."""
        if parse_scope(scope) is None:
            raise InvalidParams(f"no scope {scope!r}; one of: {EXAMPLES}", field="scope")
        token, record = _issue(name, scope, expires_in_seconds)
        await self._keep(record)
        return token, record

    async def _keep(self, record: TokenRecord) -> None:
        await self._store.save_token(record)
        self._known[record.token_id] = _known(record)
        self._has_changed.set()
        log.info("token created", token_id=record.token_id, scope=record.scope)

    async def revoke(self, token_id: str) -> None:
        """Makes a token worthless from now on. Raises `NotFound`."""
        if token_id not in self._known:
            raise NotFound(f"no token {token_id!r}", field="token_id")
        try:
            await self._store.delete_token(token_id)
        except trio.Cancelled:
            # A write that is cancelled "may be carried out all the same": the token must not outlive its record.
            self._forget(token_id)
            raise
        self._forget(token_id)

    def _forget(self, token_id: str) -> None:
        if self._known.pop(token_id, None) is not None:
            log.info("token revoked", token_id=token_id)
            self._tell(token_id)

    async def expire(self) -> NoReturn:
        """Tells the watchers of each token when it expires. Runs until cancelled."""
        while True:
            now = time.time()
            for known in self._known.values():
                if now >= known.expires and not known.is_over:
                    known.is_over = True
                    self._tell(known.record.token_id)
            self._has_changed = trio.Event()
            with trio.move_on_after(self._until_next_expiry(now)):
                await self._has_changed.wait()

    def _until_next_expiry(self, now: float) -> float:
        ahead = [known.expires - now for known in self._known.values() if now < known.expires < inf]
        return min([*ahead, _LOOKED_AT_EVERY]) if ahead else inf

    def _tell(self, token_id: str) -> None:
        for watcher in self.watchers:
            watcher(token_id)

    def all(self) -> list[TokenRecord]:
        """Returns every token's record, oldest first."""
        return sorted((known.record for known in self._known.values()), key=lambda record: record.created_at)

    async def ensure_admin(self, data_dir: Path) -> Path | None:
        """On the first start, with no token at all, issues one with scope `admin` and returns where it was written."""
        if self._known:
            return None
        token, record = _issue("admin", "admin", None)
        path = data_dir / ADMIN_TOKEN_FILE
        # The file comes first: a recorded token that nobody was told of would lock everybody out for good.
        _write_private(path, token)
        await self._keep(record)
        return path


def _issue(name: str, scope: str, expires_in_seconds: float | None) -> tuple[str, TokenRecord]:
    """Makes a token; returns it and its record."""
    token_id = secrets.token_hex(6)
    token = f"oub_{token_id}_{secrets.token_hex(32)}"
    record = TokenRecord(
        token_id=token_id,
        name=name,
        scope=scope,
        digest=_digest(token),
        created_at=clock.now(),
        last_used_at=None,
        expires_at=None if expires_in_seconds is None else clock.seconds_from_now(expires_in_seconds),
    )
    return token, record


def _write_private(path: Path, token: str) -> None:
    path.unlink(missing_ok=True)
    # Made with its mode, so that there is no moment at which others could read it.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token + "\n")


def _known(record: TokenRecord) -> _Known:
    # A scope that an older or newer release wrote and this one does not know gives no rights at all.
    scope = parse_scope(record.scope)
    principal = Principal(record.token_id, scope, record.name) if scope else None
    expires = inf if record.expires_at is None else datetime.fromisoformat(record.expires_at).timestamp()
    return _Known(record, principal, expires)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
