"""Peers with real sockets: receivers that count, proxies that cut."""
