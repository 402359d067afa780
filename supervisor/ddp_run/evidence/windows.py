"""How many lines of a text count, by what is looked for in them. Pure values."""

from __future__ import annotations

LAST_WORDS = 400
"""At the end: what a rank wrote before it died. The reason may be that far above the stacks of all threads."""
LEAVING = 40
"""At the end: what a rank and its launcher still write when it gives up, or is told to stop."""
VERY_LAST = 8
"""At the end: the error that ended it, and little else. More new lines than that after it, and the program went on."""
BEFORE, AFTER = 3, VERY_LAST
"""Around a line: what belongs to the same message."""
