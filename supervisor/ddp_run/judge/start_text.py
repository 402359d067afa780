"""Messages of shells, container runtimes, schedulers and package installers if no program started. Pure.

A program may survive such messages: a script continues after a command that it cannot find. So they count only if
almost nothing was written after them (`signs.said_last`). Sources: bash, dash and zsh; GNU coreutils, tar, rsync;
env(1), systemd (src/core/execute.c); runc and crun, Docker's and containerd's daemons, nvidia-container-cli; Apptainer,
enroot and pyxis; slurmstepd, HTCondor's starter, Flux' shell; kubelet's events; pip, uv, conda and mamba; Lmod and
Environment Modules.
"""

from __future__ import annotations

from ddp_run.judge.signs import URL, Sign, like

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
    Sign("bad interpreter", r"bad interpreter(?:\((?P<path>[^)\n]{1,300})\))?: No such file or directory"),
    like(rf"Failed at step EXEC spawning (?P<path>\S{{1,300}}): {_MISSING}"),
    Sign(
        "no such file or directory",
        rf"(?:^|\s)exec (?P<path>/\S{{1,300}}): {_MISSING}\s*$|exec user process caused: \"?{_MISSING}"
        rf"|exec: \"(?P<program>[^\"\n]{{1,300}})\": (?:stat|lstat) [^\n]{{1,300}}: {_MISSING}"
        rf"|^FATAL:\s{{1,9}}stat (?P<started>\S{{1,300}}): {_MISSING}",
    ),
    like(r"Failed to execute '(?P<path>[^'\n]{1,300})'[^\n]{0,40}errno=2:"),
    Sign(": start failed: ", rf"task \d{{1,9}} [^\n]{{0,200}}: start failed: (?P<path>[^\n]{{1,300}}): {_MISSING}"),
    Sign("executable file `", r"executable file `(?P<path>[^`\n]{1,300})` not found in \$PATH"),
    like(r"Failed to spawn: `(?P<path>[^`\n]{1,300})`"),
    # Open MPI's, below "mpirun was unable to find the specified executable file"
    like(r"^Executable: {1,10}(?P<path>\S{1,1000})$"),
    Sign("execvp error on file ", rf"execvp error on file (?P<path>\S{{1,300}}) \({_MISSING}\)"),  # MPICH's
    like(rf"{_NAME}: cannot execute: required file not found"),
)
"""Group `path`, `program`, `script` or `started`: what could not be started."""
OBJECT_MISSING: tuple[Sign, ...] = (
    Sign("(NoSuch", r"An error occurred \((?P<path>NoSuchKey|NoSuchBucket)\) when calling"),
    Sign("fatal error: An error occurred (404)"),  # the command-line client: may be a check
    Sign("NoSuchKey (404)"),
    like(r"No URLs matched: (?P<path>\S{1,1000})"),
)
"""From object stores, as their clients raise and print it."""
NO_FILE: tuple[Sign, ...] = (
    Sign("mount source ", r"mount source (?P<path>[^\n]{1,1000}) doesn't exist"),
    Sign(": destination ", r"destination (?P<path>[^\s]{1,1000}) doesn't exist in container"),
    like(r"source path does not exist: (?P<path>[^\n]{1,1000}?)\.?\s*$"),
    like(r"(?:reading manifest \S{1,200} in|manifest for) (?P<path>\S{1,400}?):? [^\n]{0,80}manifest unknown"),
    like(r"failed to resolve reference \"(?P<path>[^\"\n]{1,400})\": [^\n]{1,400}: not found"),
    like(r"URL (?P<path>\S{1,400}) returned error code: 404"),
    like(r"hostPath type check failed: (?P<path>\S{1,1000}) is not a "),
    like(r"Could not find conda environment: (?P<path>\S{1,1000})"),
    like(r"Not a conda environment: (?P<path>\S{1,1000})"),
    like(r"Cannot activate, prefix does not exist at: '(?P<path>[^'\n]{1,1000})'"),
    like(r"The following module\(s\) are unknown: \"(?P<path>[^\"\n]{1,300})\""),
    like(r"Unable to locate a modulefile for '(?P<path>[^'\n]{1,300})'"),
    like(rf"Could not open stdout file (?P<path>[^\n]{{1,1000}}): {_MISSING}"),
    like(r"sbatch: error: Unable to open file (?P<path>[^\n]{1,1000})"),
    like(r"could not find a pyproject\.toml file in (?P<path>\S{1,1000})"),
    like(r"\[ERROR\] No such file or directory: (?P<path>\S{1,1000})"),
    like(r"URLs matched no objects or files"),
    like(r"fatal: repository '(?P<path>[^'\n]{1,400})' not found"),
    Sign(": mount src=", r": mount src=(?P<path>[^\s,:]{1,1000})[^\n]{0,400}: not a directory"),
    like(r": can't cd to (?P<path>\S{1,1000})"),
    like(r"TERM_CWD_NOTEXIST: [^\n]{1,200}"),
    *(
        Sign(
            words,
            r"(?<!shared object )(?<!cannot remove ['\u2018])"
            rf"(?<![^\s:'\"\u2018`(])(?P<path>(?=\S{{0,200}}\w)[^\s:'\"\u2018`(]{{1,1000}})"
            rf"{_UNQUOTE}?(?:: Cannot open| failed)?: (?:\(errno 2\) )?{words}(?: \(2\))?[.\"')]{{0,3}}\s*$",
        )
        for words in ("No such file or directory", "no such file or directory")
    ),
    like(
        r"(?:Could not open requirements file|FileNotFoundError): \[Errno 2\] No such file or directory:"
        r" '(?P<path>[^'\n]{1,1000})'"
    ),
)
"""Group `path`: what is missing, if named."""
DENIED: tuple[Sign, ...] = tuple(
    Sign(
        words,
        rf"(?:(?<![^\s:'\"\u2018`(])(?P<path>[^\s:'\"\u2018`(]{{1,1000}}){_UNQUOTE}?(?: failed)?: |\(errno=13: ')"
        rf"(?P<what>{words})(?:: unknown)?[.\"')]{{0,3}}\s*$"
        rf"|OSError: \[Errno 13\] {words}: '(?P<file>[^'\n]{{1,1000}})'",
    )
    for words in ("Permission denied", "permission denied")
)
UNREACHABLE: tuple[Sign, ...] = (
    Sign("toomanyrequests: "),
    like(r"dial tcp \S{1,300}[^\n]{0,200}: (?P<why>i/o timeout|connect: [a-z ]{1,40}|no such host)"),
    like(r"(?P<why>net/http: (?:request canceled|TLS handshake timeout)[^\n]{0,100})"),
    like(rf"URL {URL}\S* returned error code: (?P<status>429|5\d\d)", cause="{who} got HTTP {status} from {to}"),
    # pip's; it tries again, and then only says that it found no version
    like(r"Retry\(total=\d+[^\n]{0,200}after connection broken by '(?P<why>[^\n]{1,200})'"),
    like(r"(?P<why>Could not resolve host: (?P<host>[\w.\-]{1,255}))"),
    like(r"curl: \((?:5|7|16|28|35|52|56|92)\) (?P<why>[^\n]{1,100})"),
    like(r"unable to resolve host address [`'\u2018](?P<host>[\w.\-]{1,255})"),
    like(rf"E: Failed to fetch {URL}"),
)
"""Groups `url`, `host`, `status`, `why`."""
REFUSED: tuple[Sign, ...] = (
    Sign("Permission denied (publickey"),
    like(rf"could not read Username for '{URL}"),
    Sign("fatal error: Unable to locate credentials"),
    Sign("This request is not authorized to perform this"),
)
FULL: tuple[Sign, ...] = (
    Sign("no space left on device"),
    like(r"Not enough space left in (?P<path>\S{1,1000})"),
    Sign("isk full while running job"),
    Sign("nsufficient disk space"),
    Sign("Job has exceeded allocated disk"),
    Sign("The node was low on resource: ephemeral-storage"),
    Sign("phemeral local storage usage exceeds"),
    Sign("exceeds the limit", r"Usage of EmptyDir volume \"(?!\w{0,40}shm)[^\"\n]{1,200}\" exceeds the limit"),
    Sign("The node had condition: [DiskPressure]"),
)
FAULTY: tuple[Sign, ...] = (
    *(
        Sign(words, rf"^\S{{1,300}}: [^\n]{{0,400}}: (?P<what>{words})\s*$")
        for words in (
            "Stale file handle",
            "Read-only file system",
            "Input/output error",
            "Transport endpoint is not connected",
        )
    ),
    like(r"nfs: server (?P<path>\S{1,300}) (?P<what>not responding, timed out)"),
    like(r"(?P<what>EXT4-fs error) \(device [^)\n]{1,80}\)"),
    Sign("LustreError: ", r"LustreError: [^\n]{1,200}(?P<what>This client was evicted by [\w\-]{1,80})"),
    like(r"mount\.nfs4?: (?P<what>Connection timed out|[^\n]{0,80}not responding)"),
    like(r"(?P<what>I/O error, dev \w{1,40})"),
)
"""Group `what`: the message of the file system or kernel."""
VERSIONS: tuple[Sign, ...] = (
    Sign("ERROR: No matching distribution found for "),
    Sign("ERROR: ResolutionImpossible"),
    Sign("is not a supported wheel on this platform"),
    like(r"ERROR: Package '[^'\n]{1,200}' requires a different Python"),
    Sign("No solution found when resolving dependencies"),
)
"""From installers: pip and uv."""
BUILDS: tuple[Sign, ...] = (
    like(r"Failed building wheel for (?P<name>[\w.\-]{1,100})"),
    like(r"Could not build wheels for (?P<name>[\w.\-]{1,100})"),
    like(r"Failed to build installable wheels[^\n]{0,100}"),
)
NO_LIBRARY: tuple[Sign, ...] = (
    like(r"error while loading shared libraries: (?P<library>[^\s:]{1,400}): cannot open shared object file"),
)
SYNTAX: tuple[Sign, ...] = (
    like(rf"{_SHELL}(?:line )?\d{{1,9}}: (?P<what>[Ss]yntax error:? [^\n]{{1,200}})"),
    Sign(
        "unexpected EOF while looking for matching",
        rf"{_SHELL}(?:line )?\d{{1,9}}: (?P<what>unexpected EOF while looking for [^\n]{{1,80}})",
    ),
    like(rf"{_SHELL}line \d{{1,9}}: (?P<what>(?:--?[a-z]|\$'\\r')[^\s:]{{0,100}}: command not found)"),
    like(rf"{_SHELL}(?:line )?\d{{1,9}}: (?P<what>\w{{1,100}}: unbound variable)"),
    like(rf"{_SHELL}\d{{1,9}}: (?P<what>\w{{1,100}}: parameter not set)"),
    like(r"sbatch: error: (?P<what>This does not look like a batch script)"),
    like(r"sbatch: error: (?P<what>Batch script contains DOS line breaks)"),
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
