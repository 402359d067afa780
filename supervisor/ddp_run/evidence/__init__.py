"""Collects what logs, the journal and the host show after an attempt, in one value."""
