"""The daemon: which parts there are, how they start, and how they stop. The only place that knows them all.

    records                     the writers of the records and of the audit log: the last to stop
    └─ work
       ├─ tokens                tells when one expires
       ├─ projects              changes that are under way; what was removed is deleted for good
       ├─ sessions              a task each, with its link and its agent; what agents left is removed for good
       ├─ http                  a task a connection, a task a request
       └─ the stop, when it is asked for

A stop goes from the leaves' promises to the root: no new work, every session tells its agent and its caller, streams
end behind their last event, connections close, and then the records are written and closed.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Final

import trio
from msgspec import Struct

from oubliette.audit import AUDIT_FILE, Audit, AuditFile
from oubliette.config import Config
from oubliette.config import reload as reload_config
from oubliette.declarations import DeclarationLimits
from oubliette.events import Journal, RingLimits
from oubliette.gate import Gate
from oubliette.hiring import hire
from oubliette.homes import Homes
from oubliette.http.answer_routes import AnswerRoutes
from oubliette.http.door import Door, Route
from oubliette.http.event_routes import EventRoutes
from oubliette.http.hosts import Hosts
from oubliette.http.later import LaterRoute
from oubliette.http.mcp import McpEndpoint
from oubliette.http.operators import health, readiness
from oubliette.http.positions import Positions
from oubliette.http.server import HttpServer, bind
from oubliette.link.model import ModelDoor
from oubliette.link.server import LinkDoor
from oubliette.log import get as get_logger
from oubliette.mcp.session import McpSessions
from oubliette.packs.registry import Packs, PackSettings
from oubliette.projects import Projects
from oubliette.protocol.names import RESERVED_CALLER_ID
from oubliette.recovery import close_interrupted
from oubliette.relay import RelayLimits
from oubliette.sessions import Sessions
from oubliette.starting import SessionLimits
from oubliette.store import Store
from oubliette.tokens import Tokens
from oubliette.toolbox import box
from oubliette.toolbox.call import Services
from oubliette.workplace import Workforce

# Below the data directory: the files of `ot.notify`.
TOPICS: Final = "topics"

log = get_logger(__name__)


class Started(Struct, frozen=True, kw_only=True):
    """What is known once the daemon is ready: its address, and on the first start where the admin token lies."""

    url: str
    admin_token: Path | None


class Daemon:
    """One daemon over one data directory.

    Making it opens what can be refused: the records, the sockets' directory, the port. Raises an `OublietteError` in
    words for the operator; then nothing is left open.
    """

    def __init__(self, config: Config, data_dir: Path) -> None:
        self._config = config
        self.data_dir = data_dir.absolute()
        self._store = Store.open(self.data_dir)
        try:
            self._projects = Projects(self._store, self.data_dir)
            self._projects.reconcile()
            self._audit = Audit(AuditFile(self.data_dir / AUDIT_FILE))
            self._homes = Homes(self.data_dir)
            self._homes.reconcile()
            self._links = LinkDoor(self.data_dir / "run", config.relay.max_message_bytes, _model_door(config))
            self._links.clean()
            self._listener = bind(config.server.host, config.server.port)
        except BaseException:
            self._store.close()
            raise
        self._stop = trio.Event()

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def stop(self) -> None:
        """Asks for a graceful stop (WIRE section 8)."""
        self._stop.set()

    async def run(self, *, task_status: trio.TaskStatus[Started] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until `stop`, then ends within `server.shutdown_grace_seconds` and a little.

        Raises a group with an `OublietteError`, in words for the operator, where agents cannot be run as configured.
        """
        async with trio.open_nursery() as records:
            await records.start(self._store.run)
            records.start_soon(self._audit.run)
            await self._work(task_status)
            records.cancel_scope.cancel()

    async def _work(self, task_status: trio.TaskStatus[Started]) -> None:
        workforce, clean_up = await hire(self._config, self.data_dir, self._homes)
        journal = await self._open_journal()
        tokens = Tokens(self._store)
        await self._projects.ensure_default()
        admin_token = await self._ensure_admin(tokens)
        sessions = self._make_sessions(journal, workforce)
        services = self._make_services(sessions, tokens)
        services.packs.watchers.add(partial(_announce_packs, services))
        self._links.offer(services)
        mcp_sessions = McpSessions(sessions, self._store, services.changes)
        plain = LaterRoute(partial(_load_plain_routes, services))
        door = self._make_door(services, mcp_sessions, Positions(self._store.instance_id, journal), plain)
        server = HttpServer(door, self._listener)
        sessions.watchers.add(lambda session: services.changes.announce("resources"))
        tokens.watchers |= {sessions.lose_owner, mcp_sessions.drop}
        async with trio.open_nursery() as work:
            await work.start(self._projects.errands.run)
            work.start_soon(clean_up)
            work.start_soon(self._projects.folders.keep_trash_empty)
            work.start_soon(self._homes.keep_empty)
            work.start_soon(self._store.keep_purged)
            await work.start(sessions.run)
            await work.start(services.packs.run)
            work.start_soon(tokens.expire)
            work.start_soon(server.serve)
            task_status.started(Started(url=self.url, admin_token=admin_token))
            work.start_soon(plain.prepare)
            await self._stop.wait()
            with trio.move_on_after(self._config.server.shutdown_grace_seconds):
                door.is_stopping = True
                await sessions.end_all("shutdown")
                for standing in [*services.standing, *mcp_sessions.standing()]:
                    standing.finish()
                await server.stop()
                await self._homes.emptied()
            work.cancel_scope.cancel()
        log.info("stopped")

    async def _ensure_admin(self, tokens: Tokens) -> Path | None:
        """Issues the token of the first start; nobody asked for it, so this is where it is noted."""
        written_to = await tokens.ensure_admin(self.data_dir)
        for record in tokens.all() if written_to else ():
            self._audit.note("token.first", "ok", {"token_id": record.token_id, "scope": record.scope})
        return written_to

    async def _open_journal(self) -> Journal:
        sessions = self._config.sessions
        limits = RingLimits(events=sessions.event_buffer, bytes=sessions.event_buffer_bytes)
        journal = Journal(self._store, limits, self._store.highest_seq())
        await close_interrupted(self._store, journal)
        return journal

    def _make_sessions(self, journal: Journal, workforce: Workforce) -> Sessions:
        relay, sessions = self._config.relay, self._config.sessions
        limits = SessionLimits(
            relay=RelayLimits(
                attach_grace=relay.attach_grace_seconds,
                disconnect_grace=relay.disconnect_grace_seconds,
                max_pending=relay.max_pending,
            ),
            idle_timeout=sessions.idle_timeout_seconds,
            max_active_per_project=sessions.max_active_per_project,
            max_depth=sessions.max_depth,
            max_children=sessions.max_children,
        )
        return Sessions(self._store, journal, self._links, self._projects, workforce, limits)

    def _make_services(self, sessions: Sessions, tokens: Tokens) -> Services:
        relay = self._config.relay
        return Services(
            sessions=sessions,
            tokens=tokens,
            gate=Gate(tokens, self._audit),
            audit=self._audit,
            projects=self._projects,
            packs=self._make_packs(),
            events=self._store,
            poll_grace=relay.poll_grace_seconds,
            default_agent=self._config.agents.default,
            declarations=DeclarationLimits(
                default_timeout=float(relay.timeout_seconds),
                max_timeout=float(relay.max_timeout_seconds),
                reserved=box.PACKS | {RESERVED_CALLER_ID},
            ),
        )

    def _make_packs(self) -> Packs:
        topics = self.data_dir / TOPICS
        return Packs(_pack_settings(self._config), self._read_packs, box.TOOLS, topics, self._note_changed_tool)

    def _note_changed_tool(self, server: str, tool: str, fingerprint: str) -> None:
        # HAZARDS T26: what is behind a name that an agent trusts has become something else.
        self._audit.note("tool.changed", "ok", {"tool": f"{server}.{tool}", "fingerprint": fingerprint})

    def _read_packs(self) -> PackSettings:
        """What `ot.reload` puts in force; the rest of the file is checked, and waits for the next start."""
        return _pack_settings(reload_config(self._config, environ=os.environ, overrides={}))

    def _make_door(self, services: Services, mcp_sessions: McpSessions, positions: Positions, plain: Route) -> Door:
        server = self._config.server
        return Door(
            hosts=Hosts(server.host, server.allowed_hosts, server.allowed_origins),
            gate=services.gate,
            max_body=self._config.relay.max_message_bytes,
            open_routes={
                "/health": health,
                "/ready": readiness(lambda: self._store.healthy and not self._stop.is_set()),
            },
            mcp=McpEndpoint(services, mcp_sessions, positions, self._config.relay.max_message_bytes),
            direct=[EventRoutes(services, positions), AnswerRoutes(services)],
            plain=plain,
        )


def _pack_settings(settings: Config) -> PackSettings:
    return PackSettings(config=settings.pack, project_packs=settings.project_packs)


def _announce_packs(services: Services) -> None:
    services.changes.announce("tools")
    services.changes.announce("prompts")


def _load_plain_routes(services: Services) -> Route:
    from oubliette.http.rest import PlainRoutes

    return PlainRoutes(services)


def _model_door(config: Config) -> ModelDoor | None:
    """What carries agents' requests to their models, where that is the only way out of their sandboxes."""
    return ModelDoor(config.runtime.model_hosts) if config.runtime.network == "model" else None
