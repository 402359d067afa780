"""The commands besides a launch: explain and rules."""
