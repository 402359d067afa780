"""The nodes of one job agree: on who is here, on an end, on one verdict. Loaded only with several nodes.

To read it: `join` (which side this node is on), `agreement` (what both sides do, step by step), `hub` and `member`
(the two sides), `messages` and `link` (what is said, and how).
"""
