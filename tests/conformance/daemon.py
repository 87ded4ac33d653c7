"""The daemon as it is, `oubliette …`, with the suite's fixtures beside its own tools, prompts and resources."""

from __future__ import annotations

from oubliette.cli.main import main
from tests.conformance import fixtures

if __name__ == "__main__":
    fixtures.register()
    main()
