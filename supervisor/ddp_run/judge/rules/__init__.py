"""The catalogue of causes: one file per cause, discovered by its presence here (`ddp_run.judge.catalogue`).

A file contains `RULE`, named after the file and its page; at least one of the functions in `QUESTIONS`; `SIGNS`, if it
searches logs for words, so that a scanner finds them in a log of any size, with the cause and advice of each, unless
these take more than the words (`ddp_run.judge.signs`: `meaning`, `matcher`); and, as its docstring, the cause's page: a
title line, then the sections "What happened", "How to recognise it" and "What to do". For pieces of logs it may have
`SYMPTOMS`, lines that count if the piece shows nothing else, and `FRAMES`, a pattern of frames (`file function`) that
show the operation where a traceback is cut off. Each rule has a sample: a folder in `tests/rules/samples/` with a log
(`log.txt`, or the files of a run) and `expect.toml`. `scripts/gen_docs` generates the page and the index.
"""

QUESTIONS = ("match", "match_launch", "match_stop")
"""Asked about a rank's death and the attempt; about an attempt without an informative death; about a request to stop.
Each returns a `Finding` or None. All other functions of a file are private and start with `_`."""
