"""A YAML file as a tree of values that know their line; what it refuses is shown in `tests/unit/test_config.py`."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ot_pack.document import MAX_FILE_BYTES, ConfigError, Document, Given


def read(folder: Path, text: str | bytes) -> Given:
    path = folder / "a.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Document(path).read()


def plain(found: Given) -> object:
    if isinstance(found.value, dict):
        return {key: plain(value) for key, value in found.value.items()}
    if isinstance(found.value, list):
        return [plain(item) for item in found.value]
    return found.value


def test_every_value_knows_where_it_stands(tmp_path: Path) -> None:
    root = read(tmp_path, "a:\n  b c: [1, two]\nd: |\n  text\n").entries()
    path = tmp_path / "a.yaml"
    items = root["a"].entries()["b c"]
    assert (root["a"].where, items.where) == (f"{path}:1: a", f"{path}:2: a.b…")
    assert [item.where for item in items.value] == [f"{path}:2: a.b…[0]", f"{path}:2: a.b…[1]"]
    assert [item.shown for item in items.value] == ["1", '"two"']
    assert (root["d"].where, root["d"].value) == (f"{path}:3: d", "text\n")
    assert str(root["d"].error("is wrong")) == f"{path}:3: d: is wrong"


def test_a_value_shows_itself_in_no_repr(tmp_path: Path) -> None:
    assert "canary" not in repr(read(tmp_path, "a: canary"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
        max_leaves=10,
    )
)
def test_it_reads_what_yaml_writes(tmp_path: Path, value: object) -> None:
    text = yaml.safe_dump(value)
    assert plain(read(tmp_path, text)) == value


WORST = {
    "deep": "[" * MAX_FILE_BYTES,
    "wide": "[" + "1," * (MAX_FILE_BYTES // 2 - 2) + "]",
    "one number": "1:" * (MAX_FILE_BYTES // 2 - 1) + "1",
    "keys": "".join(f"k{n}:\n" for n in range(24_000)),
    "quotes": '"' + "\\n" * (MAX_FILE_BYTES // 2 - 2) + '"',
}


@pytest.mark.parametrize("text", WORST.values(), ids=WORST)
def test_the_worst_file_takes_a_second(tmp_path: Path, text: str) -> None:
    started = time.process_time()
    with suppress(ConfigError):
        read(tmp_path, text)
    assert time.process_time() - started < 3  # a second on a quiet machine
