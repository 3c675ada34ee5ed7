"""The tables of the core and their constraints; the migrations build the same."""
