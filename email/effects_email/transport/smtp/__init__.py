"""Messages to an SMTP relay: sessions that are kept open, and transactions driven command by command."""
