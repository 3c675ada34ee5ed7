"""Numbers over time: rollups of what workers did, samples of what waited, and how both become fewer."""
