"""A caller that needs nothing but Python: it offers the agent one tool, runs it when asked, and prints what it says."""

import http.client
import json
import os
from typing import Any
from urllib.parse import urlsplit

ADDRESS = urlsplit(os.environ.get("OUBLIETTE_URL", "http://127.0.0.1:8080")).netloc
HEADERS = {"Authorization": "Bearer " + os.environ["OUBLIETTE_TOKEN"], "Content-Type": "application/json"}
SCHEMA = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
TOOLS = [{"name": "send_notification", "description": "Show a message to the user", "inputSchema": SCHEMA}]


def request(method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(ADDRESS, timeout=60)  # an open stream has a comment line every 15 s
    connection.request(method, path, json.dumps(body) if body else None, HEADERS)
    response = connection.getresponse()
    return response if response.status < 300 else exit(f"{method} {path}: {response.status} {response.read().decode()}")


context = {"caller_id": "myapp", "caller_tools": TOOLS}
session = json.load(request("POST", "/sessions", {"message": "The build is green", "context": context}))
path = f"/sessions/{session['session_id']}"
# Whatever the agent asked before this stream opened waits for it, and since_index=0 replays what it said.
for line in request("GET", f"{path}/events?since_index=0"):
    event: Any = json.loads(line[6:]) if line.startswith(b"data: ") else {"type": None}
    if event["type"] == "caller_tool_request":
        print("notification:", event["arguments"]["message"])
        request("POST", f"{path}/requests/{event['request_id']}", {"result": {"status": "sent"}})
    elif event["type"] == "message" and event["role"] == "assistant":
        print("agent:", event["text"])
    elif event["type"] == "turn_completed":
        request("DELETE", path)
    elif event["type"] == "session_ended" and event["reason"] == "failed":
        exit("the agent failed")
