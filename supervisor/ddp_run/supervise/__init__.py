"""A run and its attempts: processes are started, watched, ended, and started again."""
