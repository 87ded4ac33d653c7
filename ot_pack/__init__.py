"""The `ot` pack: what tools, packs, aliases, snippets and servers there are, in one compact and exact view.

Eight functions that take keywords and return text (tool-ot-spec, WIRE section 10). They show the `State` that is bound
for the time of a call (`ot_pack.state.bound`), as the daemon does it, else the configuration in reach:

    import ot_pack
    print(ot_pack.tools(pattern="search"))

`import ot_pack` needs the standard library alone, and less than 60 ms.
"""

from __future__ import annotations

import sys
from types import ModuleType

from ot_pack.functions import aliases, config, health, notify, packs, reload, snippets, tools

__all__ = ["aliases", "config", "health", "notify", "packs", "reload", "snippets", "tools"]

pack = "ot"


class _Package(ModuleType):
    """Keeps `ot_pack.config` and `ot_pack.snippets` the functions. Python binds the name of a submodule in its package
    when it is first imported, however late; `from ot_pack.config import …` does not need that.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name not in __all__ or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
