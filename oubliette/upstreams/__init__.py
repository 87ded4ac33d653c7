"""Proxied MCP servers: those of the configuration's `servers`, whose tools agents get as if they were the daemon's own.

upstreams   all of them, as the daemon knows them: configure, status, tools, problems, call
upstream    one of them: connected, supervised, connected again; its list of tools
calls       one call
tools, text, backoff   what may be offered of a hostile list; when to try again. Plain functions
connection  the seam: what all of the above know of a connection
loading     imports what is behind it, when a server is configured and only then:
sdk, tap    a session of the official MCP SDK, and what goes past it
stdio; http, http_client, liveness; messages   the transports under the session, and what they read and write
"""

from __future__ import annotations

from oubliette.upstreams.connection import ProgressListener as ProgressListener
from oubliette.upstreams.connection import ServerConfig as ServerConfig
from oubliette.upstreams.tools import UpstreamTool as UpstreamTool
from oubliette.upstreams.upstreams import Upstreams as Upstreams

__all__ = ["ProgressListener", "ServerConfig", "UpstreamTool", "Upstreams"]
