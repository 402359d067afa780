"""Parses pasted logs of any launcher: who wrote a line, what was raised, how it ended."""
