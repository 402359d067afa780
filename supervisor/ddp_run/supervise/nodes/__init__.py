"""The nodes of one job agree: on who is here, on an end, on one verdict. Only with several nodes."""
