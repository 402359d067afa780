"""Runs inside the training process: standard library only, Python 3.8 and later, invisible to the program.

Every line here can break a user's training. Set-up steps that fail are skipped, and tests compare the program with
plain Python property by property (tests/system/test_fidelity.py, tests/process/test_bootstrap.py).

A rank imports nothing of this folder by name: `__main__.py` loads the other files by path, so they show neither in
`sys.path` nor in `sys.modules`. (The supervisor imports `board`; `training` imports `reducer` if the program asks.)
"""
