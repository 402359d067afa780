"""How a shell's prompt looks in a copied terminal: part of patterns. Pure."""

from __future__ import annotations

PROMPT = r"(?:\([\w.\-]{1,40}\) )?\[?[\w.\-]{1,60}@[\w.\-]{1,60}[:~ ][^\n$#%]{0,200}[$#%] "
"""`user@host:~/job$ `, also behind an environment's name, and in brackets."""
