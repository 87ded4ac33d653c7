"""What a daemon does first after another one was killed (WIRE section 3, "After a crash")."""

from __future__ import annotations

import msgspec

from oubliette import clock
from oubliette.events import EventLog, Journal
from oubliette.log import get as get_logger
from oubliette.protocol.events import CallerToolCancelled, SessionEnded
from oubliette.records import SessionRecord
from oubliette.store import Store, next_after_crash

log = get_logger(__name__)


async def close_interrupted(store: Store, journal: Journal) -> None:
    """Closes the sessions that were under way: their pending requests, then themselves, reason `interrupted`.

    Returns when that is recorded. Their indexes jump over all that may have been given out and not been stored, so
    that "no index ever names two events".
    """
    for record in store.unfinished_sessions():
        _close(store, journal, record)
        log.warning("session interrupted", session=record.session_id)
    await store.flush()


def _close(store: Store, journal: Journal, record: SessionRecord) -> None:
    events = EventLog(record.session_id, journal, next_after_crash(record.last_index))
    for request_id in store.pending_requests(record.session_id):
        events.append(CallerToolCancelled, request_id=request_id, reason="interrupted", duration_ms=0)
    events.append(SessionEnded, reason="interrupted", exit_code=None)
    ended = msgspec.structs.replace(record, status="interrupted", ended_at=clock.now(), last_index=events.last_index)
    store.post_session(ended)
