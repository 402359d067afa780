"""The page of a run, `report.html`: one file that needs no network, and no script to be read."""
