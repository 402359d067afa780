"""What a run leaves behind: its events, its journal, its folder."""
