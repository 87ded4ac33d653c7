"""Where messages go: to the right file, whole, and never out of the folder (tool-ot-spec, "Notify"; HAZARDS T21)."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from ot_pack import topics as module
from ot_pack.topics import MAX_MESSAGE_BYTES, MAX_TOPIC_CHARACTERS, Topic, parts, publish

TS = "2026-01-02T03:04:05.678Z"
NOTES = Topic(pattern="notes*", file="notes.yaml")
DEEP = Topic(pattern="*", file="team/a/all.yaml")


def told(folder: Path | None, topic: str, message: str, *topics: Topic) -> str:
    return publish(topics or (NOTES, DEEP), folder, topic, message, TS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "topics"


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file outside the folder."""
    path = tmp_path / "canary"
    path.write_text("alive")
    return path


def test_the_first_topic_that_matches_is_taken(folder: Path) -> None:
    assert told(folder, "notes", "a") == "OK: notes -> notes.yaml"
    assert told(folder, "notes/today", "b") == "OK: notes/today -> notes.yaml"
    assert told(folder, "Notes", "c") == "OK: Notes -> team/a/all.yaml", "case counts"
    assert told(folder, "other", "d", NOTES) == "SKIP: no matching topic"
    assert told(None, "other", "d", NOTES) == "SKIP: no matching topic"
    assert sorted(path.name for path in folder.rglob("*.yaml")) == ["all.yaml", "notes.yaml"]


def test_a_document_to_the_letter(folder: Path) -> None:
    """WIRE section 10: "`---`, `ts`, `topic`, `message` (block literal when it has line breaks)"."""
    told(folder, "notes", "Remember to review PR #123")
    told(folder, "notes", "Plain words")
    told(folder, "notes", "Two\n  lines: #1\n")
    assert (folder / "notes.yaml").read_text() == (
        f'---\nts: "{TS}"\ntopic: notes\nmessage: "Remember to review PR #123"\n'
        f'---\nts: "{TS}"\ntopic: notes\nmessage: Plain words\n'
        f'---\nts: "{TS}"\ntopic: notes\nmessage: |\n  Two\n    lines: #1\n'
    )


ODD_MESSAGES = ["", " ", "\n", "a\n\n\n", "  a\nb", "---\nts: x\n...\n", "a\r\nb", "\0\x1b[31m\x85\u2028\n", "é😀\n日"]


@pytest.mark.parametrize("message", ODD_MESSAGES)
def test_a_message_reads_back(folder: Path, message: str) -> None:
    assert told(folder, "notes", message).startswith("OK")
    assert told(folder, "notes", "next").startswith("OK")
    first, second = yaml.safe_load_all((folder / "notes.yaml").read_bytes())
    assert first == {"ts": TS, "topic": "notes", "message": message}
    assert second["message"] == "next"


def test_a_lone_surrogate_is_replaced(folder: Path) -> None:
    assert told(folder, "notes", "a\ud800\nb").startswith("OK")
    assert yaml.safe_load((folder / "notes.yaml").read_text())["message"] == "a\ufffd\nb"


def test_files_and_folders_are_the_owners_own(folder: Path) -> None:
    told(folder, "all", "a")
    for path in (folder.parent, folder, folder / "team", folder / "team/a"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    assert stat.S_IMODE((folder / "team/a/all.yaml").stat().st_mode) == 0o600


def test_writers_at_the_same_time_do_not_mix(folder: Path) -> None:
    messages = [f"{number} {'x' * 5000}\n{number}" for number in range(100)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda message: told(folder, "notes", message), messages))
    assert answers == ["OK: notes -> notes.yaml"] * 100
    found = yaml.load_all((folder / "notes.yaml").read_text(), yaml.CSafeLoader)
    assert sorted(document["message"] for document in found) == sorted(messages)


