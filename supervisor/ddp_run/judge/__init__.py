"""From evidence to a verdict: the catalogue of causes, who failed first, whether a retry helps."""
