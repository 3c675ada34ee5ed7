"""The database: the only place of the core that writes SQL."""
