"""The catalogue of causes: one file per cause, found by being here (`ddp_run.judge.catalogue`).

A file holds `RULE`, what it is asked (at least one of `QUESTIONS`), `SIGNS` where it looks for words in logs, so that a
scanner finds them in a log of any size, and the cause's page as its docstring: a line, then the sections "What
happened", "How to recognise it" and "What to do". A sample goes with it: a folder of `tests/rules/samples/` with a log
(`log.txt`, or what a run left) and `expect.toml`. `scripts/gen_docs` makes the page and the index.
"""

QUESTIONS = ("match", "match_launch", "match_stop")
"""Of a rank's death and the attempt; of an attempt in which no death tells; of an order to stop. Each gives a `Finding`
or null. A function that begins otherwise is the file's own business and begins with `_`."""
