"""What it can cost to check arguments against a caller's schema, known before it is tried (ARCHITECTURE, "Known traps").

jsonschema-rs keeps the GIL until it is done, so a check that takes a minute stops the daemon for a minute, and nothing
can interrupt it. Therefore the time is bounded from above beforehand, in two steps.

At declaration, `survey` finds every subschema (a `Place`), which values it is tried on (a `Route`), and what each `$ref`
names, so that nothing outside is ever asked for. `bounds_of` adds the places up, unrolled along the routes: what one
value can cost at each depth below the arguments. A schema without usable bounds is opaque: accepted, not evaluated.

At a call, `Bounds.estimate` multiplies that by the number of values in the arguments, counted without parsing them.

Two things make the result an upper bound. Subschemas on the `SAME` value are all counted, though `anyOf` may stop early.
Of what is tried on different members of one object (or items of one array) the dearest counts, for every member.
The constants are nanoseconds, measured with jsonschema-rs 0.60.3 on a two-core machine and rounded up.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

from oubliette.protocol.nesting import MAX_DEPTH, too_deep
from oubliette.schema_patterns import PatternBudget

type_Schema = dict[str, Any] | bool
