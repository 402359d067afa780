"""The page as HTML: one file, whose own style and script are the only ones that its policy allows."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ddp_run import __version__
from ddp_run.tell.page.drawing import HEIGHT, WIDTH, bars, ticks
from ddp_run.tell.page.page import Page
from ddp_run.tell.page.timeline import KINDS

if TYPE_CHECKING:
    import jinja2


def load() -> None:
    """Load what the first page takes time for."""
    _template()


def rendered(page: Page, *, links: bool) -> str:
    """The whole file. `links`: it will be in the run's folder, so paths in it can be links."""
    return _template().render(page=page, links=links)


@cache
def _template() -> jinja2.Template:
    """The template, with what is the same on all pages."""
    import jinja2
    from markupsafe import Markup

    here = Path(__file__).parent
    style, script, template = (
        (here / name).read_text(encoding="utf-8") for name in ("page.css", "page.js", "page.html.j2")
    )
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(
        bars=bars,
        ticks=ticks,
        KINDS=KINDS,
        WIDTH=WIDTH,
        HEIGHT=HEIGHT,
        version=__version__,
        style=Markup(style),  # noqa: S704  # files of this package
        script=Markup(script),  # noqa: S704
        style_hash=_hash(style),
        script_hash=_hash(script),
    )
    return environment.from_string(template)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
