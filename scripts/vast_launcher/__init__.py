"""The parts of scripts/vast_launch.py. They run on the user's own computer: standard library only, nothing of Linux."""
