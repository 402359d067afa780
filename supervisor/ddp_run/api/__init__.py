"""For Python programs: a launch as a child process, and how it ended as a value."""
