"""What a run that is ready gives: its file, links to it, downloads, and a preview before."""
