"""What the DNS says of a domain that sends mail: SPF, DKIM, DMARC, MX, and what the large mailbox providers demand."""
