"""Runs inside the training process: standard library only, Python 3.8 and later, nothing that a program could see.

Every line here can break a user's training: set-up steps are skipped when they fail, and what runs the program is
compared with plain Python property by property (tests/system/test_fidelity.py, tests/process/test_bootstrap.py).

Nothing in this folder is imported by name in a rank: `__main__.py` loads the other files by path, so that neither
`sys.path` nor `sys.modules` shows them. (`training` imports `reducer`, where the program asks for it.)
"""
