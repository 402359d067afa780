"""From options and what this host is like to a launch plan; checks before the start."""
