"""`effects demo`: real events to three partners on this machine. The only module that may import the packages."""
