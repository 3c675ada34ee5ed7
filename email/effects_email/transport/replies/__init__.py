"""What a mail server's reply or a fault of the wire means: tables, as data. Pure."""
