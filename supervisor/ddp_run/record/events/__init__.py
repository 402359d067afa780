"""Facts of a run (`Event`, past tense), as its journal holds them and as an attempt's machine receives them.

All of them can be imported from here. Exit codes follow Python's convention: `code >= 0` is an exit code, `code < 0`
the negated number of a signal. What can't be known is null.
"""

from ddp_run.record.events.attempts import *  # noqa: F403
from ddp_run.record.events.host import *  # noqa: F403
from ddp_run.record.events.nodes import *  # noqa: F403
from ddp_run.record.events.ranks import *  # noqa: F403
