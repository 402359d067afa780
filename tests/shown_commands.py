"""The command lines that documents, scripts' comments, help texts and advice show, found in their text."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ddp_run import commands

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "supervisor" / "ddp_run"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPTS = [path for path in sorted((ROOT / "scripts").rglob("*")) if path.is_file() and path.suffix != ".pyc"]

PLACEHOLDERS = {
    "…": "train.py",  # the rest of a launch
    "{}": "unknown",  # what advice fills in: a cause, a folder
    "NAME": "unknown",  # a cause
    "%": "bash",  # `%(shell)s` of a template
    "INSTANCE": "4242",  # at Vast.ai
    "[ARGUMENTS...]": "--epochs",
    "$SLURM_JOB_ID": "42",
    "$node": "1",
    "$node0": "10.0.0.7",
}
BEFORE_A_PROGRAM = ("srun", "sbatch", "python", "bash")
LAUNCH_OR_COMMAND = rf"ddp-run (?:(?:{'|'.join(commands.names())})(?![\w:-])|-[\w-]+|\S+\.py|…)"
LIKE_A_COMMAND = re.compile(
    rf"(?:\w+=\S+ +)*(?:(?:{'|'.join(BEFORE_A_PROGRAM)}) .*?)?"
    rf"(?:{LAUNCH_OR_COMMAND}|(?:scripts|tests)[/.]\w|(?:\./)?[\w-]+\.(?:py|sh) )"
)
PARTS_OF_A_LINE = re.compile(r"[();<>|&]+")


@dataclass(frozen=True, slots=True)
class Shown:
    """One command, as words."""

    where: str
    words: tuple[str, ...]
    variables: tuple[str, ...] = ()
    """`NAME=VALUE` in front of it."""

    def __str__(self) -> str:
        return f"{self.where}: {' '.join((*self.variables, *self.words))}"


# ---------------------------------------------------------------------------------- what a text shows


def commands_in(line: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Variables and words of each command that a shell would start for a line, those inside `$(…)` too."""
    for inner in re.findall(r"\$\(([^()]+)\)", line):
        yield from commands_in(inner)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    current: list[str] = []
    for word in [*lexer, ";"]:
        if not PARTS_OF_A_LINE.fullmatch(word):
            current.append(word)
            continue
        if word[0] in "<>" and current[-1:] == ["2"]:
            current.pop()  # the 2 of `2>`
        count = next((at for at, each in enumerate(current) if not re.match(r"\w+=", each)), len(current))
        if current[count:]:
            yield tuple(current[:count]), tuple(current[count:])
        current = []


def ours(line: str, where: str) -> Iterator[Shown]:
    """Those of a line that start ddp-run or something of this repository."""
    for variables, words in commands_in(line):
        at = next((at for at, word in enumerate(words) if _is_ours(word)), None)
        if at is not None and (at == 0 or words[0] in BEFORE_A_PROGRAM):
            yield Shown(where, tuple(PLACEHOLDERS.get(word, word) for word in words[at:]), variables)


def _is_ours(word: str) -> bool:
    return word == "ddp-run" or program_of(word) is not None


def program_of(word: str) -> Path | None:
    """The file of this repository that a word means: a path, a file beside the document, a module; there or not."""
    if re.fullmatch(r"(scripts|tests)/[\w./-]+", word):
        return ROOT / word
    if re.fullmatch(r"tests(\.\w+)+", word):
        return ROOT / f"{word.replace('.', '/')}.py"
    named = [path for path in SCRIPTS if path.suffix in (".py", ".sh") and path.name == word.removeprefix("./")]
    return named[0] if named else None


def lines_of_blocks(text: str) -> Iterator[str]:
    """What one types, of the blocks for shells in Markdown; continued lines are one."""
    for language, block in re.findall(r"^ *```(\w+)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
        lines = [line.strip() for line in block.replace("\\\n", " ").splitlines()]
        if language == "console":
            yield from (line[2:] for line in lines if line.startswith("$ "))
        elif language in ("sh", "bash"):
            yield from lines


def spans(text: str) -> Iterator[str]:
    """Code in the text around the blocks that begins like a command, and is not only a name."""
    around = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for span in re.findall(r"`([^`]+)`", around):
        if re.match(LIKE_A_COMMAND, span):
            yield " ".join(span.split())


def comment_lines(text: str) -> Iterator[str]:
    """Indented lines of a file's comments and docstring: there it shows how it is started."""
    docstring = re.match(r'(?:#!.*\n)?"""(.*?)"""', text, re.DOTALL)
    found = re.findall(r"^ {2,}(\S.*)$", docstring[1] if docstring else "", re.MULTILINE)
    found += re.findall(r"^#(?: {2,}|.*: )(\S.*)$", text, re.MULTILINE)
    yield from (line for line in found if re.match(LIKE_A_COMMAND, line))


def texts_of(source: str) -> Iterator[str]:
    """String literals of a Python file, `{}` for what an f-string fills in."""
    inside = set()
    for node in ast.walk(ast.parse(source)):  # from the outside in
        match node:
            case ast.Constant(value=str(text)) if node not in inside:
                yield text
            case ast.JoinedStr(values=parts):
                inside.update(parts)
                yield "".join(_filled_in(each) for each in parts)
            case _:
                pass


def _filled_in(part: ast.expr) -> str:
    """What stands for a part of an f-string: the first of two texts that a condition chooses from."""
    match part:
        case ast.Constant(value=text) | ast.FormattedValue(value=ast.IfExp(body=ast.Constant(value=text))):
            return str(text)
        case _:
            return "{}"


def in_messages(source: str) -> Iterator[str]:
    """Commands in what people are told: `ddp-run` and then a command, an option or a script, to the end of the line."""
    # Most files name no command: to parse them all takes half a CPU second in each process that collects
    for text in texts_of(source) if re.search(rf"{LAUNCH_OR_COMMAND}|ddp-run ?[\"'{{\\\\]", source) else ():
        for found in re.findall(rf"(?:^ *|[`(])({LAUNCH_OR_COMMAND}.*)", text, re.MULTILINE):
            yield re.split(r"[`;]|\)(?=\W|$)|   ", found)[0]


def all_shown() -> Iterator[Shown]:
    for path in DOCUMENTS:
        text, where = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        for line in (*lines_of_blocks(text), *spans(text)):
            yield from ours(line, where)
    for path in SCRIPTS:
        for line in comment_lines(path.read_text(encoding="utf-8")):
            yield from ours(line, str(path.relative_to(ROOT)))
    for path in sorted(SOURCES.rglob("*.py")):
        for line in in_messages(path.read_text(encoding="utf-8")):
            yield from ours(line, str(path.relative_to(ROOT)))
