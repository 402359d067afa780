"""How many lines of a text count, by what is looked for in them. Pure values."""

from __future__ import annotations

LAST_WORDS = 400
"""At the end: what a rank wrote before it died. The reason may be that far above the stacks of all threads."""
LEAVING = 30
"""At the end: what a rank still writes when it is told to stop. As many new lines after it: it ran again."""
VERY_LAST = 8
"""At the end: the error that ended it, and little else. As many new lines after it: the program went on."""
BEFORE, AFTER = 3, VERY_LAST
"""Around a line: what belongs to the same message."""
