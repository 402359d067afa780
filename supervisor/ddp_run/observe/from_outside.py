"""Looks at ranks that another ddp-run supervises: reads their boards, and asks for their stacks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from ddp_run.observe.boards import Boards
from ddp_run.observe.close_look import CloseLook
from ddp_run.observe.movement import close_look
from ddp_run.rank.board import is_private
from ddp_run.record.events import RankStarted, RunStarted
from ddp_run.record.journal import now


def boards_of(run: RunStarted, run_folder: Path, *, may_ask: bool) -> Boards:
    """The boards of a run on this host. Anybody can write a journal: only this user's private folders count."""
    return Boards([Path(each) for each in run.boards if _is_ours(each)], run_folder, may_ask=may_ask)


def look_now(run: RunStarted, run_folder: Path, alive: Sequence[RankStarted]) -> list[CloseLook]:
    """What each of these ranks does, and its stack. Takes 0.2 s, and one second if some rank doesn't answer."""
    with closing(boards_of(run, run_folder, may_ask=True)) as boards:
        boards.open(alive)
        before, asked_at = boards.seen(alive), now()
        for pause_s in boards.ask_for_stacks(alive, now):
            time.sleep(pause_s)
        after, apart_s = boards.seen(alive), (now() - asked_at) / 1e9
        ranks, looks = {event.pid: event.rank for event in alive}, []
        for rank, seen in sorted(after.items()):
            look = close_look(rank, (None, before[rank][1]), seen, apart_s, ranks)
            board = boards.get(rank)
            looks.append(replace(look, unseen=board is None, silent=board is not None and board.is_silent(now())))
    return looks


def _is_ours(folder: str) -> bool:
    try:
        return is_private(folder)
    except (OSError, ValueError):
        return False
