"""How a request leaves: only to vetted addresses, within one deadline, over one small pool for each origin."""
