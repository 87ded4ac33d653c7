"""The four outcomes of a caller-tool call that the specification names, each played once and checked.

REQ-CTR-001 has the success, the timeout and the disconnect, REQ-CTR-004 the tool error; WIRE section 3 says in which
words the agent hears of each.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any, Final

from oubliette.cli.client import DaemonClient
from oubliette.demo.caller import CALLER_ID, CallerSession
from oubliette.demo.show import Story

SCHEMA: Final = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
SEND_NOTIFICATION: Final = {"name": "send_notification", "description": "Show a message", "inputSchema": SCHEMA}
SLOW_TOOL: Final = {"name": "slow_tool", "description": "Never answers in time", "timeout_seconds": 1}
CALL_SEND: Final = f'call {CALLER_ID}_send_notification {{"message": "hello"}}'
CALL_SLOW: Final = f"call {CALLER_ID}_slow_tool"
# "At once" and "after 1 s", on a machine that has other things to do: so much later still passes, in milliseconds.
LENIENCE_MS: Final = 5000


class Stage:
    """What the scenes play with: `caller` and `operator` are the daemon, as two different tokens."""

    def __init__(self, story: Story, caller: DaemonClient, operator: DaemonClient) -> None:
        self.story = story
        self.caller = caller
        self.operator = operator

    def session(self, tool: dict[str, Any], prompt: str) -> CallerSession:
        return CallerSession(self.story, self.caller, tool, prompt)


def success(stage: Stage) -> None:
    stage.story.scene("1. The agent calls a tool of the caller, and gets its result")
    with stage.session(SEND_NOTIFICATION, CALL_SEND) as session:
        request = session.next_of("caller_tool_request")
        accepted = session.answer(request["request_id"], result={"status": "sent"})
        resolved = session.next_of("caller_tool_resolved")
        session.next_of("turn_completed")
        again = session.answer(request["request_id"], result={"status": "sent again"})
        check = stage.story.check
        tools = session.said[0].removeprefix("tools: ").split(", ") if session.said else []
        check("the agent sees the tool with the caller's prefix", f"{CALLER_ID}_send_notification" in tools, True)
        check("the request names the tool as the caller does", request["tool"], "send_notification")
        check("the request has the agent's arguments", request["arguments"], {"message": "hello"})
        check("the request's id is a UUID v4", uuid.UUID(request["request_id"]).version, 4)
        check("the answer was accepted", accepted, "")
        check("the answer resolved this request", resolved["request_id"], request["request_id"])
        check("it was no error", resolved["is_error"], False)
        check("the agent got the result", _answered(session, "send_notification"), {"status": "sent"})
        check("a second answer is refused", again, "conflict")


def tool_error(stage: Stage) -> None:
    stage.story.scene("2. The caller's tool fails, and the agent gets its error")
    with stage.session(SEND_NOTIFICATION, CALL_SEND) as session:
        request = session.next_of("caller_tool_request")
        accepted = session.answer(request["request_id"], error="recipient not found")
        resolved = session.next_of("caller_tool_resolved")
        session.next_of("turn_completed")
        check = stage.story.check
        check("the answer was accepted", accepted, "")
        check("it was an error", resolved["is_error"], True)
        failed = f"{CALLER_ID}_send_notification failed: recipient not found"
        check("the agent got the error in the caller's words", session.said[-1:], [failed])


def timeout(stage: Stage) -> None:
    stage.story.scene("3. The caller does not answer in time, and the agent gets a timeout error")
    with stage.session(SLOW_TOOL, CALL_SLOW) as session:
        request = session.next_of("caller_tool_request")
        cancelled = session.next_of("caller_tool_cancelled")
        session.next_of("turn_completed")
        late = session.answer(request["request_id"], result="too late")
        check = stage.story.check
        check("the deadline is the tool's own", request["timeout_seconds"], 1)
        check("the request ended by its timeout", cancelled["reason"], "timeout")
        check("it ended after 1 s", 1000 <= cancelled["duration_ms"] < 1000 + LENIENCE_MS, True)
        _check_failed(stage, session, "slow_tool", "caller tool 'slow_tool' timed out after 1 s")
        check("a late answer is refused", late, "conflict")


def disconnect(stage: Stage) -> None:
    stage.story.scene("4. The caller hangs up during the call, and the agent gets a connection error")
    with stage.session(SEND_NOTIFICATION, CALL_SEND) as session:
        request = session.next_of("caller_tool_request")
        session.close_stream()
        # Others may follow a session, and do not count as connected (WIRE section 3, "Observers").
        session.follow(stage.operator, "operator")
        cancelled = session.next_of("caller_tool_cancelled")
        session.next_of("turn_completed")
        late = session.answer(request["request_id"], result="too late")
        check = stage.story.check
        check("the request ended by the disconnect", cancelled["reason"], "disconnected")
        check("it ended at once", cancelled["duration_ms"] < LENIENCE_MS, True)
        _check_failed(stage, session, "send_notification", "caller disconnected")
        check("a late answer is refused", late, "conflict")


def _answered(session: CallerSession, tool: str) -> Any:
    """Returns the result that the agent says it got, None where its last line says something else."""
    _, found, result = "".join(session.said[-1:]).partition(f"{CALLER_ID}_{tool} answered: ")
    return json.loads(result) if found else None


def _check_failed(stage: Stage, session: CallerSession, tool: str, message: str) -> None:
    """The message goes on to say whether it is safe to retry: here the caller had the request."""
    expected = f"{CALLER_ID}_{tool} failed: {message}; the tool may already have run"
    stage.story.check("the agent got the error, and that the tool may have run", session.said[-1:], [expected])


SCENES: Final[tuple[Callable[[Stage], None], ...]] = (success, tool_error, timeout, disconnect)
