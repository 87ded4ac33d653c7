"""Who is let in, and for how long: every door asks here (WIRE section 6, "Tokens"; HAZARDS G12, T17, F33).

A token that was presented is looked at always, also from where many wrong ones came: behind a proxy or on a shared
host all callers have one address, and a client that fails must not lock out the others. So the bucket of an address
bounds what its failures cost (lines of the audit log, answers that explain), and not how many tries it has: a secret of
256 bits is not found by trying. A request without a token is no try; its 401 is how clients learn that they need one.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from contextvars import ContextVar, Token
from ipaddress import IPv6Address, ip_address
from math import ceil
from types import TracebackType
from typing import Final

import trio

from oubliette.audit import Audit, Door
from oubliette.errors import LimitExceeded, Unauthorized
from oubliette.log import get as get_logger
from oubliette.tokens import Principal, TokenExpired, Tokens

# Failures that one source may have at once, and how many more a second: a client that retries with an expired token
# is told 401 for a while, and then less and less often.
BURST: Final = 100
PER_SECOND: Final = 1.0
# What all sources together may add to the audit log: some 3 MiB an hour, so that no crowd can push out what matters.
ALL_BURST: Final = 1000
ALL_PER_SECOND: Final = 5.0
# Sources that are remembered, 1 MiB of them; beyond that, the one that failed longest ago is forgiven.
MAX_SOURCES: Final = 4096
# The request that revokes its own token has so many seconds to be answered.
LAST_WORDS: Final = 0.5

ENDED: Final = "the token was revoked, or it has expired"

log = get_logger(__name__)
_current: ContextVar[trio.CancelScope | None] = ContextVar("oubliette_lease", default=None)


class TooManyFailures(LimitExceeded):
    """Too many wrong tokens came from one source; in `retry_after` seconds the next failure is told as one."""

    def __init__(self, seconds: float) -> None:
        self.retry_after = ceil(seconds)
        super().__init__(f"too many requests with wrong tokens came from here; come back in {self.retry_after} s")


class Buckets:
    """Token buckets, one for each key: `burst` at once, and `per_second` more. The last `most` keys are remembered."""

    def __init__(self, burst: float, per_second: float, most: int) -> None:
        self._burst = burst
        self._per_second = per_second
        self._most = most
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def take(self, key: str) -> float:
        """Takes one from the bucket of `key`. Returns 0, or the seconds until there is one to be taken."""
        now = trio.current_time()
        level, at = self._levels.pop(key, (self._burst, now))
        level = min(self._burst, level + (now - at) * self._per_second)
        has_one = level >= 1
        self._levels[key] = (level - 1 if has_one else level, now)
        if len(self._levels) > self._most:
            self._levels.popitem(last=False)
        return 0 if has_one else (1 - level) / self._per_second


class Lease:
    """See `Gate.lease`. It is a part of every request, so it adds as little to the cost of its scope as may be."""

    __slots__ = ("_leases", "_outer", "_scope")

    _outer: Token[trio.CancelScope | None]

    def __init__(self, leases: set[trio.CancelScope]) -> None:
        self._leases = leases
        self._scope = trio.CancelScope()

    def __enter__(self) -> None:
        self._scope.__enter__()
        self._leases.add(self._scope)
        self._outer = _current.set(self._scope)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.reset(self._outer)
        self._leases.discard(self._scope)
        # It holds back nothing but its own cancellation, and that becomes an error.
        self._scope.__exit__(kind, error, trace)
        if self._scope.cancelled_caught:
            raise Unauthorized(ENDED) from None


class Gate:
    """Lets principals in, and ends what they have open when their token is worthless."""

    def __init__(self, tokens: Tokens, audit: Audit) -> None:
        self._tokens = tokens
        self._audit = audit
        self._leases: defaultdict[str, set[trio.CancelScope]] = defaultdict(set)
        self._failures = Buckets(BURST, PER_SECOND, MAX_SOURCES)
        self._lines = Buckets(ALL_BURST, ALL_PER_SECOND, 1)
        tokens.watchers.add(self._end)

    def admit(self, token: str, *, door: Door, source: str, inside: str | None = None) -> Principal:
        """Returns the principal of a token that came from `source`: an address, or the session `inside` which it was.

        Raises `Unauthorized`, and `TooManyFailures` in its place where wrong tokens have come from there too often.
        """
        try:
            return self._tokens.authenticate(token)
        except Unauthorized as error:
            if token:
                self._note_failure(error, door, source, inside)
            raise

    def _note_failure(self, error: Unauthorized, door: Door, source: str, inside: str | None) -> None:
        wait = self._failures.take(_network(source))
        if wait:
            raise TooManyFailures(wait) from None
        if not self._lines.take(""):
            token_id = error.token_id if isinstance(error, TokenExpired) else None
            self._audit.note("authenticate", error.kind, token_id=token_id, source=source, door=door, inside=inside)

    def lease(self, principal: Principal) -> Lease:
        """Returns a context manager: within it something is done for a principal, while its token is worth something.

        When that ends, what is within is cancelled, and `Unauthorized` is raised. Whoever serves a request serves it
        within a lease; streams, polls and connections that stay open are requests too. Raises `Unauthorized` at once
        where the token is worthless already.
        """
        if not self._tokens.is_good(principal):
            raise Unauthorized(ENDED)
        return Lease(self._leases[principal.token_id])

    @property
    def has_ended(self) -> bool:
        """Whether the lease that this task is within has ended."""
        scope = _current.get()
        return scope is not None and scope.cancel_called

    def _end(self, token_id: str) -> None:
        for scope in self._leases.pop(token_id, ()):
            if scope is _current.get():
                # Whoever revokes its own token is told that it is done.
                scope.deadline = trio.current_time() + LAST_WORDS
            else:
                scope.cancel(reason=ENDED)


def _network(source: str) -> str:
    """What counts as one source: an address, of IPv6 the network of 64 bits that one machine may have to itself."""
    try:
        address = ip_address(source)
    except ValueError:
        return source
    if not isinstance(address, IPv6Address):
        return source
    return str(address.ipv4_mapped or IPv6Address(address.packed[:8] + bytes(8)))
