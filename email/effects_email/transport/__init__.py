"""How a message leaves: SMTP, a provider's HTTP API, or a folder of files, behind one interface."""
