"""Which of Oubliette's own tools the agent's key opens: asked once (WIRE section 1, `oubliette_tools`)."""

from __future__ import annotations

from typing import Final

from oubliette_client.catalog import Catalog
from oubliette_client.key import ApiKey
from oubliette_client.link import Link
from oubliette_client.stdio import note
from oubliette_client.tools import KEYED

_NOTHING: Final = '{"tools":[]}'


async def discover(key: ApiKey, link: Link, catalog: Catalog) -> None:
    """Tells `catalog` what the key opens. Asks again only where the connection was lost before the answer came.

    WIRE: "An invalid key is a warning on stderr, and the client goes on without them".
    """
    answer = None
    while answer is None or answer.is_lost:
        await link.up()
        answer = await link.request(KEYED, key.sign("{}"), lambda report: None)
    if answer.result is None:
        note(f"Oubliette's own tools are left out: {answer.error}")
    catalog.configure(KEYED, answer.result or _NOTHING)
