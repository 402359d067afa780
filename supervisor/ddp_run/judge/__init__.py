"""Turns evidence into a verdict: the catalogue of causes, which rank failed first, whether a retry helps."""
