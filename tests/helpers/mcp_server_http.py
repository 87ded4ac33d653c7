"""The server of `mcp_server` over HTTP."""

from __future__ import annotations

import json
import queue
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from tests.helpers.mcp_server import Server


class Handler(BaseHTTPRequestHandler):
    """Streamable HTTP, one session's worth: every GET stream gets what is unasked."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HttpServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        mcp = self.server.mcp
        mcp.text = self.rfile.read(int(self.headers["content-length"])).decode()
        message = json.loads(mcp.text)
        method = message.get("method", "")
        mcp.headers = dict(self.headers.items())
        stale = mcp.script.sessions and method not in ("initialize", "server/discover")
        stale = stale and self.headers.get("mcp-session-id") not in self.server.mcp.sessions
        if stale or method in mcp.script.statuses:
            self._plain(404 if stale else mcp.script.statuses[method])
        elif not method or "id" not in message:
            mcp.handle(message, lambda message: None)
            self._plain(202)
        elif mcp.script.sse:
            self._stream(message)
        else:
            self._json(message)

    def do_GET(self) -> None:
        script = self.server.mcp.script
        if not script.stream:
            self._plain(405)
        elif script.sessions and self.headers.get("mcp-session-id") not in self.server.mcp.sessions:
            self._plain(404)
        elif self.headers.get("last-event-id") and script.breaks:
            self._resume()
        else:
            self._unasked()

    def do_DELETE(self) -> None:
        self.server.mcp.note("goodbye")
        self.server.mcp.sessions.discard(self.headers.get("mcp-session-id"))
        self._plain(204)

    def _plain(self, status: int) -> None:
        self.send_response(status)
        if self.server.mcp.script.location:
            self.send_header("Location", self.server.mcp.script.location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _begin(self, kind: str, method: str = "") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        if method == "initialize" and self.server.mcp.script.sessions:
            session = str(uuid4())
            self.server.mcp.sessions.add(session)
            self.send_header("Mcp-Session-Id", session)
        if self.server.mcp.script.encoding:
            self.send_header("Content-Encoding", self.server.mcp.script.encoding)

    def _json(self, message: dict[str, Any]) -> None:
        answers: list[dict[str, Any] | str] = []
        self.server.mcp.handle(message, answers.append)
        text = answers[-1] if isinstance(answers[-1], str) else json.dumps(answers[-1])
        self._begin("application/json", message["method"])
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def _stream(self, message: dict[str, Any]) -> None:
        self._begin("text/event-stream", message["method"])
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if message["method"] == "tools/call" and self.server.mcp.script.breaks:
            self._chunk(b"id: 1\nretry: 100\ndata:\n\n")
            self.server.mcp.handle(message, self.server.kept.append)
        else:
            self.server.mcp.handle(message, self._send)
        self._chunk(b"")

    def _resume(self) -> None:
        self.server.mcp.note({"resumed": self.headers["last-event-id"]})
        self._begin("text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for message in self.server.kept if self.server.mcp.script.breaks == "resumed" else []:
            self._send(message)
        self._chunk(b"")

    def _unasked(self) -> None:
        waiting: queue.Queue[dict[str, Any] | str] = queue.Queue()
        self.server.listeners.append(waiting)
        self._begin("text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        self.server.mcp.note("listened to")
        while True:
            self._send(waiting.get())

    def _send(self, message: dict[str, Any] | str) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        self._chunk(f"data: {text}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        try:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            self.wfile.flush()
        except OSError:
            self.close_connection = True


class HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, mcp: Server) -> None:
        super().__init__(("127.0.0.1", mcp.script.port), Handler)
        self.mcp = mcp
        self.kept: list[dict[str, Any] | str] = []
        self.listeners: list[queue.Queue[dict[str, Any] | str]] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


def serve_http(server: Server) -> None:
    http = HttpServer(server)

    def tell(message: dict[str, Any] | str) -> None:
        for listener in http.listeners:
            listener.put(message)

    server.unasked = tell
    print(f"listening on {http.server_port}", flush=True)
    http.serve_forever()
