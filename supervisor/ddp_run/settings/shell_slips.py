"""Words that a shell, an editor or a web page has changed on the way: quotes, dashes, line ends, blanks. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_DASHES = {"\N{EN DASH}": "an en dash", "\N{EM DASH}": "an em dash", "\N{MINUS SIGN}": "a minus sign"}
_DASHES |= {"\N{HYPHEN}": "a typographic hyphen", "\N{NON-BREAKING HYPHEN}": "a typographic hyphen"}
_QUOTES = dict.fromkeys("\u201c\u201d\u201e\u2018\u2019\u201a\u00ab\u00bb")
_INVISIBLE = {
    "\u00a0": "a no-break space",
    "\u200b": "a zero-width space",
    "\ufeff": "a byte order mark",
    "\u2028": "a line separator",
}


@dataclass(frozen=True, slots=True)
class Slip:
    """What is odd about a word, as the end of a sentence that begins with it, and what to do."""

    says: str
    help: str


def slip_in(word: str) -> Slip | None:
    """The first that is odd; null where nothing is."""
    if "\r" in word:
        return Slip("a carriage return: the file has Windows line endings", r"sed -i 's/\r$//' job.sh   # your file")
    if word[:1] in (" ", "\t", "\n"):
        return Slip(
            "a leading blank: something follows the backslash at the end of the previous line",
            "end that line with the backslash, with no blank after it",
        )
    if word[:1] in _DASHES:
        bare = word.lstrip("-" + "".join(_DASHES))
        dashes = "-" if len(bare.partition("=")[0]) == 1 else "--"
        return Slip(f"{_DASHES[word[0]]} (U+{ord(word[0]):04X}) at the start", f"type {dashes}{bare}")
    if any(char in _QUOTES for char in word):
        plain = "".join(char for char in word if char not in _QUOTES)
        return Slip("typographic quotes", f"type {plain}, or put plain quotes around it")
    for char, name in _INVISIBLE.items():
        if char in word:
            return Slip(f"{name} (U+{ord(char):04X})", "retype the line by hand")
    if word.startswith("~") or "$" in word:
        return Slip(
            "a ~ or $ that the shell did not expand: it is in single quotes, or ~ does not start the word",
            'use double quotes for variables: "${NAME}/train.py"; leave ~ unquoted',
        )
    return None