# --- What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("/etc/passwd", "is an absolute path"),
        ("../canary", "holds '..'"),
        ("a/../../canary", "holds '..'"),
        ("..", "holds '..'"),
        ("a\0b", "holds a NUL"),
        ("", "holds an empty name or '.'"),
        ("a//b", "holds an empty name or '.'"),
        ("./a", "holds an empty name or '.'"),
        ("a/", "holds an empty name or '.'"),
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(folder: Path, canary: Path, file: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parts(file)
    answer = told(folder, "x", "a", Topic(pattern="*", file=file))
    assert answer == f"Error: the file of the topic, {file!r}, {message}"
    assert not folder.exists()
    assert canary.read_text() == "alive"


def test_a_path_below_the_folder_is_its_names() -> None:
    assert parts("a") == ("a",)
    assert parts("a/..b/c.yaml") == ("a", "..b", "c.yaml")


def test_planted_links_are_not_followed(folder: Path, canary: Path) -> None:
    """HAZARDS T21: "stays inside; dirfd + O_NOFOLLOW; host canary file untouched"."""
    (folder / "team").mkdir(parents=True)
    (folder / "notes.yaml").symlink_to(canary)
    (folder / "team/a").symlink_to(canary.parent)
    assert told(folder, "notes", "a").startswith("Error: 'notes.yaml' cannot be written: ")
    assert told(folder, "all", "a").startswith("Error: 'team/a/all.yaml' cannot be written: ")
    assert canary.read_text() == "alive"
    assert not (canary.parent / "all.yaml").exists()


def test_the_folder_itself_may_not_be_a_link(folder: Path, tmp_path: Path) -> None:
    folder.parent.mkdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    assert told(folder, "notes", "a").startswith("Error: 'notes.yaml' cannot be written: ")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_second_name_of_another_file_is_refused(folder: Path, canary: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "notes.yaml").hardlink_to(canary)
    assert told(folder, "notes", "a") == "Error: 'notes.yaml' is no file of its own"
    assert canary.read_text() == "alive"


def test_a_pipe_is_refused_with_and_without_a_reader(folder: Path) -> None:
    folder.mkdir(parents=True)
    os.mkfifo(folder / "notes.yaml")
    assert told(folder, "notes", "a").startswith("Error: 'notes.yaml' cannot be written: ")
    reader = os.open(folder / "notes.yaml", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert told(folder, "notes", "a") == "Error: 'notes.yaml' is no file of its own"
    finally:
        os.close(reader)


def test_a_folder_is_no_file(folder: Path) -> None:
    (folder / "notes.yaml").mkdir(parents=True)
    assert told(folder, "notes", "a") == "Error: 'notes.yaml' cannot be written: Is a directory"


def test_without_a_folder_nothing_is_written() -> None:
    assert told(None, "notes", "a") == "Error: there is no folder for topics"


@pytest.mark.parametrize(
    "topic", ["", "a\nb", "a\0", "\x1b[31m", "a\u2028b", "\ud800", "x" * (MAX_TOPIC_CHARACTERS + 1)]
)
def test_a_topic_is_a_line_of_text(folder: Path, topic: str) -> None:
    assert told(folder, topic, "a") == "Error: a topic has 1 to 200 printable characters"
    assert told(folder, "x" * MAX_TOPIC_CHARACTERS, "a").startswith("OK: xxx")


@pytest.mark.parametrize("letter", ["x", "é", "\ud800"])
def test_a_message_is_bounded(folder: Path, letter: str) -> None:
    size = len(letter.encode(errors="replace")) if letter != "\ud800" else 3
    assert told(folder, "notes", letter * (MAX_MESSAGE_BYTES // size)).startswith("OK")
    assert told(folder, "notes", letter * (MAX_MESSAGE_BYTES // size + 1)) == (
        "Error: a message has at most 65536 bytes"
    )


def test_a_file_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(folder, "notes", "a")
    size = (folder / "notes.yaml").stat().st_size
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 2 * size)
    assert told(folder, "notes", "b").startswith("OK")
    assert told(folder, "notes", "c") == f"Error: 'notes.yaml' is full: it has at most {2 * size} bytes"
    assert (folder / "notes.yaml").stat().st_size == 2 * size


# --- A disk that fails -----------------------------------------------------------------------------------------------


def test_a_failing_write_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    assert told(folder, "notes", "a") == "Error: 'notes.yaml' cannot be written: No space left on device"


@pytest.mark.parametrize("somebody_else", ["", "---\nmessage: theirs\n"])
def test_half_a_document_is_taken_back(folder: Path, monkeypatch: pytest.MonkeyPatch, somebody_else: str) -> None:
    told(folder, "notes", "before")
    before = (folder / "notes.yaml").read_text()
    write = os.write

    def write_half(descriptor: int, data: bytes) -> int:
        written = write(descriptor, data[:10])
        with (folder / "notes.yaml").open("a") as file:
            file.write(somebody_else)
        return written

    monkeypatch.setattr(os, "write", write_half)
    assert told(folder, "notes", "half") == "Error: 'notes.yaml' cannot be written whole"
    after = (folder / "notes.yaml").read_text()
    assert after == (f'{before}---\nts: "2{somebody_else}' if somebody_else else before)


def test_no_descriptor_is_left_open(folder: Path, canary: Path) -> None:
    told(folder, "all", "a")
    (folder / "notes.yaml").symlink_to(canary)
    before = sorted(os.listdir("/proc/self/fd"))
    for topic in ("all", "notes", "all"):
        told(folder, topic, "a")
    told(folder, "x", "a", Topic(pattern="*", file="team/a/all.yaml/deeper"))
    assert sorted(os.listdir("/proc/self/fd")) == before
