"""An agent whose prompt is a script, a JSON list of steps. It speaks MCP with its client by hand.

["say", TEXT]                           says a line
["call", TOOL, ARGUMENTS]               calls a tool and says what came of it
["leave", SECONDS, TOOL, ARGUMENTS]     calls a tool and loses patience, as agents' own timers do
["find"]                                waits for the child session that a call before has told of
["sleep", SECONDS]                      works in silence
"""

from __future__ import annotations

import json
import os
import queue
import re
import shlex
import subprocess
import sys
import threading
import time
from typing import Any

LIMIT = 30
CHILD = re.compile(r"child session (ses_[0-9a-f]+) is at work")


class McpClient:
    """The agent's MCP client. `child` is the last child session that a progress notification told of."""

    def __init__(self) -> None:
        command = shlex.split(os.environ["OUBLIETTE_CLIENT"])
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.child = ""
        self._last_id = 0
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
        self.send({"method": "notifications/initialized"})

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def request(self, method: str, params: dict[str, Any], patience: float = LIMIT) -> Any:
        """Returns the result, or None after so many seconds, the request then being cancelled."""
        self._last_id += 1
        self.send({"id": self._last_id, "method": method, "params": params})
        answer = self._answer(self._last_id, time.monotonic() + patience)
        if answer is None:
            self.send({"method": "notifications/cancelled", "params": {"requestId": self._last_id}})
            return None
        return answer["result"]

    def _answer(self, id: int, deadline: float) -> Any:
        while (left := deadline - time.monotonic()) > 0:
            try:
                message = json.loads(self._lines.get(timeout=left))
            except queue.Empty:
                return None
            if message.get("id") == id:
                return message
            told = CHILD.search(str(message.get("params", {}).get("message")))
            self.child = told[1] if told else self.child
        return None

    def call(self, tool: str, arguments: Any, patience: float = LIMIT) -> None:
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": "t"}}
        result = self.request("tools/call", params, patience)
        if result is None:
            return say(f"{tool} took too long")
        text = " ".join(block["text"] for block in result["content"])
        say(f"{tool} {'failed' if result.get('isError') else 'answered'}: {text}")


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    client = McpClient()
    for step, *rest in json.loads(sys.argv[1]):
        if step == "say":
            say(rest[0])
        elif step == "call":
            client.call(*rest)
        elif step == "leave":
            client.call(rest[1], rest[2], patience=rest[0])
        elif step == "find":
            client.call("session_message", {"session_id": client.child})
        elif step == "sleep":
            time.sleep(rest[0])
    assert client.process.stdin is not None
    client.process.stdin.close()
    client.process.wait()


if __name__ == "__main__":
    main()
