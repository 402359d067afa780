"""The nodes of one job agree: on who is here, on an end, on one verdict. Loaded only with several nodes.

To be read in this order. `join` says which side this node is on, `place` what a side starts with. `messages` has what
is said, `link` how. `agreement` has what both sides do, step by step; `hub` and `member` are the two sides. `roster`
has the nodes that the hub knows, `together` what shows only when all are seen together. `clocks` is about time,
`reach` about who answers where a node should be. docs/architecture.md follows a job from its first node to its end.
"""
