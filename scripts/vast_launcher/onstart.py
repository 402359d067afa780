"""The on-start script of an instance: settings, then scripts/vast_onstart.sh; packed to be sent. Pure."""

from __future__ import annotations

import base64
import gzip
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from ddp_run.values.redaction import redact
from vast_launcher.config import LaunchConfig

MOST_CHARACTERS = 4048
"""Of Vast.ai's field `onstart` (docs.vast.ai, API reference)."""


@dataclass(frozen=True, slots=True)
class OnStart:
    """What the instance runs at each boot. `secrets`: by name, what is never shown."""

    settings: Mapping[str, str]
    secrets: Mapping[str, str]
    hook: str
    """The text of scripts/vast_onstart.sh."""

    def shown(self) -> str:
        """For people: the settings with hidden secrets, and a line that stands for the hook."""
        hidden = {name: f"(hidden: {len(value)} characters)" for name, value in self.secrets.items()}
        settings = {name: redact(value) for name, value in self.settings.items()}
        return _exports(settings) + _exports(hidden) + "# then scripts/vast_onstart.sh, without its comments\n"

    def packed(self) -> str:
        """What is sent: one line for a shell, as Vast.ai recommends for what is long.

        Raises ValueError where it is too long for Vast.ai.
        """
        code = "".join(line for line in self.hook.splitlines(keepends=True) if not line.lstrip().startswith("#"))
        whole = _exports(self.settings) + _exports(self.secrets) + code
        words = base64.b64encode(gzip.compress(whole.encode(), 9, mtime=0)).decode()
        # The file has the secrets: for its owner only.
        file = "$HOME/.vast_onstart.sh"
        line = f'(umask 077; echo {words} | base64 -d | gzip -d > "{file}"); bash "{file}"'
        sent = f"#!/bin/bash\n{line}\n"
        if len(sent) > MOST_CHARACTERS:
            over = len(sent) - MOST_CHARACTERS
            raise ValueError(
                f"the on-start script has {over} characters more than the {MOST_CHARACTERS} that Vast.ai takes: put the"
                " setup commands into a file of your repository or image, or long values into variables of your account"
            )
        return sent


def _exports(values: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


def on_start(
    config: LaunchConfig,
    environ: Mapping[str, str],
    hook: str,
    *,
    launch_id: str,
    on_end: str,
    destroy_on_failure: bool,
) -> OnStart:
    """The script for one launch; only settings that differ from the hook's defaults."""
    settings = {
        "LAUNCH_ID": launch_id,
        "TRAIN_CMD": config.command,
        "INSTALL_FROM": config.install,
        "SETUP_CMD": "\n".join(config.setup),
        "WORK_DIR": config.work_dir,
        "UPLOAD_CMD": config.upload or "",
        "ON_END": on_end,
        "DESTROY_ON_FAILURE": "1" if destroy_on_failure else "",
        "RESUME": "1" if config.resume else "",
    }
    secrets = {name: environ[name] for name in config.pass_env}
    return OnStart({name: value for name, value in settings.items() if value}, secrets, hook)


def create_words(config: LaunchConfig, offer: str, label: str, onstart_file: str) -> tuple[str, ...]:
    """The words after `vastai` that rent `offer`. By a file, so that no secret stands in a command line here."""
    return (
        *("create", "instance", offer, "--image", config.image, "--disk", f"{config.disk_gb:g}", "--label", label),
        *("--onstart", onstart_file, "--ssh", "--direct", "--cancel-unavail", "--raw"),
    )
