"""What node 0 keeps of the other nodes: how they were compared, their verdicts, the last lines of the ranks named."""

from __future__ import annotations

from pathlib import Path

from ddp_run.judge.of_nodes import NodeReport
from ddp_run.record import file_names
from ddp_run.tell import verdict_file
from ddp_run.values.redaction import redact


def keep_facts(run_folder: Path, table: str) -> Path | None:
    """The comparison of the nodes; the file, or null where it cannot be written: the journal has it too."""
    folder = run_folder / file_names.NODES
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / file_names.FACTS
        path.write_text(redact(table), encoding="utf-8")
    except OSError:
        return None
    return path


def keep_report(run_folder: Path, report: NodeReport, last_lines: tuple[str, ...]) -> None:
    """A folder for the node. What cannot be written is left out: the journal has the verdict too."""
    if report.verdict is None:
        return
    folder = run_folder / file_names.NODES / f"node_{report.node_rank}"
    document = verdict_file.as_json(report.verdict, folder=f"{report.host}:{report.folder}")
    try:
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, exist_ok=True)
        verdict_file.write(folder / file_names.VERDICT, document)
        if last_lines:
            (folder / file_names.STDERR_END).write_text("\n".join(last_lines) + "\n", encoding="utf-8")
    except OSError:
        pass
