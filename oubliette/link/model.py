"""The way of a sandboxed agent to its model: a unix socket beside the link's, which speaks HTTP proxy.

A sandbox with `runtime.network: model` has no network. Its launcher makes an HTTP proxy of this socket
(`oubliette_client.carry`), and the daemon connects to `runtime.model_hosts` and to nothing else: every other host is
refused before its name is looked up, counted, and logged once. What a connection carries behind its head goes where the
head was allowed to go, and nowhere else.

Nothing of the daemon's own goes along: no token, no header that says who asks (HAZARDS T19).
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final

import h11
import trio

from oubliette.link.addresses import Address, parse
from oubliette.link.carrying import AgentGoneError, End, Exchange, Idle, UpstreamGoneError, tunnel
from oubliette.link.proxy import Wanted, refusal, wanted_untrusted
from oubliette.link.sockets import listening_socket
from oubliette.log import get as get_logger

NAME: Final = "model.sock"
# As many as links (`link.server.MAX_LINKS`): each takes two descriptors, which all sessions share, and 128 KiB.
MAX_CONNECTIONS: Final = 64
# The head of a request to a proxy is short; one in absolute-form has the headers of the agent's SDK.
MAX_HEAD: Final = 16 * 1024
HEAD_SECONDS: Final = 10.0
# To look a name up, and until one of its addresses answers.
CONNECT_SECONDS: Final = 10.0
# Each is a line of the log, and an agent can think of many.
MAX_LOGGED: Final = 100
_MAX_SENTENCE: Final = 500
_ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"

log = get_logger(__name__)


class _RefusedError(Exception):
    """A request that is answered by us: with `status`, and a sentence for whoever looks after the agent."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence[:_MAX_SENTENCE]


class ModelDoor:
    """Opens model sockets. `hosts` is `runtime.model_hosts`. Raises `ValueError` for one that is no HOST:PORT."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._allowed = frozenset(parse(host) for host in hosts)

    def open(self, folder: Path, session_id: str) -> ModelListener:
        """Opens the socket of a session in the folder of its sockets. Raises `OSError`."""
        return ModelListener(folder / NAME, self._allowed, session_id)


class ModelListener:
    """One session's model socket. `refused` counts the requests for what is not in `runtime.model_hosts`."""

    def __init__(self, path: Path, allowed: frozenset[Address], session_id: str) -> None:
        self.path = path
        self.refused = 0
        self._allowed = allowed
        self._session_id = session_id
        self._logged: set[str] = set()
        self._open = 0
        self._socket = listening_socket(path)

    async def serve(self) -> None:
        """Serves connections until it is cancelled, which ends them at once."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._socket))
        try:
            await trio.serve_listeners(self._handle, [listener])
        finally:
            self.close()

    def close(self) -> None:
        """Closes the socket and removes it. Idempotent."""
        self._socket.close()
        self.path.unlink(missing_ok=True)

    async def _handle(self, stream: trio.SocketStream) -> None:
        """One connection's task. An error in it ends that connection, never the session."""
        idle = Idle()
        self._open += 1
        try:
            with idle.scope:
                await self._serve(End(stream, idle, AgentGoneError), idle)
        except* AgentGoneError:
            pass
        except* Exception:
            log.exception("a connection to a model failed", session=self._session_id)
        finally:
            self._open -= 1
            await trio.aclose_forcefully(stream)

    async def _serve(self, agent: End, idle: Idle) -> None:
        idle.heard()
        protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        try:
            wanted = await self._wanted(protocol, agent)
            stream = await _connect(wanted.address)
        except _RefusedError as refused:
            return await agent.send(refusal(refused.status, refused.sentence))
        async with stream:
            await _carry(wanted, protocol, agent, End(stream, idle, UpstreamGoneError), idle)

    async def _wanted(self, protocol: h11.Connection, agent: End) -> Wanted:
        """Returns what the agent asks for and may have. Raises `_RefusedError`."""
        if self._open > MAX_CONNECTIONS:
            raise _RefusedError(503, f"{MAX_CONNECTIONS} connections of this session are open already, and no more")
        try:
            with trio.fail_after(HEAD_SECONDS):
                wanted = wanted_untrusted(await _request(protocol, agent))
        except trio.TooSlowError:
            raise _RefusedError(408, f"the request's head took longer than {HEAD_SECONDS:g} s") from None
        except (h11.RemoteProtocolError, ValueError) as error:
            why = f"only CONNECT and http:// requests to the hosts of runtime.model_hosts are carried: {error}"
            raise self._refuse("", why) from None
        if wanted.address not in self._allowed:
            why = f"{wanted.address} is not one of runtime.model_hosts, and this sandbox reaches nothing else"
            raise self._refuse(str(wanted.address), why)
        return wanted

    def _refuse(self, host: str, sentence: str) -> _RefusedError:
        self.refused += 1
        if host not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(host)
            log.warning("a request was refused by runtime.model_hosts", session=self._session_id, host=host or None)
        return _RefusedError(403, sentence)


async def _request(protocol: h11.Connection, agent: End) -> h11.Request:
    """Returns the head of what the agent asks. Raises `h11.RemoteProtocolError`, also for one beyond `MAX_HEAD`."""
    left = MAX_HEAD
    while (event := protocol.next_event()) is h11.NEED_DATA:
        if not left:
            raise h11.RemoteProtocolError(f"a request's head has at most {MAX_HEAD} bytes")
        data = await agent.receive(left)
        left -= len(data)
        protocol.receive_data(data)
    if isinstance(event, h11.Request):
        return event
    raise AgentGoneError  # it connected and said nothing


async def _connect(address: Address) -> trio.SocketStream:
    """Returns a connection to an address that is allowed. Raises `_RefusedError`."""
    try:
        with trio.fail_after(CONNECT_SECONDS):
            stream = await trio.open_tcp_stream(address.host, address.port)
        is_astray = _is_here(stream) and not _may_be_here(address)
    except trio.TooSlowError:
        raise _RefusedError(504, f"{address} did not answer within {CONNECT_SECONDS:g} s") from None
    except OSError as error:
        raise _RefusedError(502, f"{address} cannot be reached: {_reason(error)}") from None
    if is_astray:
        await trio.aclose_forcefully(stream)
        raise _RefusedError(502, f"{address} is at an address of this machine or its link; list that one to allow it")
    return stream


def _reason(error: OSError) -> str:
    causes = error.__cause__
    first = causes.exceptions[0] if isinstance(causes, BaseExceptionGroup) else error
    return getattr(first, "strerror", None) or str(first)


def _may_be_here(address: Address) -> bool:
    """HAZARDS T23, "rebinding name": who rules over an allowed name does not rule over what only this machine reaches.

    RFC 6761, section 6.3: names that end in `localhost` are the loopback's own.
    """
    return not address.is_name or address.host.rpartition(".")[2] == "localhost"


def _is_here(stream: trio.SocketStream) -> bool:
    """Services of a machine's own listen at its loopback, those of its cloud at link-local addresses."""
    found = ip_address(stream.socket.getpeername()[0].partition("%")[0])
    found = (found.ipv4_mapped if isinstance(found, IPv6Address) else None) or found
    return found.is_loopback or found.is_link_local


async def _carry(wanted: Wanted, protocol: h11.Connection, agent: End, upstream: End, idle: Idle) -> None:
    if wanted.head is not None:
        return await Exchange(protocol, agent, upstream).run(wanted.head)
    early, _ = protocol.trailing_data
    await agent.send(_ESTABLISHED)
    await tunnel(agent, upstream, idle, early)
