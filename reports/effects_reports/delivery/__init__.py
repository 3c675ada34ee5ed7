"""How a finished file reaches people: links, mail."""
