"""A mistake found before anything was started, shown as one block that points at the wrong word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

CODES = {
    "DDP101": "syntax-or-usage",
    "DDP102": "script-not-found",
    "DDP201": "port-in-use",
    "DDP203": "rendezvous-dns",
    "DDP204": "gloo-network",
    "DDP205": "nccl-network",
    "DDP302": "invalid-device",
    "DDP601": "import-error",
    "DDP904": "permission-denied",
    "DDP905": "disk-full",
}
"""Every code that a problem found before the start can have, and its cause in the catalogue."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, where it came from and what is allowed. `code` is empty if it isn't about a launch.

    `word` is the index into the command line's words (0 is the first after `ddp-run`), None if the value came
    from elsewhere; then `origin` says from where ("environment variable PET_NNODES", "preset.toml:3").
    """

    code: str
    title: str
    word: int | None = None
    label: str = ""
    origin: str | None = None
    notes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()

    @property
    def cause(self) -> str:
        """The cause's name in the catalogue."""
        return CODES.get(self.code, "syntax-or-usage")


@dataclass
class Refused(Exception):
    """Raised to refuse a launch: every problem found, nothing started."""

    problems: tuple[Problem, ...]
    argv: tuple[str, ...] = ()


def nearest(text: str, names: Iterable[str], count: int = 2, cutoff: float = 0.6) -> tuple[str, ...]:
    """The names most similar to `text`, best first; may be empty. `cutoff`: from 0 (anything) to 1 (equal)."""
    import difflib

    return tuple(difflib.get_close_matches(text, sorted(set(names)), n=count, cutoff=cutoff))


# -------------------------------------------------------------------------------------------- rendering

Painter = Callable[[str, str], str]
_RED, _BLUE, _GREEN, _BOLD, _PLAIN = "\033[31;1m", "\033[34m", "\033[32m", "\033[1m", "\033[0m"


def render(problems: Sequence[Problem], argv: Sequence[str], *, width: int = 100, colour: bool = False) -> str:
    """The problems as text, one block each, ending with a newline. `width` in columns; the text has no other colour."""
    from ddp_run.values.redaction import redact_value, redact_words

    problems, argv = redact_value(tuple(problems)), redact_words(argv)

    def paint(text: str, escape: str) -> str:
        return f"{escape}{text}{_PLAIN}" if colour else text

    return "\n".join("\n".join(_block(each, argv, width, paint)) + "\n" for each in problems)


def _block(problem: Problem, argv: Sequence[str], width: int, paint: Painter) -> list[str]:
    error = f"error[{problem.code}]" if problem.code else "error"
    lines = [f"{paint(error, _RED)}: {paint(printable(problem.title), _BOLD)}"]
    bar = paint("   |", _BLUE)
    if problem.word is not None:
        line, marks = _excerpt(problem.word, argv, width - 5)
        lines += [
            f"  {paint('-->', _BLUE)} command line, word {problem.word + 1}",
            bar,
            f"{bar} {line}",
            f"{bar} {marks[0]}{paint(marks[1], _RED)} {printable(problem.label)}".rstrip(),
        ]
    elif problem.origin is not None:
        lines.append(f"  {paint('-->', _BLUE)} {printable(problem.origin)}")
        if problem.label:
            lines.append(f"{bar} {printable(problem.label)}")
    lines += [f"   {paint('=', _BLUE)} note: {printable(note)}" for note in problem.notes]
    for index, help in enumerate(problem.helps):
        lines.append(f"{paint('help', _GREEN)}: {printable(help)}" if index == 0 else f"      {printable(help)}")
    return lines


def _excerpt(word: int, argv: Sequence[str], width: int) -> tuple[str, tuple[str, str]]:
    """The command line, cut around the word to `width` columns, and what goes below it: blanks and marks."""
    shown = ["ddp-run", *(_shell_word(each) for each in argv)]
    target = min(word + 1, len(shown))
    before = " ".join(shown[:target]) + " "
    # One past the last word: something is missing there.
    focus = shown[target] if target < len(shown) else " "
    after = " ".join(["", *shown[target + 1 :]])
    focus = _cut(focus, max(8, width // 2))
    room = max(0, width - len(focus))
    keep_before = max(room - len(after), room * 2 // 3)
    if len(before) > keep_before:
        before = "…" + before[len(before) - keep_before + 1 :]
    after = _cut(after, max(0, room - len(before)))
    return (before + focus + after).rstrip(), (" " * len(before), "^" * len(focus))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _shell_word(word: str) -> str:
    import shlex

    return shlex.quote(printable(word))


def printable(text: str) -> str:
    """The text without control characters or lone surrogates: they are shown as escapes."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode("ascii")
        for char in text
    )


def why_not_here(platform: str) -> str | None:
    """A line for people if the kernel lacks what ddp-run needs to start and watch jobs: pidfd, subreapers, /proc."""
    if platform.startswith("linux"):
        return None
    return f"ddp-run: jobs are started on Linux only, and this is {platform}: use torchrun here\n"
