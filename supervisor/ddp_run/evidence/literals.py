"""Finds the literal text that every match of a regular expression contains. Pure.

Only texts in which upper and lower case count, and no alternatives: what a scanner can look for.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"(?P<run>[^\\.^$\[\]()|?*+{}]+(?![?*+{]))|(?P<nowhere>\\[bBAZ]|[$^])"
    r"|(?P<any>\.|\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|\w)|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P=\w+\))"
    r"|(?P<flags>\(\?[a-z]+\))|(?P<open>\((?P<kind>\?(?:P<\w+>|<?[=!]|[>:]|[a-z]+:))?)|(?P<close>\))|(?P<or>\|)"
    r"|(?P<repeat>[?*+]|\{(?P<least>\d+)?(?:,\d*)?\})|\\?(?P<literal>.)",
    re.DOTALL,
)
_NOWHERE = ("?=", "?!", "?<=", "?<!")


def longest(pattern: str) -> str:
    """Return the longest text that each match has; empty if there is none."""
    kinds, groups, before = [""], [[""]], [[""]]  # for each open group: its texts, and those before its last part
    for token in _TOKEN.finditer(pattern):
        texts, part = groups[-1], token.lastgroup
        if part in ("literal", "any", "open"):
            before[-1] = texts.copy()
        match part:
            case "flags" if "i" in token[0]:
                return ""
            case "run":
                texts[-1] += token[0]
            case "literal":
                texts[-1] += token[0][-1]
            case "any":
                texts.append("")
            case "repeat":
                kept = before[-1] if token[0] in "?*" or token["least"] == "0" else texts
                groups[-1] = before[-1] = [*kept, ""]
            case "or":
                kinds[-1] = "or"
            case "open":
                kinds.append(token["kind"] or "")
                groups.append([""])
                before.append([""])
            case "close":
                inside, kind, _ = groups.pop(), kinds.pop(), before.pop()
                if kind not in _NOWHERE:
                    fixed = kind != "or" and not (kind.endswith(":") and "i" in kind)
                    first, *others = inside if fixed else ("", "")
                    groups[-1][-1] += first
                    groups[-1] += others
            case _:
                pass
    return "" if kinds[0] == "or" else max(groups[0], key=len)
