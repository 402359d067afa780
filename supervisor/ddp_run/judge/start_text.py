"""Messages of shells, container runtimes and schedulers if no program started. Pure.

A program may survive such messages: a script continues after a command that it cannot find. So they count only if
almost nothing was written after them (`signs.said_last`). Sources: bash, dash and zsh; GNU coreutils, tar, rsync;
env(1); runc and crun, Docker's daemon; Apptainer, enroot and pyxis; slurmstepd, HTCondor's starter; uv, conda and Lmod.
"""

from __future__ import annotations

from ddp_run.judge.signs import Sign, like

_SHELL = r"(?:^|\s)[^\s:]{1,300}: "
_NAME = r"(?P<path>(?![-$])[^\s:'\"\u2018]{1,300})"
_QUOTE, _UNQUOTE = "['\"`\u2018]", "['\"`\u2019]"
_MISSING = "[Nn]o such file or directory"

NO_PROGRAM: tuple[Sign, ...] = (
    like(rf"{_SHELL}(?:line \d{{1,9}}: )?{_NAME}: command not found\s*$"),
    like(r"\bzsh(?::\d{1,9})?: command not found: (?P<path>\S{1,300})"),
    like(rf"{_SHELL}\d{{1,9}}: {_NAME}: not found\s*$"),
    Sign("failed to run command ", rf"failed to run command {_QUOTE}(?P<path>[^\n]{{1,300}}?){_UNQUOTE}: {_MISSING}"),
    Sign(
        "No such file or directory",
        rf"(?:^|/|\s)env: {_QUOTE}?(?P<path>[^\n:]{{1,300}}?){_UNQUOTE}?: {_MISSING}"
        rf"|(?:^|\s)-?(?:ba|da|z|k|c)?sh: (?P<script>[^\s:]{{1,300}}): {_MISSING}\s*$",
    ),
    like(r"bad interpreter(?:\((?P<path>[^)\n]{1,300})\))?: No such file or directory"),
    Sign(
        "no such file or directory",
        rf"(?:^|\s)exec (?P<path>/\S{{1,300}}): {_MISSING}\s*$|exec user process caused: \"?{_MISSING}"
        rf"|exec: \"(?P<program>[^\"\n]{{1,300}})\": (?:stat|lstat) [^\n]{{1,300}}: {_MISSING}"
        rf"|^FATAL:\s{{1,9}}stat (?P<started>\S{{1,300}}): {_MISSING}",
    ),
    like(r"Failed to execute '(?P<path>[^'\n]{1,300})'[^\n]{0,40}errno=2:"),
    like(r"executable file `(?P<path>[^`\n]{1,300})` not found in \$PATH"),
    like(r"Failed to spawn: `(?P<path>[^`\n]{1,300})`"),
    like(rf"Failed at step EXEC spawning (?P<path>\S{{1,300}}): {_MISSING}"),  # systemd
    like(rf"task \d{{1,9}} [^\n]{{0,200}}: start failed: (?P<path>[^\n]{{1,300}}): {_MISSING}"),  # Flux
    like(rf"execvp error on file (?P<path>\S{{1,300}}) \({_MISSING}\)"),  # MPICH
    like(r"(?P<path>text-generation-\w{1,20}) not found in PATH"),  # TGI's launcher
    # Open MPI's, below "mpirun was unable to find the specified executable file"
    like(r"^Executable: {1,10}(?P<path>\S{1,1000})$"),
    like(rf"{_NAME}: cannot execute: required file not found"),
)
"""Group `path`, `program`, `script` or `started`: what could not be started."""
NO_FILE: tuple[Sign, ...] = (
    Sign("mount source ", r"mount source (?P<path>[^\n]{1,1000}) doesn't exist"),
    like(r"(?:reading manifest \S{1,200} in|manifest for) (?P<path>\S{1,400}?):? [^\n]{0,80}manifest unknown"),
    like(r"Could not find conda environment: (?P<path>\S{1,1000})"),
    like(r"The following module\(s\) are unknown: \"(?P<path>[^\"\n]{1,300})\""),
    like(r"Not a conda environment: (?P<path>\S{1,1000})"),
    like(r"Cannot activate, prefix does not exist at: '(?P<path>[^'\n]{1,1000})'"),  # mamba
    like(r"Unable to locate a modulefile for '(?P<path>[^'\n]{1,300})'"),
    like(r"could not find a pyproject\.toml file in (?P<path>\S{1,1000})"),  # Poetry
    like(r"source path does not exist: (?P<path>[^\n]{1,1000}?)\.?\s*$"),
    like(r": mount src=(?P<path>[^\s,:]{1,1000})[^\n]{0,400}: not a directory"),
    like(r"failed to resolve reference \"(?P<path>[^\"\n]{1,400})\": [^\n]{1,400}: not found"),
    like(r"URL (?P<path>\S{1,400}) returned error code: 404"),
    like(r"hostPath type check failed: (?P<path>\S{1,1000}) is not a "),
    like(r"TERM_CWD_NOTEXIST: [^\n]{1,200}"),  # LSF
    Sign("URLs matched no objects or files"),  # gcloud
    like(r"sbatch: error: Unable to open file (?P<path>[^\n]{1,1000})"),
    like(r"\[ERROR\] No such file or directory: (?P<path>\S{1,1000})"),
    like(r"fatal: repository '(?P<path>[^'\n]{1,400})' not found"),
    like(r": can't cd to (?P<path>\S{1,1000})"),
    like(
        r"(?<!shared object )(?<!cannot remove ['\u2018])"
        rf"(?<![^\s:'\"\u2018`(])(?P<path>(?=\S{{0,200}}\w)[^\s:'\"\u2018`(]{{1,1000}})"
        rf"{_UNQUOTE}?(?:: Cannot open| failed)?: (?:\(errno 2\) )?{_MISSING}(?: \(2\))?[.\"')]{{0,3}}\s*$"
    ),
)
"""Group `path`: what is missing, if named."""
DENIED = Sign(
    "ermission denied",
    rf"(?:(?<![^\s:'\"\u2018`(])(?P<path>[^\s:'\"\u2018`(]{{1,1000}}){_UNQUOTE}?(?: failed)?: |\(errno=13: ')"
    r"(?P<what>[Pp]ermission denied)(?:: unknown)?[.\"')]{0,3}\s*$"
    r"|OSError: \[Errno 13\] Permission denied: '(?P<file>[^'\n]{1,1000})'",
)
SYNTAX: tuple[Sign, ...] = (
    like(rf"{_SHELL}(?:line )?\d{{1,9}}: (?P<what>[Ss]yntax error:? [^\n]{{1,200}})"),
    like(rf"{_SHELL}(?:line )?\d{{1,9}}: (?P<what>unexpected EOF while looking for matching[^\n]{{0,80}})"),
    like(rf"{_SHELL}line \d{{1,9}}: (?P<what>(?:--?[a-z]|\$'\\r')[^\s:]{{0,100}}: command not found)"),
    like(rf"{_SHELL}(?:line )?\d{{1,9}}: (?P<what>\w{{1,100}}: unbound variable)"),
    like(rf"{_SHELL}\d{{1,9}}: (?P<what>\w{{1,100}}: parameter not set)"),
    like(r"sbatch: error: (?P<what>This does not look like a batch|Batch script contains DOS line)"),
    *(
        Sign(
            words,
            rf"\b(?:sbatch|srun|salloc): error: {words}[^:\n]{{0,40}}: (?P<what>(?:Invalid|More"
            r"|Requested (?!nodes are)"
            r"|Memory required|Job violates|Access/permission|Node count|User's group|CPU count|Insufficient GRES"
            r"|Job size|Job script)[^\n]{1,160})",
        )
        for words in ("Batch job submission failed", "Unable to create step for job", "Unable to allocate resources")
    ),
    like(r"\b(?:sbatch|srun|salloc): (?P<what>unrecognized option '[^'\n]{1,100}')"),
)
"""Group `what`: the shell's message."""
