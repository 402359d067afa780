"""The ranks' lines on the terminal: prefixed, collapsed, progress bars kept in place; and ddp-run's own lines.

Only `show_rest`, `flush` and `finish` wait for a slow reader, and only as long as the caller allows. What can't be
written stays in the ranks' files: `outlets.taking` says which streams to read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, final

from ddp_run.tell.held_lines import Collapser, Group
from ddp_run.tell.outlet import LeftS, Outlet, Outlets
from ddp_run.tell.selection import Prefix, Shown, label, prefixed, shown_by
from ddp_run.tell.tail import Chunk
from ddp_run.values.lines import MAX_HELD, STREAMS, LineBuffer, Stream, readable
from ddp_run.values.terminal import fitting

_FLOOD: Final = 64 << 10
_FLOOD_LINES: Final = 4096
"""Comparing a line takes 10 to 20 µs, and the loop must be there when ranks die."""
_MAX_WAITING_LINES: Final = 512
_SILENCE_S: Final = 2.0
_RAW_SILENCE_S: Final = 0.2
"""After this long without more of it, a line is shown without its end: it may be a prompt."""
_REDRAW_S: Final = 0.1
_STATE_S: Final = 10.0
_LEFT_S: Final = 30.0
"""A bar that hasn't moved for this long gives way to one that does."""
_ERASE: Final = b"\r\x1b[K"

Read = Callable[[Collection[Stream]], Iterable[Chunk]]
"""Returns more of these streams, or nothing at their end."""


@final
@dataclass(slots=True)
class _Source:
    """One stream of one rank."""

    rank: int
    stream: Stream
    prefix: bytes
    shown: bool
    lines: LineBuffer
    fed_at: float = 0.0

    @property
    def is_partial(self) -> bool:
        """Whether it holds an unfinished line that isn't a progress bar."""
        return bool(self.lines.held) and not self.lines.progress


