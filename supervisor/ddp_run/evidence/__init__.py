"""After the end: what logs, the journal and the host say, gathered into one value."""
