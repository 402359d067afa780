"""Messages of programs about a missing file or folder, in exceptions of any class, with the path. Pure.

The words alone are ambiguous (a column, a key or a version is also "not found"). They count only next to a path, or
next to a word for something on a disk.
"""

from __future__ import annotations

from ddp_run.judge.signs import Sign, like

_RAISED = frozenset(
    {
        "AssertionError",
        "CheckpointingException",
        "DatasetNotFoundError",
        "EnvironmentError",
        "Exception",
        "IOError",
        "NotFoundError",
        "OSError",
        "RuntimeError",
        "ValueError",
    }
)
"""Exception classes that programs use for it."""
_FROM_ROOT = r"(?:~|\.{1,2})?/(?:[^\s'\"`:,;()]{0,400}[^\s'\"`:,;().!?])?"
_FILE = (
    r"(?:[\w.\-]{1,100}/){0,20}[\w\-][\w.\-]{0,100}\."
    r"(?:bin|ckpt|csv|flac|gguf|h5|hdf5|idx|ini|jpe?g|jsonl?|keras|lmdb|mp[34]|npy|npz|onnx|parquet|pickle|pkl|png|pth?"
    r"|safetensors|tar|tfrecord|toml|tsv|txt|wav|ya?ml|zip)\b"
)
_RELATIVE = r"[\w.\-]{1,100}(?:/[\w.\-]{0,99}[\w\-]){1,20}"
_KIND = (
    r"(?:annotation|archive|checkpoint|database|data ?set|data|dir|directorie|directory|file|folder|image|index|label"
    r"|manifest|model|path|shard|video|weight)s?"
)
_PLACE = rf"['\"`]?(?P<path>{_FROM_ROOT}|{_FILE})"
_NAMED = rf"['\"`]?(?P<path>{_FROM_ROOT}|{_FILE}|{_RELATIVE})"
_ENOENT = "No such file or directory"
_OF_CLASS = (
    r"^(?![\w.]{0,200}FileNotFoundError)[\w.]{1,200}(?:Error|Exception): "
    r"(?![^\n]*(?:shared (?:object|memory)|fatal error:|Error compiling|\.so\b|/dev/shm))"
)
"""For classes without that meaning, so a line alone proves nothing. Excludes libraries, headers and shared memory."""
_ABSENT = r"(?:not found|(?:can ?not|could not) be found|(?:does not|doesn't|(?<!must )(?<!should )not) exists?)"


_SAID = (
    # the path, and that it is missing
    rf"(?<![^\s'\"`(]){_PLACE}['\"`]?\)?,? (?:is |was )?{_ABSENT}\b",
    # the kind, the path, and that it is missing; servers have model names that look like paths
    rf"\b(?!(?i:model))(?i:{_KIND}) {_NAMED}['\"`]? (?:is |was )?{_ABSENT}\b",
    # the kind, that it is missing, and the path
    rf"\b(?i:{_KIND})\b[^\n:]{{0,40}} {_ABSENT}(?:!|[^\n:/'\"]{{0,30}}:| (?:at|under)[a-z ]{{0,30}}) ?{_NAMED}",
    # the kind, and the folder that does not contain it
    rf"\b(?:checkpoint|directory|file|folder)s? {_ABSENT} in {_NAMED}",
    rf"\b(?i:can(?:not|'t)|can not|could ?n(?:o|')t|unable to|failed to) (?:find|locate) "
    rf"(?:(?:\w{{1,40}} ){{0,4}}?{_KIND}(?: \w{{1,40}}){{0,2}}:? {_NAMED}|['\"`]?(?P<file>{_FILE}))",
    rf"\b[Nn]o (?:such )?(?:\w{{1,40}} ){{0,4}}?{_KIND}(?: [^\n/'\"]{{0,80}}found (?:in|at) |: ){_NAMED}",
    rf"Found 0 (?:\w{{1,40}} )?{_KIND} in [^\n/'\"]{{0,40}}{_NAMED}",
    rf"(?<![^\s'\"`(]){_PLACE}['\"`]? (?:is not a directory|cannot be opened)",
    rf"\bnon-existent directory: {_NAMED}",
    r"(?:Not found|NOT_FOUND): {1,2}(?P<path>\S{1,1000}); No such file or directory",
    rf"(?<![^\s'\"`(]){_PLACE}['\"`]? does not contain any [^\n]{{0,60}}\bfiles?\b",
    rf"\bmissing path {_NAMED}",
    r"Image Not Found (?P<path>\S{1,400})",  # Ultralytics
)
SIGNS = (
    *(Sign("", said, _RAISED) for said in _SAID),
    like(  # the words of C and C++ libraries in custom exception classes
        rf"{_OF_CLASS}(?:[^\n]{{0,400}}?(?<![^\s'\"`(]){_PLACE}['\"`]?[^\n/]{{0,40}}|[^\n]{{0,1000}}){_ENOENT}",
    ),
)
"""Group `path`, if it is shown."""