@final
class Console:
    """Shows what the ranks write, with ddp-run's own lines in between.

    Every `now` is in seconds of a monotonic clock. After each call, wait until `deadline` or until the `outlets` are
    writable, then `tick`. Wait also for input of the streams that they are `taking`.
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
        raw: bool = False,
    ) -> None:
        """`ranks`: how many are shown, if known. `force_colour` passes their colours into pipes and files too.

        `raw` passes everything they write.
        """
        self.ranks = ranks
        self._shown: Shown = shown or shown_by("all")
        self._prefix = prefix
        self._colour = colour
        self._force_colour = force_colour
        self._raw = raw
        self._silence_s = _RAW_SILENCE_S if raw else _SILENCE_S
        self.outlets = Outlets(stdout_fd, stderr_fd)
        self._sources: dict[tuple[int, Stream], _Source] = {}
        self._collapser = Collapser()
        self._batch: list[tuple[Stream | None, bytes | memoryview]] = []
        """The data to write, and its stream; None: a line from ddp-run itself."""
        self._drawn = b""
        self._redraw_at = 0.0
        self._state_at: float | None = None
        self._state_shown = b""
        self._status = b""
        """What `status` was given last."""

    # ------------------------------------------------------------------------------------------ the loop

    @property
    def is_on_terminal(self) -> bool:
        """Whether one of its streams is a terminal."""
        return self._live_outlet() is not None

    @property
    def deadline(self) -> float | None:
        """When `tick` is due even if nothing comes; None: never."""
        times = [source.fed_at + self._silence_s for source in self._sources.values() if source.is_partial]
        if self._collapser.deadline is not None:
            times.append(self._collapser.deadline)
        live = self._live_outlet()
        if live is None:
            times.extend(() if self._state_at is None else (self._state_at,))
        elif not live.pending and self._live_text(live) != self._drawn:
            times.append(self._redraw_at)
        return min(times, default=None)

    def feed(self, chunks: Iterable[Chunk], now: float) -> None:
        """Show these chunks. More than 64 KiB or 4096 lines at once aren't compared between ranks."""
        chunks = list(chunks)
        flood = sum(len(chunk.data) for chunk in chunks) > _FLOOD
        flood = flood or sum(chunk.data.count(b"\n") for chunk in chunks) > _FLOOD_LINES
        for chunk in chunks:
            source = self._source(chunk)
            if not source.shown:
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
            elif source.is_partial and now >= source.fed_at + self._silence_s:
                self._end_line(source, now)
        self._emit_groups(self._collapser.due(now, self._shown_ranks()))
        if self._live_outlet() is None:
            self._show_state(now)
        self._settle(now)

    def replay(self, chunks: Iterable[Chunk], now: float) -> None:
        """Show chunks of an attempt that has ended, including streams that weren't selected."""
        self.end_attempt(now)
        shown, self._shown = self._shown, shown_by("all")
        self.feed(chunks, now)
        self.end_attempt(now)
        self._shown = shown

    # ------------------------------------------------------------------------------------------ ddp-run's own

    def say(self, text: str, now: float) -> None:
        """Write lines from ddp-run itself to stderr, after everything that came before; a newline is added."""
        self._emit_groups(self._collapser.all())
        self._batch.append((None, text.encode("utf-8", "replace") + b"\n"))
        self._settle(now)

    def status(self, text: str, now: float) -> None:
        """Keep this line below all others, on a terminal; empty: none. A progress bar stands behind it."""
        self._status = text.encode("utf-8", "replace")
        self._settle(now)

    def end_attempt(self, now: float) -> None:
        """Show unfinished lines and remove progress bars: everything that the attempt's ranks wrote has been fed."""
        self._end_lines(STREAMS, now)
        self._sources.clear()
        self._state_at = None
        self._status = b""
        self._settle(now)

    def suspend(self) -> None:
        """Remove the live line before ddp-run stops itself; the next call draws it again."""
        self._erase()
        self.outlets.pump()

    def show_rest(self, read: Read, left_s: LeftS, streams: Collection[Stream] = STREAMS) -> bool:
        """Show everything that `read` still returns of these streams, whose writers are gone.

        Returns when all of it is written, and as much of the other streams as they took in that time; False if time
        ran out.
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
            outlets = [(stream, self.outlets.of(stream)) for stream in streams]
            if all(not outlet.pending and (stream in taking or outlet.gone) for stream, outlet in outlets):
                return True
            if not self.outlets.wait(left_s):
                return False

    def drop(self, streams: Collection[Stream]) -> tuple[int, int]:
        """Drop what waits for these streams, whose ranks have ended; returns the number of newlines and of bytes."""
        begun = sum(len(source.lines.rest()) for source in self._sources.values() if source.stream in streams)
        self._end_lines(streams, time.monotonic())
        lines, size = self.outlets.drop(streams)
        return lines, begun + size

    def unshown(self, chunks: Iterable[Chunk]) -> tuple[int, int]:
        """How many of these lines would have been shown, and their bytes."""
        shown = [chunk.data for chunk in chunks if self._source(chunk).shown]
        return sum(data.count(b"\n") for data in shown), sum(map(len, shown))

    def flush(self, left_s: LeftS) -> None:
        """Write what waits for stderr, where ddp-run's own lines go, while there's time."""
        while self.outlets.err.pending and self.outlets.wait(left_s):
            pass

    def finish(self, left_s: LeftS) -> int:
        """Flush for the last time; returns how many bytes were dropped."""
        self.end_attempt(time.monotonic())
        self.flush(left_s)
        dropped = self.outlets.pending
        for outlet in self.outlets:
            outlet.close()
        return dropped

    # ------------------------------------------------------------------------------------------ lines

    def _end_lines(self, streams: Collection[Stream], now: float) -> None:
        """Nothing more comes of these streams."""
        for source in self._sources.values():
            if source.stream in streams:
                self._end_line(source, now)
        self._emit_groups(self._collapser.all())
        self._settle(now)

    def _source(self, chunk: Chunk) -> _Source:
        key = (chunk.rank, chunk.stream)
        source = self._sources.get(key)
        if source is None:
            prefix = self._prefix(chunk.rank, chunk.local_rank) if self._prefix else label((chunk.rank,))
            shown = self._shown(chunk.rank, chunk.local_rank, chunk.stream)
            lines = LineBuffer(raw=self._raw)
            source = self._sources[key] = _Source(*key, prefix.encode("utf-8", "replace"), shown, lines)
        return source

    def _shown_ranks(self) -> int:
        return max(self.ranks, len({source.rank for source in self._sources.values() if source.shown}))

    def _show(self, source: _Source, block: bytes, now: float, flood: bool) -> None:
        """Show whole lines of one rank; `block` ends with a newline, unless all is passed as it is."""
        if self._raw:
            self._batch.append((source.stream, block))
            return
        block = readable(block, colour=self._colour and (self._force_colour or self.outlets.of(source.stream).tty))
        if flood or self._prefix is not None or self._shown_ranks() < 2:
            self._emit_groups(self._collapser.all())
            pieces = prefixed(block, source.prefix, once=self._prefix is None)
            self._batch += ((source.stream, piece) for piece in pieces)
            return
        for line in block[:-1].split(b"\n"):
            self._collapser.add(source.rank, source.stream, line.removeprefix(source.prefix), now)
            if len(self._collapser) > _MAX_WAITING_LINES:
                self._emit_groups(self._collapser.all())

    def _emit_groups(self, groups: list[Group]) -> None:
        self._batch += ((group.stream, label(group.ranks).encode() + group.text + b"\n") for group in groups)

    def _end_line(self, source: _Source, now: float) -> None:
        rest = source.lines.rest()
        if rest[-1:] == b"\n" or self._raw:  # empty lines, or all as it is
            self._show(source, rest, now, flood=False)
        elif readable(rest, colour=False).strip(b" "):
            self._show(source, rest + b"\n", now, flood=False)

    # ------------------------------------------------------------------------------------------ progress bars

    def _bar(self) -> tuple[Stream, bytes] | None:
        """The progress bar to show, that of the first rank with one: its stream, and its line without a newline."""
        bars = {key: source for key, source in self._sources.items() if source.lines.progress}
        newest = max((source.fed_at for source in bars.values()), default=0.0)
        for key in sorted(key for key, source in bars.items() if source.fed_at >= newest - _LEFT_S):
            state = readable(bars[key].lines.state(), colour=False).strip()
            if state:
                return bars[key].stream, bars[key].prefix + state
        return None

    def _show_state(self, now: float) -> None:
        """Without a terminal: the bar's state as a line, at most every 10 s."""
        bar = self._bar()
        if bar is None:
            self._state_at = None
        elif self._state_at is None:
            self._state_at = now + _STATE_S
        elif now >= self._state_at:
            self._state_at = now + _STATE_S
            stream, line = bar
            if line != self._state_shown:
                self._batch.append((stream, line + b"\n"))
                self._state_shown = line

    def _live_outlet(self) -> Outlet | None:
        return next((outlet for outlet in self.outlets if outlet.tty and not outlet.gone), None)

    def _live_text(self, live: Outlet) -> bytes:
        bar = self._bar()
        line = b"   ".join(filter(None, (self._status, b"" if bar is None else bar[1])))
        if not line:
            return b""
        try:
            columns = os.get_terminal_size(live.fd).columns or 80  # a pseudo-terminal without a size says 0
        except OSError:
            columns = 80
        return fitting(line, columns)

    # ------------------------------------------------------------------------------------------ writing

    def _settle(self, now: float) -> None:
        """Hand the batch over, keep the live line below it, write."""
        live = self._live_outlet()
        text = self._live_text(live) if live is not None else b""
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
