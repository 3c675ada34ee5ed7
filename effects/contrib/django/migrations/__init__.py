"""One migration for each release that brings revisions."""
