"""Turns of phrase that must not come back: in documents, messages, help texts, docstrings and comments."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "supervisor" / "ddp_run"
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

INSTEAD = {
    r"\b(?:as|so) far as\b(?! possible)": "where, if, what",
    r"\b(?:null|none) where\b": "null if",
    r"\bfor ever\b": "forever, endlessly",
    r"\bwhoever\b": "anyone who, the reader, the caller",
    r"\bsomebody\b": "someone, another user, another process",
    r"\bof (?:its|their|his|ddp-run's) own\b(?! \w)": "its own …, separate",
    r"(?<!there )\bis no (?!longer\b|more\b|\w+er\b)": "is not a",
    r"\b(?:is|are) let be\b": "is left alone",
    r"\b(?:is|are|was|were) told of\b": "is reported",
    r"\b(?:is|are) to be\b": "must be, should be",
    r"\bnot any more\b": "no longer",
    r"\bthe same of\b": "the same about, as …",
    r"\bwhere there (?:is|are) (?:one|some|any)\b": "if there is one, if any",
    r"\bis said of\b": "is said about, is reported for",
    r"\banew\b": "again, from scratch",
}
"""A pattern, and what an engineer would write."""
ANY = re.compile("|".join(INSTEAD), re.IGNORECASE)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text: of Markdown its lines, of Python its strings and comments."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from enumerate(source.splitlines(), 1)
        return
    kinds = {tokenize.STRING, tokenize.COMMENT}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds:
            yield from enumerate(token.string.splitlines(), token.start[0])


def found_in(path: Path) -> Iterator[str]:
    for number, line in texts(path):
        if not ANY.search(line):
            continue
        for pattern, instead in INSTEAD.items():
            for found in re.finditer(pattern, line, re.IGNORECASE):
                yield f"{path.relative_to(ROOT)}:{number}: {found[0]!r} ({instead}): {line.strip()[:100]}"


def test_documents_and_code_speak_plainly() -> None:
    code = sorted(SOURCES.rglob("*.py"))
    found = [line for path in (*DOCUMENTS, *code) for line in found_in(path)]
    assert not found, f"{len(found)} phrases:\n" + "\n".join(found)


def test_the_phrases_are_found() -> None:
    for text in ("as far as it is known", "null where it ended", "a list of its own.", "'3x' is no age", "is let be"):
        assert any(re.search(pattern, text, re.IGNORECASE) for pattern in INSTEAD), text
    for text in ("as far as possible", "is no longer there", "a port of its own choice", "is no better"):
        assert not any(re.search(pattern, text, re.IGNORECASE) for pattern in INSTEAD), text
