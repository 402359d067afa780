"""Ranks' lines to the terminal: prefixed, collapsed, progress bars kept in place; and ddp-run's own lines.

Nothing here waits for a slow reader but `show_rest` and `finish`, and these as long as they are told to. What cannot
be written stays in the ranks' files: `outlets.taking` tells which of them to read on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final, final

from ddp_run.tell.line_form import fitting, label, prefixed
from ddp_run.tell.outlet import LeftS, Outlet, Outlets
from ddp_run.tell.selection import Prefix, Shown, shown_by
from ddp_run.tell.tail import Chunk
from ddp_run.values.lines import MAX_HELD, STREAMS, Collapser, Group, LineBuffer, RawLines, Stream, readable

_FLOOD: Final = 64 << 10
_FLOOD_LINES: Final = 4096
"""To compare one takes 10 to 20 µs: the loop must not be away when ranks die."""
_MAX_WAITING_LINES: Final = 512
_SILENCE_S: Final = 2.0
_REDRAW_S: Final = 0.1
_STATE_S: Final = 10.0
_LEFT_S: Final = 30.0
"""A bar that has not moved for so long gives way to one that does."""
_ERASE: Final = b"\r\x1b[K"

Read = Callable[[Collection[Stream]], Iterable[Chunk]]
"""Gives some more of these streams; nothing where they have no more."""


@final
class _Source:
    """One stream of one rank."""

    __slots__ = ("fed_at", "lines", "prefix", "rank", "shown", "stream")

    def __init__(self, rank: int, stream: Stream, prefix: bytes, shown: bool) -> None:
        self.rank = rank
        self.stream: Stream = stream
        self.prefix = prefix
        self.shown = shown
        self.lines = LineBuffer()
        self.fed_at = 0.0


@final
class Console:
    """Shows what the ranks write, and ddp-run's own lines between.

    Every `now` is in seconds of one clock that never goes back. After each call, wait until `deadline` (then `tick`),
    for the `outlets` to be writable (then `tick`), and for input of the streams that they are `taking`.
    """

    def __init__(
        self,
        stdout_fd: int,
        stderr_fd: int,
        *,
        ranks: int = 0,
        shown: Shown | None = None,
        prefix: Prefix | None = None,
        colour: bool = False,
        force_colour: bool = False,
        collapse: bool = True,
        raw: bool = False,
        width: int | None = None,
        stdout_tty: bool | None = None,
        stderr_tty: bool | None = None,
    ) -> None:
        """`ranks`: how many are shown, as far as known. `width`: columns, null: the terminal's own at any time.

        `force_colour`: ranks' colours pass also where there is no terminal. `raw`: all that they write passes.
        """
        self.ranks = ranks
        self._shown: Shown = shown or shown_by("all")
        self._prefix = prefix
        self._colour = colour
        self._force_colour = force_colour
        self._raw = RawLines() if raw else None
        self._width = width
        self._collapse = collapse and prefix is None
        self.outlets = Outlets(stdout_fd, stderr_fd, stdout_tty=stdout_tty, stderr_tty=stderr_tty)
        self._sources: dict[tuple[int, Stream], _Source] = {}
        self._seen: set[int] = set()
        self._collapser = Collapser()
        self._batch: list[tuple[Stream | None, bytes | memoryview]] = []
        """What is to be written where; null: a line of ddp-run's own."""
        self._drawn = b""
        self._redraw_at = 0.0
        self._state_at: float | None = None
        self._state_shown = b""

    # ------------------------------------------------------------------------------------------ the loop

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do though nothing came; null: never."""
        times = [source.fed_at + _SILENCE_S for source in self._sources.values() if self._is_partial(source)]
        if self._collapser.deadline is not None:
            times.append(self._collapser.deadline)
        if self._raw is not None and self._raw.deadline is not None:
            times.append(self._raw.deadline)
        live = self._live_outlet()
        if live is None:
            times.extend(() if self._state_at is None else (self._state_at,))
        elif not live.pending and self._live_text() != self._drawn:
            times.append(self._redraw_at)
        return min(times, default=None)

    def feed(self, chunks: Iterable[Chunk], now: float) -> None:
        """Show what has come. Past 64 KiB or 4096 lines at once, they are not compared between ranks."""
        chunks = list(chunks)
        flood = sum(len(chunk.data) for chunk in chunks) > _FLOOD
        flood = flood or sum(chunk.data.count(b"\n") for chunk in chunks) > _FLOOD_LINES
        for chunk in chunks:
            source = self._source(chunk)
            if not source.shown:
                continue
            if self._raw is not None:
                self._batch.append((chunk.stream, self._raw.take(chunk.rank, chunk.stream, chunk.data, now)))
                continue
            if chunk.fresh:
                self._end_line(source, now)
            block = source.lines.take(chunk.data)
            source.fed_at = now
            if block:
                self._show(source, block, now, flood)
            if source.lines.held > MAX_HELD // len(self._sources):
                self._end_line(source, now)
        self.tick(now)

    def tick(self, now: float) -> None:
        """Show what has waited long enough, redraw the live line, write what can be written."""
        taking = self.outlets.taking
        for source in self._sources.values():
            if source.stream not in taking:
                source.fed_at = now  # the rest of its line may be in the file
            elif self._is_partial(source) and now >= source.fed_at + _SILENCE_S:
                self._end_line(source, now)
        self._emit_groups(self._collapser.due(now, self._shown_ranks()))
        if self._raw is not None:
            self._batch += self._raw.due(now)
        if self._live_outlet() is None:
            self._show_state(now)
        self._settle(now)

    def replay(self, chunks: Iterable[Chunk], now: float) -> None:
        """Show chunks of an attempt that has ended, whatever `shown` says."""
        self.end_attempt(now)
        shown, self._shown = self._shown, shown_by("all")
        self.feed(chunks, now)
        self.end_attempt(now)
        self._shown = shown

    # ------------------------------------------------------------------------------------------ ddp-run's own

    def say(self, text: str, now: float) -> None:
        """Write lines of ddp-run's own to stderr, after everything that came before; a newline is added."""
        self._emit_groups(self._collapser.all())
        self._batch.append((None, text.encode("utf-8", "replace") + b"\n"))
        self._settle(now)

    def end_attempt(self, now: float) -> None:
        """All that the attempt's ranks wrote has been fed: show unfinished lines and take progress bars down."""
        self._end_lines(STREAMS, now)
        self._sources.clear()
        self._seen.clear()
        self._state_at = None
        self._settle(now)

    def suspend(self) -> None:
        """Take the live line down before ddp-run stops itself; the next call draws it again."""
        self._erase()
        self.outlets.pump()

    def show_rest(self, read: Read, left_s: LeftS, streams: Collection[Stream] = STREAMS) -> bool:
        """Show all that `read` still gives of the streams; the writers are gone. False: no time was left for it.

        Returns when all of `streams` is written; of the others as much as they took meanwhile.
        """
        while True:
            taking = self.outlets.taking
            chunks = list(read(taking))
            self.feed(chunks, time.monotonic())
            if chunks:
                if left_s() <= 0:
                    return False
                continue
            self._end_lines(taking, time.monotonic())
            through = (
                not (outlet := self.outlets.of(stream)).pending and (stream in taking or outlet.gone)
                for stream in streams
            )
            if all(through):
                return True
            if not self.outlets.wait(left_s):
                return False

    def drop(self, streams: Collection[Stream]) -> tuple[int, int]:
        """Throw away what waits of these streams, whose ranks have ended: how many line ends, and bytes."""
        begun = sum(len(source.lines.rest()) for source in self._sources.values() if source.stream in streams)
        self._end_lines(streams, time.monotonic())
        lines, size = self.outlets.drop(streams)
        return lines, begun + size

    def unshown(self, chunks: Iterable[Chunk]) -> tuple[int, int]:
        """How many lines of these would be shown, and their bytes."""
        shown = [chunk.data for chunk in chunks if self._source(chunk).shown]
        return sum(data.count(b"\n") for data in shown), sum(map(len, shown))

    def flush(self, left_s: LeftS) -> bool:
        """Write what waits to go where ddp-run's own lines go; False where no time was left for it."""
        while self.outlets.err.pending:
            if not self.outlets.wait(left_s):
                return False
        return True

    def finish(self, left_s: LeftS) -> int:
        """As `flush`; nothing comes after. Returns the number of bytes that were given up."""
        self.end_attempt(time.monotonic())
        self.flush(left_s)
        given_up = self.outlets.pending
        for outlet in self.outlets:
            outlet.close()
        return given_up

    # ------------------------------------------------------------------------------------------ lines

    def _end_lines(self, streams: Collection[Stream], now: float) -> None:
        """Nothing more comes of these streams."""
        for source in self._sources.values():
            if source.stream in streams:
                self._end_line(source, now)
        if self._raw is not None:
            self._batch += self._raw.rest(streams)
        self._emit_groups(self._collapser.all())
        self._settle(now)

    def _source(self, chunk: Chunk) -> _Source:
        key = (chunk.rank, chunk.stream)
        source = self._sources.get(key)
        if source is None:
            prefix = self._prefix(chunk.rank, chunk.local_rank) if self._prefix else label((chunk.rank,))
            shown = self._shown(chunk.rank, chunk.local_rank, chunk.stream)
            source = _Source(chunk.rank, chunk.stream, prefix.encode("utf-8", "replace"), shown)
            self._sources[key] = source
            if shown:
                self._seen.add(chunk.rank)
        return source

    def _shown_ranks(self) -> int:
        return max(self.ranks, len(self._seen))

    def _show(self, source: _Source, block: bytes, now: float, flood: bool) -> None:
        """Show whole lines of one rank; `block` ends with a newline."""
        block = readable(block, colour=self._colour and (self._force_colour or self.outlets.of(source.stream).tty))
        if flood or not self._collapse or self._shown_ranks() < 2:
            self._emit_groups(self._collapser.all())
            for piece in prefixed(block, source.prefix, own=self._prefix is None):
                self._batch.append((source.stream, piece))
            return
        for line in block[:-1].split(b"\n"):
            self._collapser.add(source.rank, source.stream, line.removeprefix(source.prefix), now)
            if len(self._collapser) > _MAX_WAITING_LINES:
                self._emit_groups(self._collapser.all())

    def _emit_groups(self, groups: list[Group]) -> None:
        for group in groups:
            line = label(group.ranks).encode() + group.text + b"\n"
            self._batch.append((group.stream, line))

    def _is_partial(self, source: _Source) -> bool:
        return bool(source.lines.held) and not source.lines.progress

    def _end_line(self, source: _Source, now: float) -> None:
        rest = source.lines.rest()
        if rest[-1:] == b"\n":  # empty lines
            self._show(source, rest, now, flood=False)
        elif readable(rest, colour=False).strip(b" "):
            self._show(source, rest + b"\n", now, flood=False)

    # ------------------------------------------------------------------------------------------ progress bars

    def _first_state(self) -> tuple[_Source, bytes] | None:
        bars = {key: source for key, source in self._sources.items() if source.lines.progress}
        newest = max((source.fed_at for source in bars.values()), default=0.0)
        for key in sorted(key for key, source in bars.items() if source.fed_at >= newest - _LEFT_S):
            state = readable(bars[key].lines.state(), colour=False).strip()
            if state:
                return bars[key], state
        return None

    def _show_state(self, now: float) -> None:
        """Off a terminal: the first bar's state as a line, at most every 10 s."""
        found = self._first_state()
        if found is None:
            self._state_at = None
        elif self._state_at is None:
            self._state_at = now + _STATE_S
        elif now >= self._state_at:
            source, state = found
            self._state_at = now + _STATE_S
            line = source.prefix + state + b"\n"
            if line != self._state_shown:
                self._batch.append((source.stream, line))
                self._state_shown = line

    def _live_outlet(self) -> Outlet | None:
        for outlet in self.outlets:
            if outlet.tty and not outlet.gone:
                return outlet
        return None

    def _live_text(self) -> bytes:
        found = self._first_state()
        if found is None:
            return b""
        source, state = found
        return fitting(source.prefix + state, self._columns())

    def _columns(self) -> int:
        if self._width is not None:
            return self._width
        outlet = self._live_outlet()
        try:
            # A pseudo-terminal that nobody gave a size says 0.
            return (os.get_terminal_size(outlet.fd).columns if outlet else 0) or 80
        except OSError:
            return 80

    # ------------------------------------------------------------------------------------------ writing

    def _settle(self, now: float) -> None:
        """Hand the batch over, keep the live line below it, write."""
        live = self._live_outlet()
        text = self._live_text() if live is not None else b""
        redraw = text != self._drawn and now >= self._redraw_at and live is not None and not live.pending
        if self._batch or redraw:
            self._erase()
            for stream, data in self._batch:
                self.outlets.of(stream).put(data, stays=stream is None)
            self._batch.clear()
            if live is not None and text:
                live.put(text)
                self._drawn = text
                self._redraw_at = now + _REDRAW_S
        self.outlets.pump()

    def _erase(self) -> None:
        live = self._live_outlet()
        if self._drawn and live is not None:
            live.put(_ERASE, stays=True)
        self._drawn = b""
