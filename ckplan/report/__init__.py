"""Results for people (`text`) and for programs (`json`); both consume results and compute nothing."""
