"""Turns options and host facts into a launch plan, and checks both before the start."""
