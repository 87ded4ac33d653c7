"""Topics: where `ot.notify` writes, one YAML document a message (tool-ot-spec, "Notify Message").

Who may notify may be an agent, and an agent may have planted links where the files lie. So below the folder no path is
followed: each folder is opened within the one above it, and nothing that is a link is opened at all (HAZARDS T21).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple

from ot_pack.flow import Literal, block, writable

if TYPE_CHECKING:
    from pathlib import Path

# A topic is a word or a path of words; a message is for people to read.
MAX_TOPIC_CHARACTERS: Final = 200
MAX_MESSAGE_BYTES: Final = 64 * 1024
# An agent that notifies in a loop fills this much of the disk for each file in the configuration.
MAX_FILE_BYTES: Final = 64 * 1024 * 1024

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking: to open a FIFO that nobody reads would wait for a reader.
_FILE: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Topic(NamedTuple):
    """Messages whose topic matches `pattern` (as `fnmatch` has it, case-sensitive) go to `file`, below the folder."""

    pattern: str
    file: str


class TopicError(Exception):
    """Why a message is not written, in one line."""


def parts(file: str) -> tuple[str, ...]:
    """Returns the names along the path `file`, which begins in the folder of the topics.

    Raises `ValueError`, with what is wrong in words, where it would lead out of that folder or names no file.
    """
    names = tuple(file.split("/"))
    if file.startswith("/"):
        raise ValueError("is an absolute path")
    if ".." in names:
        raise ValueError("holds '..'")
    if "\0" in file:
        raise ValueError("holds a NUL")
    if "" in names or "." in names:
        raise ValueError("holds an empty name or '.'")
    return names


def publish(topics: Sequence[Topic], folder: Path | None, topic: str, message: str, ts: str) -> str:
    """Appends `message` to the file of the first of the `topics` that matches `topic`.

    `folder` is made where it is missing, and so are folders below it. `ts` is the time (RFC 3339). Returns
    `OK: {topic} -> {file}` when the whole document was written, `SKIP: no matching topic`, or an `Error: …`.
    """
    try:
        _check(topic, message)
        file = next((each.file for each in topics if fnmatchcase(topic, each.pattern)), None)
        if file is None:
            return "SKIP: no matching topic"
        _append(folder, file, _document(ts, topic, message))
    except TopicError as error:
        return f"Error: {error}"
    return f"OK: {topic} -> {file}"


def _check(topic: str, message: str) -> None:
    if not 1 <= len(topic) <= MAX_TOPIC_CHARACTERS or not topic.isprintable():
        raise TopicError(f"a topic has 1 to {MAX_TOPIC_CHARACTERS} printable characters")
    if len(message) > MAX_MESSAGE_BYTES or len(writable(message).encode()) > MAX_MESSAGE_BYTES:
        raise TopicError(f"a message has at most {MAX_MESSAGE_BYTES} bytes")


def _document(ts: str, topic: str, message: str) -> bytes:
    # WIRE section 10: "`---`, `ts`, `topic`, `message` (block literal when it has line breaks)".
    text = Literal(message) if "\n" in message else message
    return f"---\n{block({'ts': ts, 'topic': topic, 'message': text})}\n".encode()


def _append(folder: Path | None, file: str, document: bytes) -> None:
    if folder is None:
        raise TopicError("there is no folder for topics")
    try:
        *folders, name = parts(file)
        with _opened(folder, folders) as parent:
            _append_to(name, parent, document)
    except ValueError as error:
        raise TopicError(f"the file of the topic, {file!r}, {error}") from None
    except OSError as error:
        raise TopicError(f"{file!r} cannot be written: {error.strerror}") from None


@contextmanager
def _opened(folder: Path, names: Sequence[str]) -> Iterator[int]:
    """The folder `names` below `folder`, open, and made where it is missing."""
    for path in (*reversed(folder.parents), folder):
        path.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder, _FOLDER)
    try:
        for name in names:
            inner = _inner(name, descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _inner(name: str, folder: int) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, mode=0o700, dir_fd=folder)
    return os.open(name, _FOLDER, dir_fd=folder)


def _append_to(name: str, folder: int, document: bytes) -> None:
    descriptor = os.open(name, _FILE, mode=0o600, dir_fd=folder)
    try:
        _check_file(name, os.fstat(descriptor), len(document))
        written = os.write(descriptor, document)
        if written < len(document):
            _take_back(descriptor, written)
            raise TopicError(f"{name!r} cannot be written whole")
    finally:
        os.close(descriptor)


def _check_file(name: str, status: os.stat_result, more: int) -> None:
    # A second name of the file would be a way out of the folder, as a link is.
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise TopicError(f"{name!r} is no file of its own")
    if status.st_size + more > MAX_FILE_BYTES:
        raise TopicError(f"{name!r} is full: it has at most {MAX_FILE_BYTES} bytes")


def _take_back(descriptor: int, written: int) -> None:
    """Removes the beginning of a document, unless somebody has appended to it."""
    end = os.lseek(descriptor, 0, os.SEEK_CUR)
    if os.fstat(descriptor).st_size == end:
        os.ftruncate(descriptor, end - written)
