"""How many lines of a log count for what is searched in them. Values only."""

from __future__ import annotations

LAST_WORDS = 400
"""At the end: a rank's last words. The stacks of all threads may follow the reason."""
LEAVING = 30
"""At the end: what a rank writes while it ends. If this many new lines follow a message to stop, it ran again."""
VERY_LAST = 8
"""At the end: the error itself. If this many new lines follow an error, the program went on."""
BEFORE, AFTER = 3, VERY_LAST
"""Around a line: the rest of the same message."""
