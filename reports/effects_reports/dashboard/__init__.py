"""Pages of the dashboard about reports: runs, their chunks and their files."""
