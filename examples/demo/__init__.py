"""The demo: sign-ups, real events to three partners and a large report, all on this machine, each accounted for."""
