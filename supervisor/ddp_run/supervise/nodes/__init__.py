"""The nodes of one job agree: on who is here, on an end, on one verdict. Loaded only with several nodes.

Read `join` first: it says which side this node is on. `agreement` has what both sides do, step by step; `hub` and
`member` are the two sides. `messages` has what is said, and `link` how.
"""
