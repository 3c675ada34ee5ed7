"""What effects asks of Python and of its own process: imports, stack frames, threads of calls, files."""
