"""The checks: one file each, found by being there. What reads the host is thin; what judges is a function of values."""
