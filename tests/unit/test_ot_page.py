"""docs/ot.md says what is so: its outputs are those of its commands (`make docs`), its facts those of the code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ot_pack import standalone
from ot_pack.config import PackConfig, ServerConfig, read
from ot_pack.document import Document
from ot_pack.local import load
from oubliette.config import load as load_config
from oubliette.packs.tools import LOCAL_SECONDS, LOCAL_THREADS
from oubliette.upstreams import backoff
from scripts import ot_page

PAGE = ot_page.PAGE.read_text()
EXAMPLE = ot_page.ROOT / ot_page.CONFIG


@pytest.fixture(autouse=True)
def the_usual_configuration() -> Iterator[None]:
    """What the commands had in reach is of no concern to other tests."""
    yield
    standalone.use(None)


def test_the_outputs_are_those_of_the_commands() -> None:
    renewed = ot_page.renewed(PAGE)
    assert renewed == PAGE, "run `make docs`"
    # An output that is not there, or an error, would be renewed as well.
    assert PAGE.count("\n$ python -m ot_pack ") == 16
    assert "Traceback" not in renewed
    assert renewed.count("\nError: ") == 2


def test_the_example_has_everything_and_nothing_is_wrong_with_it() -> None:
    config = load_config(EXAMPLE, environ={}, overrides={}).pack
    for section in ("aliases", "snippets", "servers", "packs", "topics", "instructions", "local"):
        assert getattr(config, section), section
    assert config.problems == {}
    assert len(config.snippets) == 2


def test_the_pack_on_the_page_is_one(tmp_path: Path) -> None:
    source = PAGE.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "text.py").write_text(source)
    pack = load(tmp_path / "text.py")
    tool = pack.tools["count"]
    assert tool.function("the one and the other") == {"count": 2}
    assert tool.entry.args == ("text: (no description)", "word: What is counted")


def test_the_servers_on_the_page_are_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "oubliette.yaml"
    path.write_text(PAGE.partition("```yaml\n")[2].partition("```")[0])
    config: PackConfig = read(Document(path).read(), tmp_path, {"GITHUB_TOKEN": "g", "DOCS_TOKEN": "d"})
    assert config.servers["docs"].headers == {"Authorization": "Bearer d"}


@pytest.mark.parametrize(
    "fact",
    [
        f"in a thread, {LOCAL_THREADS} at once",
        f"Either has {LOCAL_SECONDS:g} s",
        f"within {backoff.FIRST:g} s, later within {backoff.LONGEST:g} s",
        f"`timeout_seconds` ({ServerConfig(command='x').timeout_seconds:g})",
    ],
)
def test_the_facts_are_those_of_the_code(fact: str) -> None:
    assert fact in PAGE
