"""Reads logs of any launcher, as people paste them: who wrote a line, what was raised, how it ended."""
